//! The devices of the configuration, in the list of `ibv_get_device_list`.

use crate::abi::{ibv_context, ibv_device};
use crate::errno::{Errno, at, count, created, injected, object, status};
use crate::ibverbs::context::Context;
use crate::ibverbs::lock::{Lock, Rank};
use crate::ibverbs::log;
use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use verbs::fault::{self, Verb};
use verbs::sysfs::{self, Folder, PortState};
use verbs::{Device, DeviceConfig, Progress};

/// `IBV_NODE_CA` and `IBV_TRANSPORT_IB`, which RoCE devices have, too.
const NODE_CA: c_int = 1;
const TRANSPORT_IB: c_int = 0;

/// A device of the process: a port of the configuration.
pub(crate) struct Configured {
    abi: ibv_device,
    config: DeviceConfig,
    pub(crate) guid: [u8; 8],
    open: Lock<Opened>,
}

// SAFETY: the pointers in `ibv_device` are null, and it is not written after its creation.
unsafe impl Send for Configured {}
// SAFETY: as above; the rest is behind its mutex.
unsafe impl Sync for Configured {}

/// State of the port, which is open while contexts use it.
struct Opened {
    device: Option<Device>,
    contexts: usize,
}

static CONFIGURED: OnceLock<Vec<Configured>> = OnceLock::new();

/// Returns the devices of the configuration. The configuration is read once in a process, so that devices keep their addresses.
fn configured() -> &'static [Configured] {
    let read = || {
        log::start();
        fault::count_at_c_entry_points();
        let configs = match DeviceConfig::all_from_env() {
            Ok(configs) => configs,
            Err(error) => {
                tracing::error!("no device: {error}");
                return Vec::new();
            }
        };
        let named = configs.into_iter().filter(|config| config.port().is_some());
        let devices: Vec<_> = named.enumerate().map(|(at, config)| Configured::new(at, config)).collect();
        if devices.is_empty() {
            tracing::warn!("no device: {}", verbs::errors::ConfigError::NoPort);
        }
        devices
    };
    CONFIGURED.get_or_init(read)
}

impl Configured {
    fn new(at: usize, config: DeviceConfig) -> Self {
        let name = config.name_at(at);
        let mut abi = ibv_device { node_type: NODE_CA, transport_type: TRANSPORT_IB, ..Default::default() };
        put(&mut abi.name, &name);
        put(&mut abi.dev_name, &name);
        put(&mut abi.dev_path, &format!("/sys/class/infiniband_verbs/{name}"));
        put(&mut abi.ibdev_path, &format!("/sys/class/infiniband/{name}"));
        let guid = sysfs::guid(&config);
        if let Ok(folder) = Folder::create(Path::new(sysfs::CLASS), &name) {
            let interface = sysfs::interface(&config).map(|interface| interface.name);
            report(folder.describe(&name, guid, interface.as_deref()));
        }
        // The library cannot determine whether a program polls or waits.
        let config = config.progress_by_default(Progress::Adaptive);
        Self { abi, config, guid, open: Lock::new(Rank::Device, Opened { device: None, contexts: 0 }) }
    }

    fn as_abi(&self) -> *mut ibv_device {
        (&raw const self.abi).cast_mut()
    }

    /// Opens the port, or adds a reference to the open port.
    pub(crate) fn open(&self) -> Result<Device, Errno> {
        let mut open = self.open.lock();
        let device = match &open.device {
            Some(device) if !device.is_inherited() => device.clone(),
            // A forked process opens the port anew: it cannot use the device of its parent.
            _ => {
                let device = Device::open(&self.config).inspect_err(|error| tracing::error!("{error}"))?;
                self.describe(&device)?;
                device
            }
        };
        if open.device.as_ref().is_some_and(Device::is_inherited) {
            open.contexts = 0;
        }
        open.device = Some(device.clone());
        open.contexts += 1;
        Ok(device)
    }

    /// Describes the open port in sysfs, if the process has the permission.
    fn describe(&self, device: &Device) -> Result<(), Errno> {
        // SAFETY: `new` wrote a NUL-terminated name, and nothing changes it.
        let name = unsafe { CStr::from_ptr(self.abi.name.as_ptr()) }.to_string_lossy();
        if let Ok(folder) = Folder::create(Path::new(sysfs::CLASS), &name) {
            let info = device.query()?;
            let (is_up, speed_mbps) = (device.link_is_up(), info.speed_mbps);
            let port = PortState { is_up, speed_mbps, gids: &info.gids, interface: &info.port };
            report(folder.describe_port(&port));
        }
        Ok(())
    }

