//! Reads and writes capture files.

use std::fs;
use std::path::Path;

/// Returns the frames of a classic little-endian capture.
pub fn frames(file: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    assert_eq!(bytes[..4], [0xd4, 0xc3, 0xb2, 0xa1], "{}", file.display());
    let mut rest = &bytes[24..];
    let mut frames = Vec::new();
    while let Some((record, after)) = rest.split_at_checked(16) {
        let length = u32::from_le_bytes([record[8], record[9], record[10], record[11]]) as usize;
        frames.push(after[..length].to_vec());
        rest = &after[length..];
    }
    assert!(rest.is_empty(), "{} ends in the middle of a record", file.display());
    frames
}

/// Returns a classic little-endian capture of Ethernet frames, 1 µs apart.
pub fn of(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0];
    for (micros, frame) in frames.iter().enumerate() {
        for field in [0, micros, frame.len(), frame.len()] {
            bytes.extend((field as u32).to_le_bytes());
        }
        bytes.extend(frame);
    }
    bytes
}
