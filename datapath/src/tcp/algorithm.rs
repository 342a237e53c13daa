//! The TCP congestion control algorithm that is registered with the kernel: its flows, and the leases that user space grants them.

use super::TcpError;
use super::programs::KernelLayout;
use crate::bpf::btf::{self, Btf};
use crate::bpf::call::{Map, Plain, Structure, load_member};
use cc::Rate;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Most flows that are reported at a time. CUBIC controls further ones.
pub const MAX_FLOWS: usize = 1024;

const OPS: &str = "tcp_congestion_ops";
const VALUE: &str = "bpf_struct_ops_tcp_congestion_ops";
const NEWER: &str = "Linux 6.6 or newer with CONFIG_BPF_JIT and CONFIG_DEBUG_INFO_BTF has it";
/// Any user in any network namespace may select the algorithm (`TCP_CONG_NON_RESTRICTED`).
const FLAGS: u32 = 1;

/// A flow as the eBPF programs report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Local address.
    pub local: SocketAddrV4,
    /// Remote address.
    pub remote: SocketAddrV4,
    /// Time at which the flow was established, or data was last acknowledged, in ns of CLOCK_MONOTONIC.
    pub touched: u64,
    /// The first unacknowledged sequence number.
    pub acknowledged: u32,
    /// The next sequence number to send.
    pub next: u32,
    /// Maximum segment size: payload bytes of a full segment.
    pub segment: u32,
}

/// Window and pacing rate of a flow, with an expiry time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The pacing rate of the payload.
    pub rate: Rate,
    /// The congestion window in segments, at least 1.
    pub window: u32,
    /// Expiry time in ns of CLOCK_MONOTONIC.
    pub until: u64,
}

/// A flow's key in the maps, with the field order of `struct sock_common`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Key {
    remote: [u8; 4],
    local: [u8; 4],
    remote_port: [u8; 2],
    local_port: u16,
    zero: u32,
}

// SAFETY: three arrays of bytes, a u16 at offset 10 and a u32 at offset 12 leave no padding, and any bytes are valid.
unsafe impl Plain for Key {}

impl Key {
    fn new(local: SocketAddrV4, remote: SocketAddrV4) -> Self {
        Self {
            remote: remote.ip().octets(),
            local: local.ip().octets(),
            remote_port: remote.port().to_be_bytes(),
            local_port: local.port(),
            zero: 0,
        }
    }
}

/// A map entry that `programs::report` writes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Report {
    touched: u64,
    acknowledged: u32,
    next: u32,
    segment: u32,
    zero: u32,
}

// SAFETY: a u64 and four u32 leave no padding, and any bytes are valid.
unsafe impl Plain for Report {}

impl Flow {
    fn new(key: &Key, report: &Report) -> Self {
        Self {
            local: SocketAddrV4::new(Ipv4Addr::from(key.local), key.local_port),
            remote: SocketAddrV4::new(Ipv4Addr::from(key.remote), u16::from_be_bytes(key.remote_port)),
            touched: report.touched,
            acknowledged: report.acknowledged,
            next: report.next,
            segment: report.segment,
        }
    }
}

/// A map entry that `programs::avoid` reads.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct LeaseEntry {
    bytes_per_second: u32,
    window: u32,
    until: u64,
}

// SAFETY: two u32 and a u64 leave no padding, and any bytes are valid.
unsafe impl Plain for LeaseEntry {}

/// A congestion control algorithm of a network namespace. Dropping it unregisters it. Flows that use it keep it, and follow CUBIC from then
/// on.
#[derive(Debug)]
pub struct Algorithm {
    name: String,
    flows: Map<Key, Report>,
    leases: Map<Key, LeaseEntry>,
    keys: Vec<Key>,
    reports: Vec<Report>,
    _link: OwnedFd,
}

impl Algorithm {
    /// Returns the algorithm's name in the calling thread's network namespace. Every process that paces that namespace uses this name.
    ///
    /// # Errors
    /// Returns the error of reading `/proc`.
    pub fn name_here() -> io::Result<String> {
        std::fs::metadata("/proc/thread-self/ns/net")
            .map(|space| format!("hpcc_{}", space.ino() % 10_000_000_000))
    }

