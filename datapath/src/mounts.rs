//! Mounts that only the calling thread and the programs that it becomes or starts see (mount_namespaces(7)). `ferroce run` puts the files of
//! RDMA devices in place with it.

use std::ffi::{CStr, CString};
use std::io;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null;

/// A mount namespace of the calling thread alone. All mounts of this module are its methods, so none can reach another namespace.
#[derive(Debug)]
pub struct PrivateMounts {
    /// Another thread may be in another namespace: the value must not be sent there.
    of_this_thread: PhantomData<*const ()>,
}

impl PrivateMounts {
    /// Moves the calling thread into a mount namespace of its own, from which no mount propagates.
    ///
    /// # Errors
    /// Returns the kernel's error: `EPERM` without CAP_SYS_ADMIN, `ENOSPC` beyond `user.max_mnt_namespaces`, `EINVAL` if the root folder is
    /// no mount point.
    pub fn enter() -> io::Result<Self> {
        // SAFETY: unshare takes plain integers.
        check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        let mounts = Self { of_this_thread: PhantomData };
        // A new namespace has the old one's shared mounts, in which a mount would appear in the old one, too.
        mounts.mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, None)?;
        Ok(mounts)
    }

    /// Mounts an empty tmpfs of at most `kib` KiB at the folder `at`, as `source` in the list of mounts.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn tmpfs(&self, source: &str, kib: u32, at: &Path) -> io::Result<()> {
        let options = format!("mode=755,size={kib}k");
        self.mount(Some(Path::new(source)), at, Some(c"tmpfs"), 0, Some(options.as_bytes()))
    }

    /// Makes the file or folder `from` appear at `to`, which exists, too.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn bind(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.mount(Some(from), to, None, libc::MS_BIND, None)
    }

    /// Mounts at `at` what is in `upper` and, below it, in `lower`, read-only, as `source` in the list of mounts.
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
        // SAFETY: each pointer is null, where mount(2) allows that, or a NUL-terminated string that lives until the call returns.
        check(unsafe {
            libc::mount(pointer(source), at.as_ptr(), pointer(kind), flags, pointer(options).cast())
        })
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