    /// Drops a reference that [`open`](Self::open) added. A device of the parent process has no references of this process.
    pub(crate) fn close(&self, device: &Device) {
        if device.is_inherited() {
            return;
        }
        let mut open = self.open.lock();
        open.contexts = open.contexts.saturating_sub(1);
        if open.contexts == 0 {
            open.device = None;
        }
    }
}

/// Copies a text into a field that is longer. The rest of the field stays 0.
fn put(field: &mut [c_char], text: &str) {
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// Logs that sysfs does not describe the device. Programs that do not read sysfs are not affected.
fn report(described: io::Result<()>) {
    if let Err(error) = described {
        tracing::warn!("{}: the device is not described there: {error}", sysfs::CLASS);
    }
}

/// Returns the configured device at the address `device`, and its index.
fn known(device: *const ibv_device) -> Option<(usize, &'static Configured)> {
    configured().iter().enumerate().find(|(_, ours)| std::ptr::eq(ours.as_abi(), device))
}

/// `ibv_get_device_list(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(number: *mut c_int) -> *mut *mut ibv_device {
    created(|| {
        let devices: Vec<_> = configured().iter().map(Configured::as_abi).collect();
        // SAFETY: null, or room for a number.
        if let Some(number) = unsafe { number.as_mut() } {
            *number = devices.len() as c_int;
        }
        // A null pointer ends the list.
        // SAFETY: calloc accepts any sizes.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) }
            .cast::<*mut ibv_device>();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        for (at, device) in devices.into_iter().enumerate() {
            // SAFETY: the list has room for all devices and the null pointer.
            unsafe { list.add(at).write(device) };
        }
        Ok(list)
    })
}

/// `ibv_free_device_list(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: null, or a list that `ibv_get_device_list` allocated by calloc.
    unsafe { libc::free(list.cast()) };
}

/// `ibv_get_device_name(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: null, or a device of the list.
    object(|| Ok(unsafe { at(device) }?.name.as_ptr().cast_mut()))
}

/// `ibv_get_device_guid(3)`: the GUID is in network byte order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    known(device).map_or(0, |(_, device)| u64::from_ne_bytes(device.guid))
}

/// `ibv_get_device_index(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    known(device).map_or(-1, |(at, _)| at as c_int)
}

/// `ibv_open_device(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    created(|| {
        injected(Verb::OpenDevice)?;
        let (_, configured) = known(device).ok_or(Errno(libc::ENODEV))?;
        Context::open(configured, device)
    })
}

/// `ibv_close_device(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: null, or a context that the program must not use after this call.
    status(|| unsafe { Context::close(context) })
}

/// Reads a file in a folder of sysfs, without its last newline.
///
/// # Safety
/// The caller must pass NUL-terminated texts, and a buffer of `size` bytes.
unsafe fn read_sysfs(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> Result<c_int, Errno> {
    if folder.is_null() || file.is_null() || buffer.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: guaranteed by the caller.
    let [folder, file] = [folder, file].map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy());
    let name = folder.rsplit('/').next().unwrap_or_default();
    let is_ours = configured().iter().enumerate().any(|(at, ours)| ours.config.name_at(at) == name);
    let own = is_ours.then(|| attribute(&file)).flatten();
    let text = match own {
        Some(text) => text.into_bytes(),
        None => std::fs::read(format!("{folder}/{file}"))
            .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::ENOENT)))?,
    };
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let length = text.len().min(size.saturating_sub(1));
    if size > 0 {
        // SAFETY: at most `size` bytes are written, including the NUL.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
            buffer.add(length).write(0);
        }
    }
    Ok(length as c_int)
}

/// Returns the value of an attribute that a kernel driver would write.
fn attribute(file: &str) -> Option<String> {
    match file {
        "board_id" => Some(sysfs::BOARD.into()),
        "fw_ver" => Some(env!("CARGO_PKG_VERSION").into()),
        "node_type" => Some("1: CA".into()),
        _ => None,
    }
}

/// Reads a file of sysfs. Returns its length, or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: passed on.
    count(|| unsafe { read_sysfs(folder, file, buffer, size) })
}

/// Returns the path at which sysfs is mounted.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}
