//! The key that authenticates a device's telemetry responses, from a file, the environment or the program.

use crate::default_file::text_of;
use datapath::environment;
use roce::qp::FeedbackKey;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

const VARIABLE: &str = "FERROCE_FEEDBACK_KEY";

/// The error of a key that cannot be read. Its message never contains the key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum KeyError {
    #[error("feedback key {path}: {reason}; name a file that can be read")]
    File { path: String, reason: String },
    #[error("feedback key {path}: others may read it (mode {mode:03o}); chmod 600 {path}")]
    Mode { path: String, mode: u32 },
    #[error(
        "feedback key in {place}: not 32 hexadecimal digits; write those that `openssl rand -hex 16` prints"
    )]
    Digits { place: String },
}

/// The source of a device's key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// The environment variable `FERROCE_FEEDBACK_KEY`.
    Environment,
    /// The program ([`DeviceConfig::feedback_key`](crate::DeviceConfig::feedback_key)).
    Program,
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Environment => f.write_str(VARIABLE),
            Self::Program => f.write_str("program"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceKey {
    pub(crate) key: FeedbackKey,
    pub(crate) source: KeySource,
}

impl DeviceKey {
    pub(crate) fn from_file(path: &Path) -> Result<Self, KeyError> {
        Ok(Self { key: feedback_key_from_file(path)?, source: KeySource::File(path.to_owned()) })
    }

    pub(crate) fn from_env() -> Result<Option<Self>, KeyError> {
        let Some(text) = environment::text(VARIABLE) else { return Ok(None) };
        let key = parse(&text).ok_or(KeyError::Digits { place: VARIABLE.to_owned() })?;
        Ok(Some(Self { key, source: KeySource::Environment }))
    }
}

/// Reads the key from a file of 32 hexadecimal digits. Only its owner may have the permission to read it.
///
/// # Errors
/// Returns an error if the file cannot be read, if other users may read it, or if it does not contain a key.
pub fn feedback_key_from_file(path: &Path) -> Result<FeedbackKey, KeyError> {
    let place = path.display().to_string();
    let failed = |error: std::io::Error| KeyError::File { path: place.clone(), reason: error.to_string() };
    let found = std::fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        return Err(failed(std::io::Error::other("not a regular file; name the file that contains the key")));
    }
    let mode = found.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyError::Mode { path: place, mode });
    }
    let text = std::fs::File::open(path).and_then(text_of).map_err(failed)?;
    parse(text.trim()).ok_or(KeyError::Digits { place })
}

fn parse(text: &str) -> Option<FeedbackKey> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u128::from_str_radix(text, 16).ok()?;
    digits.then_some(FeedbackKey(number.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let set = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        std::fs::write(&path, "000102030405060708090a0b0c0d0e0f\n").unwrap();
        set(0o644);
        let open = feedback_key_from_file(&path).unwrap_err().to_string();
        assert!(open.contains("chmod 600"), "{open}");
        let wrong = feedback_key_from_file(folder.path()).unwrap_err().to_string();
        assert!(wrong.contains("not a regular file") && !wrong.contains("chmod"), "{wrong}");
        set(0o600);
        let key = feedback_key_from_file(&path).unwrap();
        assert_eq!(key, FeedbackKey([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]));
        std::fs::write(&path, "secret").unwrap();
        let digits = feedback_key_from_file(&path).unwrap_err().to_string();
        assert!(digits.contains("32 hexadecimal") && !digits.contains("secret"), "{digits}");
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(feedback_key_from_file(&path), Err(KeyError::File { .. })));
        assert_eq!(format!("{key:?}"), "FeedbackKey(..)");
    }
}
