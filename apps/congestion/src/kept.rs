//! What earlier runs of the same name came to, phase by phase.

use crate::verdict::Phase;
use std::error::Error;
use std::path::Path;

/// The phases of the runs before; none where there was none.
///
/// # Errors
/// The file is not as [`write()`] writes it.
pub fn read(file: &Path) -> Result<Vec<Phase>, Box<dyn Error>> {
    if !file.exists() {
        return Ok(Vec::new());
    }
    Ok(csv::Reader::from_path(file)?.deserialize().collect::<Result<_, _>>()?)
}

/// # Errors
/// The file can't be written.
pub fn write(file: &Path, phases: &[Phase]) -> Result<(), Box<dyn Error>> {
    let mut to = csv::Writer::from_path(file)?;
    for phase in phases {
        to.serialize(phase)?;
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
            utilisation: 0.95,
            p50: 0.0,
            p99: 2.0,
            peak: 60.0,
            settled: None,
            judged: 2.5,
            disturbed: true,
        };
        let phases = vec![phase, Phase { settled: Some(0.25), ..phase }];
        write(&file, &phases).unwrap();
        assert_eq!(read(&file).unwrap(), phases);
        std::fs::remove_file(&file).unwrap();
    }
}
