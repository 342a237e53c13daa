//! Prepares the files of RDMA devices that programs look for.
//!
//! UCX takes a device only if there is a character device of its name in `/dev/infiniband`, which UCX may read and write and never opens.
//! There is one for each of eight devices. Other programs read `/sys/class/infiniband`, a folder that no process can create in sysfs: an
//! overlay adds an empty one, and the drop-in library describes its devices there (`verbs/dropin/src/sysfs.rs`). All of it is in a separate
//! mount namespace of the program, so that only an empty folder in `/dev` is left behind.
//!
//! A container with default capabilities may not mount. There, links to `/dev/null` in its own `/dev` satisfy UCX, and remain.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Runs the words after it with the files in place, in a mount namespace that is private already. The program also runs if neither mounts
/// nor links are permitted.
const PLACE: &str = r#"
devices='0 1 2 3 4 5 6 7'
place() {
  mkdir -p /dev/infiniband && mount -t tmpfs -o mode=755,size=64k ferroce /dev/infiniband &&
  for number in $devices; do
    : >/dev/infiniband/ferroce$number && mount --bind /dev/null /dev/infiniband/ferroce$number || return
  done
}
link() {
  mkdir -p /dev/infiniband && for number in $devices; do
    [ -c /dev/infiniband/ferroce$number ] || ln -s /dev/null /dev/infiniband/ferroce$number || return
  done
}
describe() {
  if [ ! -d /sys/class/infiniband ]; then
    mkdir -p /dev/infiniband/.class/infiniband &&
      mount -t overlay -o lowerdir=/dev/infiniband/.class:/sys/class ferroce /sys/class || return
  fi
  mount -t tmpfs -o mode=755,size=1m ferroce /sys/class/infiniband
}
if place 2>/dev/null; then
  describe 2>/dev/null
elif ! link 2>/dev/null; then
  case "$*" in *ucx*)
    echo "ferroce run: UCX finds no device without /dev/infiniband/ferroce0; remedy, as root:" \
      "mkdir -p /dev/infiniband && mknod -m 666 /dev/infiniband/ferroce0 c 1 3" >&2 ;;
  esac
fi
exec "$@"
"#;

/// The same, in a mount namespace that it creates first.
const PLACE_APART: &str = r#"
place=$1; shift
if [ -c /dev/infiniband/ferroce0 ]; then exec "$@"; fi
if unshare --mount true 2>/dev/null; then exec unshare --mount sh -c "$place" sh "$@"; fi
exec sh -c "$place" sh "$@"
"#;

/// UCX assumes RoCE v1 if sysfs has no entry, and receives datagrams over IPv6 only: the first GID is IPv6's link-local one.
pub const UCX_SETTING: (&str, &str) = ("UCX_IB_GID_INDEX", "0");

/// A command in a private mount namespace, with the file.
pub fn inside(words: Vec<String>) -> Vec<String> {
    ["sh", "-c", PLACE, "sh"].map(str::to_owned).into_iter().chain(words).collect()
}

/// Returns the command to run in a separate mount namespace, with the file: any program may use UCX, as `mpirun` and Python do. `None` if
/// the program does not exist or cannot be executed, so that the caller finds out why.
pub fn apart(program: &str, rest: &[String]) -> Option<Vec<String>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = match program.contains('/') {
        true => is_executable(Path::new(program)),
        false => std::env::split_paths(&path).any(|folder| is_executable(&folder.join(program))),
    };
    let words = ["sh", "-c", PLACE_APART, "sh", PLACE, program].map(str::to_owned);
    is_there.then(|| words.into_iter().chain(rest.iter().cloned()).collect())
}

/// Returns whether a file may be executed by some user.
fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// [`UCX_SETTING`], unless the user chose.
pub fn setting() -> Option<(&'static str, OsString)> {
    std::env::var_os(UCX_SETTING.0).is_none().then(|| (UCX_SETTING.0, UCX_SETTING.1.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_gets_its_words_as_they_are() {
        let words = inside(["prog", "two words", "$x"].map(str::to_owned).to_vec());
        assert_eq!(words[words.len() - 3..], ["prog", "two words", "$x"]);
        let words = apart("/bin/sh", &["two words", "$x"].map(str::to_owned)).unwrap();
        assert_eq!(words[words.len() - 3..], ["/bin/sh", "two words", "$x"]);
        for none in ["/bin/there-is-none", "there-is-none", "/etc/passwd", "/etc"] {
            assert_eq!(apart(none, &[]), None, "{none}");
        }
    }
}
