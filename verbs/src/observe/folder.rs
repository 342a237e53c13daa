//! The folder of the sockets: `$XDG_RUNTIME_DIR/ferroce`, or `/run/ferroce` for root.

use datapath::capabilities::effective_user;
use datapath::environment;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The reason why there is no usable folder.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The user has no runtime folder.
    #[error("no folder for sockets: XDG_RUNTIME_DIR is not set to a folder of user {0}; set it")]
    Nowhere(u32),
    /// A system call failed.
    #[error("{path}: {error}; remove it, or set XDG_RUNTIME_DIR to another folder")]
    Refused {
        /// The folder.
        path: PathBuf,
        /// The error of the system call.
        error: std::io::Error,
    },
    /// Another user could have created sockets in the folder.
    #[error("{path}: mode {mode:o} and owner {owner} instead of 700 and {user}; remove it")]
    Open {
        /// The folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
}

fn is_of(path: &Path, user: u32) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == user)
}

/// Returns the folder of this user's sockets, whether it exists or not.
///
/// # Errors
/// Returns [`FolderError::Nowhere`] if a user other than root has no runtime folder.
pub fn folder() -> Result<PathBuf, FolderError> {
    let user = effective_user();
    let named = environment::variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = PathBuf::from(format!("/run/user/{user}"));
    match [named, Some(usual)].into_iter().flatten().find(|path| path.is_absolute() && is_of(path, user)) {
        Some(runtime) => Ok(runtime.join("ferroce")),
        None if user == 0 => Ok("/run/ferroce".into()),
        None => Err(FolderError::Nowhere(user)),
    }
}

/// Returns the folder. Creates it if it does not exist.
pub(super) fn create() -> Result<PathBuf, FolderError> {
    let path = folder()?;
    let refused = |error| FolderError::Refused { path: path.clone(), error };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(refused(error)),
        _ => {}
    }
    let found = fs::symlink_metadata(&path).map_err(refused)?;
    let (mode, owner, user) = (found.mode() & 0o777, found.uid(), effective_user());
    if !found.is_dir() || mode & 0o77 != 0 || owner != user {
        return Err(FolderError::Open { path, mode, owner, user });
    }
    Ok(path)
}

/// Returns the folders that an observer searches: the user's own, and for root those of all users.
pub(super) fn readable() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = folder().into_iter().collect();
    if effective_user() == 0 {
        let users = fs::read_dir("/run/user").into_iter().flatten().flatten();
        all.extend(users.map(|user| user.path().join("ferroce")));
        all.push("/run/ferroce".into());
    }
    all.retain(|path| path.is_dir());
    all.sort();
    all.dedup();
    all
}
