//! Finds the drop-in libraries.

use crate::failure::Failure;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

const LIBRARY: &str = "libibverbs.so.1";
const MANAGER: &str = "librdmacm.so.1";

/// A library that only Ferroce installs. It identifies the `lib` of a tarball.
const OWN: &str = "libferroce.a";

/// Returns the folder in `FERROCE_LIB`, or else `dropin` in the folder of this program, or else the installed folder: `ferroce` in `lib`,
/// or in `lib`'s folder of this architecture, where Debian's package installs it, or `lib` itself in the folder of a tarball.
///
/// # Errors
/// Returns a failure if none of them contains the library.
pub fn folder() -> Result<PathBuf, Failure> {
    let mut looked = Vec::new();
    if let Some(folder) = std::env::var_os("FERROCE_LIB") {
        looked.push(PathBuf::from(folder));
    } else if let Ok(program) = std::env::current_exe()
        && let Some(beside) = program.parent()
    {
        looked.push(beside.join("dropin"));
        looked.extend(installed(&beside.join("../lib")));
    }
    let found = looked.iter().find(|folder| folder.join(LIBRARY).is_file());
    found.cloned().ok_or_else(|| {
        let looked: Vec<_> = looked.iter().map(|folder| folder.display().to_string()).collect();
        let looked = looked.join(" or ");
        Failure::run(format!(
            "no {LIBRARY} in {looked}; install the package ferroce-ibverbs, build it with scripts/build, or set FERROCE_LIB to its folder"
        ))
    })
}

/// Returns the folders that may contain installed libraries: folders below `lib` for packages, `lib` itself for a tarball.
fn installed(lib: &Path) -> Vec<PathBuf> {
    // The name of dpkg-architecture: `x86_64-linux-gnu`.
    let architecture = format!("{}-linux-gnu", std::env::consts::ARCH);
    // The path is printed and stays in the program's environment, so it should not contain `..`.
    let lib = lib.canonicalize().unwrap_or_else(|_| lib.to_owned());
    let mut folders = vec![lib.join(architecture).join("ferroce"), lib.join("ferroce")];
    // `/usr/lib` may contain the system's own libibverbs.
    if lib.join(OWN).is_file() {
        folders.push(lib);
    }
    folders
}

/// Returns the loader's search path with `folder` at its start, and not elsewhere.
pub fn search_path(folder: &Path) -> OsString {
    first("LD_LIBRARY_PATH", &[folder.to_owned()])
}

/// Returns the libraries that the loader loads before a program's own. Their symbols take precedence, whatever the name of the program's
/// copy.
pub fn preload(folder: &Path) -> OsString {
    first("LD_PRELOAD", &[LIBRARY, MANAGER].map(|name| folder.join(name)))
}

/// Returns the list of paths in a variable with `ours` at its start, and not elsewhere.
fn first(variable: &str, ours: &[PathBuf]) -> OsString {
    let others = std::env::var_os(variable).unwrap_or_default();
    let others: Vec<_> = std::env::split_paths(&others)
        .filter(|other| !other.as_os_str().is_empty() && !ours.contains(other))
        .collect();
    let all: Vec<_> = ours.iter().chain(&others).map(|path| path.as_os_str()).collect();
    all.join(OsStr::new(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lib_itself_is_searched_only_if_it_is_of_a_tarball() {
        let lib = tempfile::tempdir().unwrap();
        let own = lib.path().canonicalize().unwrap();
        std::fs::write(own.join(LIBRARY), "").unwrap();
        assert!(!installed(&own).contains(&own), "the system's own library");
        std::fs::write(own.join(OWN), "").unwrap();
        assert!(installed(&own).contains(&own));
    }
}
