//! Results of earlier runs of the same name, phase by phase.

use crate::load::Load;
use crate::run;
use crate::verdict::Phase;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::path::Path;

/// A phase, as a line of the file.
#[derive(Deserialize, Serialize)]
struct Row {
    flows: usize,
    busy_ns: f64,
    queue: String,
    peak: u64,
    settled: Option<f64>,
    disturbed: bool,
}

/// The phases of the runs before; none if there was none.
///
/// # Errors
/// Returns an error if the file is not as [`write()`] writes it.
pub fn read(file: &Path) -> Result<Vec<Phase>, Box<dyn Error>> {
    if !file.exists() {
        return Ok(Vec::new());
    }
    let mut phases = Vec::new();
    for row in csv::Reader::from_path(file)?.deserialize() {
        let Row { flows, busy_ns, queue, peak, settled, disturbed } = row?;
        let queue = run::queue(&queue).ok_or_else(|| format!("{}: no queue: `{queue}`", file.display()))?;
        phases.push(Phase { flows, load: Load { busy: busy_ns, queue }, peak, settled, disturbed });
    }
    Ok(phases)
}

/// Writes the phases, a line each.
///
/// # Errors
/// Returns an error if the file can't be written.
pub fn write(file: &Path, phases: &[Phase]) -> Result<(), Box<dyn Error>> {
    let mut to = csv::Writer::from_path(file)?;
    for Phase { flows, load, peak, settled, disturbed } in phases {
        let lengths: Vec<String> =
            load.queue.iter().map(|(bytes, nanos)| format!("{bytes}:{nanos}")).collect();
        let (busy_ns, queue) = (load.busy, lengths.join(" "));
        let (flows, peak, settled, disturbed) = (*flows, *peak, *settled, *disturbed);
        to.serialize(Row { flows, busy_ns, queue, peak, settled, disturbed })?;
    }
    Ok(to.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let file = std::env::temp_dir().join(format!("ferroce-kept-{}.csv", std::process::id()));
        assert!(read(&file).unwrap().is_empty());
        let phase = Phase {
            flows: 8,
            load: Load { busy: 2.5e9, queue: vec![(0, 2e9), (4234, 6.5e8)] },
            peak: 250_000,
            settled: None,
            disturbed: true,
        };
        let empty = Phase { settled: Some(0.25), load: Load::default(), ..phase.clone() };
        let phases = vec![phase, empty];
        write(&file, &phases).unwrap();
        assert_eq!(read(&file).unwrap(), phases);
        std::fs::remove_file(&file).unwrap();
    }
}
