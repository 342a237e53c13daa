//! Mounts in a private mount namespace of the calling thread (mount_namespaces(7)), which the programs that it executes share.
//! `ferroce run` uses them to provide the files of RDMA devices.

use std::ffi::{CStr, CString};
use std::io;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null;

/// A mount namespace of the calling thread alone. Only its methods mount, so no mount can affect another namespace.
#[derive(Debug)]
pub struct PrivateMounts {
    /// Makes the type neither `Send` nor `Sync`: another thread may be in another namespace.
    of_this_thread: PhantomData<*const ()>,
}

impl PrivateMounts {
    /// Moves the calling thread into a new mount namespace, from which no mount propagates.
    ///
    /// # Errors
    /// Returns the kernel's error: `EPERM` without CAP_SYS_ADMIN, `ENOSPC` beyond `user.max_mnt_namespaces`, `EINVAL` if the root directory
    /// is not a mount point.
    pub fn enter() -> io::Result<Self> {
        // SAFETY: unshare takes an integer.
        check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        let mounts = Self { of_this_thread: PhantomData };
        // A new namespace shares mounts with the old one, so a mount would also appear there.
        mounts.mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, None)?;
        Ok(mounts)
    }

    /// Mounts an empty tmpfs of at most `kib` KiB at the directory `at`. `source` is its name in the list of mounts.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn tmpfs(&self, source: &str, kib: u32, at: &Path) -> io::Result<()> {
        let options = format!("mode=755,size={kib}k");
        self.mount(Some(Path::new(source)), at, Some(c"tmpfs"), 0, Some(options.as_bytes()))
    }

    /// Makes the file or directory `from` also appear at `to`, which must exist.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn bind(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.mount(Some(from), to, None, libc::MS_BIND, None)
    }

    /// Mounts a read-only overlay of `upper` over `lower` at `at`. `source` is its name in the list of mounts.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn overlay(&self, source: &str, upper: &Path, lower: &Path, at: &Path) -> io::Result<()> {
        let [upper, lower] = [upper, lower].map(|folder| folder.as_os_str().as_bytes());
        let options = [&b"lowerdir="[..], upper, b":", lower].concat();
        self.mount(Some(Path::new(source)), at, Some(c"overlay"), 0, Some(&options))
    }

    fn mount(
        &self,
        source: Option<&Path>,
        at: &Path,
        kind: Option<&CStr>,
        flags: libc::c_ulong,
        options: Option<&[u8]>,
    ) -> io::Result<()> {
        let source = source.map(|source| CString::new(source.as_os_str().as_bytes())).transpose()?;
        let options = options.map(CString::new).transpose()?;
        let at = CString::new(at.as_os_str().as_bytes())?;
        let pointer = |text: Option<&CStr>| text.map_or(null(), CStr::as_ptr);
        let (source, options) = (source.as_deref(), options.as_deref());
        // SAFETY: each pointer is null, where mount(2) allows that, or a NUL-terminated string that outlives the call.
        check(unsafe {
            libc::mount(pointer(source), at.as_ptr(), pointer(kind), flags, pointer(options).cast())
        })
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
