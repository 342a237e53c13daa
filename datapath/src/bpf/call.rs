//! The system call bpf(2): loads programs, creates maps and attaches both.

use super::Instruction;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Commands, `BPF_*`.
const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP: libc::c_long = 1;
const MAP_UPDATE: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const BTF_LOAD: libc::c_long = 18;
const MAP_LOOKUP_BATCH: libc::c_long = 24;
const LINK_CREATE: libc::c_long = 28;

/// Kinds of maps, `BPF_MAP_TYPE_*`.
const HASH: u32 = 1;
const STRUCT_OPS: u32 = 26;
/// `BPF_F_LINK`: a link attaches this map of kind `STRUCT_OPS`.
const LINKED: u32 = 1 << 13;

/// Kinds of programs, and attach types.
const SCHED_CLS: u32 = 3;
const STRUCT_OPS_PROGRAM: u32 = 27;
const TCX_INGRESS: u32 = 46;
const STRUCT_OPS_LINK: u32 = 44;

const LICENSE: &CStr = c"Dual MIT/GPL";

/// The fields of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach: u32,
    /// BTF of the program itself: none.
    types: [u32; 2],
    functions: u64,
    functions_count: [u32; 2],
    lines: u64,
    lines_count: u32,
    /// BTF id of the kernel structure of which the program implements a function.
    target: u32,
}

/// The fields for `BPF_LINK_CREATE`.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    program: i32,
    interface: u32,
    attach: u32,
    flags: u32,
    beside: u32,
    unused: u32,
    revision: u64,
}

/// The fields for `BPF_MAP_CREATE`.
#[repr(C)]
#[derive(Default)]
struct Create {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    numa: u32,
    name: [u8; 16],
    interface: u32,
    btf: u32,
    key_type: u32,
    value_type: u32,
    kernel_type: u32,
}

/// The fields for `BPF_MAP_LOOKUP_ELEM` and `BPF_MAP_UPDATE_ELEM`.
#[repr(C)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The fields for `BPF_MAP_LOOKUP_BATCH`.
#[repr(C)]
struct Batch {
    from: u64,
    next: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// The fields for `BPF_BTF_LOAD`.
#[repr(C)]
#[derive(Default)]
struct Types {
    bytes: u64,
    log: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
    padding: u32,
}

fn name() -> [u8; 16] {
    let mut name = [0; 16];
    name[..7].copy_from_slice(b"ferroce");
    name
}

/// Loads a program and attaches it to an interface's ingress. Closing the returned link detaches the program.
pub(crate) fn attach_at_ingress(program: &[Instruction], index: u32) -> io::Result<OwnedFd> {
    let program = load(program, SCHED_CLS, TCX_INGRESS, 0)?;
    let request = LinkCreate {
        program: program.as_raw_fd(),
        interface: index,
        attach: TCX_INGRESS,
        ..LinkCreate::default()
    };
    // SAFETY: the request has no pointers.
    unsafe { opens(LINK_CREATE, &request) }
}

/// Loads a program for function number `member` of the kernel structure with BTF id `target`.
pub(crate) fn load_member(program: &[Instruction], member: u32, target: u32) -> io::Result<OwnedFd> {
    load(program, STRUCT_OPS_PROGRAM, member, target)
}

fn load(program: &[Instruction], kind: u32, attach: u32, target: u32) -> io::Result<OwnedFd> {
    let request = Load {
        kind,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        name: name(),
        attach,
        target,
        ..Load::default()
    };
    // SAFETY: the request points to `count` instructions and a NUL-terminated string, which outlive the call.
    unsafe { opens(PROG_LOAD, &request) }
}

/// A type that the kernel may read and write as bytes.
///
/// # Safety
/// The type must have no padding, and every sequence of `size_of::<Self>()` bytes must be a valid value of it.
pub(crate) unsafe trait Plain: Copy + Default {}

#[derive(Debug)]
pub(crate) struct Map<K, V> {
    fd: OwnedFd,
    kinds: std::marker::PhantomData<(K, V)>,
}

impl<K: Plain, V: Plain> Map<K, V> {
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        let request = Create {
            kind: HASH,
            key: size_of::<K>() as u32,
            value: size_of::<V>() as u32,
            entries,
            name: name(),
            ..Create::default()
        };
        // SAFETY: the request has no pointers.
        let fd = unsafe { opens(MAP_CREATE, &request) }?;
        Ok(Self { fd, kinds: std::marker::PhantomData })
    }

    pub(crate) fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    pub(crate) fn insert(&self, key: &K, value: &V) -> io::Result<()> {
        // SAFETY: the map was created for keys of type `K` and values of type `V`.
        unsafe { update(&self.fd, std::ptr::from_ref(key).cast(), std::ptr::from_ref(value).cast()) }
    }