    /// Registers the algorithm under `name`.
    ///
    /// # Errors
    /// Returns an error if the kernel lacks a feature, refuses permission, or already has an algorithm of this name.
    pub fn register(name: &str) -> Result<Self, TcpError> {
        let btf = Btf::of_kernel().map_err(TcpError::of(btf::KERNEL, NEWER))?;
        let lacks = |what| TcpError::Lacks { what, remedy: NEWER };
        let kernel = KernelLayout::find(&btf).map_err(|what| TcpError::Lacks {
            what,
            remedy: "Linux 6.6 or newer with CONFIG_TCP_CONG_CUBIC=y and CONFIG_DEBUG_INFO_BTF has it",
        })?;
        let map = TcpError::of("eBPF maps", NEWER);
        let flows: Map<Key, Report> = Map::new(MAX_FLOWS as u32).map_err(&map)?;
        let leases: Map<Key, LeaseEntry> = Map::new(MAX_FLOWS as u32).map_err(&map)?;
        let (ops, _) = btf.structure(OPS).ok_or(lacks(OPS))?;
        let (value, size) = btf.structure(VALUE).ok_or(lacks(VALUE))?;
        let (_, data) = btf.member(value, "data").ok_or(lacks(VALUE))?;
        let mut bytes = vec![0; size];
        let mut put = |member: &'static str, what: &[u8]| {
            let (index, offset) = btf.member(ops, member).ok_or(lacks(member))?;
            let place = bytes.get_mut(data + offset..data + offset + what.len()).ok_or(lacks(member))?;
            place.copy_from_slice(what);
            Ok::<u32, TcpError>(index)
        };
        put("name", name.as_bytes())?;
        put("flags", &FLAGS.to_ne_bytes())?;
        let mut loaded = Vec::new();
        for (member, program) in kernel.programs(flows.number(), leases.number()) {
            let index = put(member, &[])?;
            let program = load_member(&program, index, ops)
                .map_err(TcpError::of("congestion control by eBPF (struct_ops)", NEWER))?;
            put(member, &(program.as_raw_fd() as u64).to_ne_bytes())?;
            loaded.push(program);
        }
        let refused = TcpError::of("a map of tcp_congestion_ops", NEWER);
        let link = Structure::new(value, &bytes).map_err(refused)?.register().map_err(|error| match error
            .raw_os_error()
        {
            Some(libc::EEXIST) => TcpError::Taken { name: name.to_owned() },
            _ => TcpError::of("a link to tcp_congestion_ops", NEWER)(error),
        })?;
        Ok(Self {
            name: name.to_owned(),
            flows,
            leases,
            keys: vec![Key::default(); MAX_FLOWS],
            reports: vec![Report::default(); MAX_FLOWS],
            _link: link,
        })
    }

    /// Returns the name under which the algorithm is registered.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns all flows that use the algorithm, in any order.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn flows(&mut self) -> io::Result<impl Iterator<Item = Flow> + '_> {
        let count = self.flows.read(&mut self.keys, &mut self.reports)?;
        Ok(self.keys.iter().zip(&self.reports).take(count).map(|(key, report)| Flow::new(key, report)))
    }

    /// Returns the flow between these addresses, if it uses the algorithm. A connection uses it from its establishment until it is closed,
    /// on the sending and on the receiving side.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn flow(&self, local: SocketAddrV4, remote: SocketAddrV4) -> io::Result<Option<Flow>> {
        let key = Key::new(local, remote);
        Ok(self.flows.get(&key)?.map(|report| Flow::new(&key, &report)))
    }

    /// Applies a lease to a flow, starting with its next acknowledgement.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn lease(&self, flow: &Flow, lease: Lease) -> io::Result<()> {
        let key = Key::new(flow.local, flow.remote);
        let entry = LeaseEntry {
            // All ones means unlimited, also for a rate that does not fit.
            bytes_per_second: u32::try_from(lease.rate.as_bps() / 8).unwrap_or(u32::MAX).max(1),
            window: lease.window.max(1),
            until: lease.until,
        };
        self.leases.insert(&key, &entry)
    }
}
