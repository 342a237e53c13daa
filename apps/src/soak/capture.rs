//! Writes a failed run to disk: its frames as pcap, and the faults that affected them as text.

use crate::failure::Failure;
use fabric::soak::Broken;
use std::fs;
use std::path::{Path, PathBuf};

/// The magic number of classic pcap with timestamps in ns.
const MAGIC: u32 = 0xa1b2_3c4d;

/// Writes `seed-N.pcap` and `seed-N.txt` into `folder`, and returns the path of the first.
pub fn write(folder: &Path, broken: &Broken) -> Result<PathBuf, Failure> {
    let wrong = |error: std::io::Error| Failure::run(format!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(wrong)?;
    let file = folder.join(format!("seed-{}.pcap", broken.seed));
    fs::write(&file, pcap(broken)).map_err(wrong)?;
    let mut text = format!("seed {}: {}\n\n", broken.seed, broken.why);
    for (number, frame) in broken.frames.iter().enumerate().filter(|(_, frame)| !frame.harm.is_empty()) {
        text += &format!("frame {}, {} ns: {}\n", number + 1, frame.at, frame.harm);
    }
    text += &format!("\n{}\n", broken.smallest);
    fs::write(file.with_extension("txt"), text).map_err(wrong)?;
    Ok(file)
}

fn pcap(broken: &Broken) -> Vec<u8> {
    let mut bytes = Vec::new();
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    bytes.extend(words(&[MAGIC, 2 | 4 << 16, 0, 0, 1 << 16, 1]));
    for frame in &broken.frames {
        let length = frame.frame.len() as u32;
        let (seconds, nanos) = (frame.at / 1_000_000_000, frame.at % 1_000_000_000);
        bytes.extend(words(&[seconds as u32, nanos as u32, length, length]));
        bytes.extend(&frame.frame);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::soak::Captured;

    #[test]
    fn a_broken_run_is_written_with_its_faults() {
        let folder = tempfile::tempdir().unwrap();
        let frame = |at, harm| Captured { at, frame: vec![7; 60], harm };
        let frames = vec![frame(5, ""), frame(1_000_000_007, "lost")];
        let broken = Broken { seed: 9, why: "because".into(), smallest: "Plan".into(), frames };
        let file = write(folder.path(), &broken).unwrap();
        let bytes = fs::read(&file).unwrap();
        assert_eq!(bytes.len(), 24 + 2 * (16 + 60));
        assert_eq!(bytes[24 + 76..24 + 76 + 8], [1, 0, 0, 0, 7, 0, 0, 0]);
        let text = fs::read_to_string(file.with_extension("txt")).unwrap();
        assert!(text.contains("because") && text.contains("frame 2, 1000000007 ns: lost"), "{text}");
    }
}