    pub(crate) fn get(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = V::default();
        let mut request = MapElement {
            map: self.fd.as_raw_fd() as u32,
            padding: 0,
            key: std::ptr::from_ref(key) as u64,
            value: (&raw mut value) as u64,
            flags: 0,
        };
        // SAFETY: the kernel reads a `K` and writes a `V`: these are the sizes with which `new` created the map. Both outlive the call, and
        // every bit pattern is a valid `V` because it is [`Plain`].
        match unsafe { call(MAP_LOOKUP, &raw mut request) } {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            other => other.map(|_| Some(value)),
        }
    }

    /// Reads entries from the start of the map until `keys` or `values` is full. Returns the number of entries.
    pub(crate) fn read(&self, keys: &mut [K], values: &mut [V]) -> io::Result<usize> {
        // For a hash map, the kernel's cursor has 32 bits.
        let mut next = 0_u32;
        let mut request = Batch {
            from: 0,
            next: (&raw mut next) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: keys.len().min(values.len()) as u32,
            map: self.fd.as_raw_fd() as u32,
            element_flags: 0,
            flags: 0,
        };
        // SAFETY: the kernel writes at most `count` keys and values of the sizes with which `new` created the map. Both slices have that
        // many elements, of [`Plain`] types. It also writes 32 bits to `next`.
        match unsafe { call(MAP_LOOKUP_BATCH, &raw mut request) } {
            // The kernel has reached the end of the map.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(request.count as usize),
            other => other.map(|_| request.count as usize),
        }
    }
}

/// A kernel structure of function pointers that eBPF programs implement (`struct_ops`).
#[derive(Debug)]
pub(crate) struct Structure {
    map: OwnedFd,
}

impl Structure {
    /// Creates a structure of the type with BTF id `kernel_type`. In `value`, each function pointer is the descriptor of a program.
    pub(crate) fn new(kernel_type: u32, value: &[u8]) -> io::Result<Self> {
        let btf = types()?;
        let request = Create {
            kind: STRUCT_OPS,
            key: size_of::<u32>() as u32,
            value: value.len() as u32,
            entries: 1,
            flags: LINKED,
            name: name(),
            btf: btf.as_raw_fd() as u32,
            kernel_type,
            ..Create::default()
        };
        // SAFETY: the request has no pointers.
        let map = unsafe { opens(MAP_CREATE, &request) }?;
        let key = 0_u32;
        // SAFETY: the map was created for keys of four bytes and values of `value.len()` bytes.
        unsafe { update(&map, (&raw const key).cast(), value.as_ptr().cast()) }?;
        Ok(Self { map })
    }

    /// Registers the structure with its subsystem. Closing the returned link unregisters it.
    pub(crate) fn register(&self) -> io::Result<OwnedFd> {
        let request =
            LinkCreate { program: self.map.as_raw_fd(), attach: STRUCT_OPS_LINK, ..LinkCreate::default() };
        // SAFETY: the request has no pointers.
        unsafe { opens(LINK_CREATE, &request) }
    }
}

/// Loads BTF with one type, because a `struct_ops` map must refer to some BTF.
fn types() -> io::Result<OwnedFd> {
    let names = b"\0int\0";
    let int = [1_u32, 1 << 24, 4, 32];
    let mut bytes = Vec::from(0xeb9f_u16.to_ne_bytes());
    bytes.extend([1, 0]);
    let words = [24_u32, 0, 16, 16, names.len() as u32].into_iter().chain(int);
    bytes.extend(words.flat_map(u32::to_ne_bytes));
    bytes.extend(names);
    let request = Types { bytes: bytes.as_ptr() as u64, size: bytes.len() as u32, ..Types::default() };
    // SAFETY: the request points to `size` bytes that outlive the call.
    unsafe { opens(BTF_LOAD, &request) }
}

/// # Safety
/// The caller must pass a `key` and a `value` that point to at least as many readable bytes as the map's keys and values have.
unsafe fn update(map: &OwnedFd, key: *const u8, value: *const u8) -> io::Result<()> {
    let mut request = MapElement {
        map: map.as_raw_fd() as u32,
        padding: 0,
        key: key as u64,
        value: value as u64,
        flags: 0,
    };
    // SAFETY: the kernel reads one key and one value, for which the caller vouches.
    unsafe { call(MAP_UPDATE, &raw mut request) }.map(drop)
}

/// Runs a command that returns a file descriptor and writes nothing.
///
/// # Safety
/// The caller must fill in `request` as `command` requires, and every pointer in it must be valid for the call.
unsafe fn opens<T>(command: libc::c_long, request: &T) -> io::Result<OwnedFd> {
    // SAFETY: these commands do not write to the request; the caller vouches for the rest.
    let fd = unsafe { call(command, std::ptr::from_ref(request).cast_mut()) }?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// # Safety
/// The caller must pass a `request` of `size_of::<T>()` readable bytes, writable if `command` writes results to it. Every pointer in it
/// must be valid for the call.
unsafe fn call<T>(command: libc::c_long, request: *mut T) -> io::Result<libc::c_long> {
    // SAFETY: the caller vouches for the request.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, request, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
