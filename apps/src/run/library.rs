//! Where the drop-in libraries are.

use crate::failure::Failure;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const LIBRARY: &str = "libibverbs.so.1";

/// The folder that `FERROCE_LIB` names, or `dropin` beside this program, or `lib/ferroce` beside its folder.
///
/// # Errors
/// Where none of them has the library.
pub fn folder() -> Result<PathBuf, Failure> {
    let mut looked = Vec::new();
    if let Some(folder) = std::env::var_os("FERROCE_LIB") {
        looked.push(PathBuf::from(folder));
    } else if let Ok(program) = std::env::current_exe()
        && let Some(beside) = program.parent()
    {
        looked.extend([beside.join("dropin"), beside.join("../lib/ferroce")]);
    }
    let found = looked.iter().find(|folder| folder.join(LIBRARY).is_file());
    found.cloned().ok_or_else(|| {
        let looked: Vec<_> = looked.iter().map(|folder| folder.display().to_string()).collect();
        let looked = looked.join(" or ");
        Failure::run(format!(
            "no {LIBRARY} in {looked}; build it by scripts/dropin, or name its folder by FERROCE_LIB"
        ))
    })
}

/// The loader's search path with `folder` first.
pub fn search_path(folder: &Path) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_LIBRARY_PATH").filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    path
}
