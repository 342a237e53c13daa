//! The steps from a port's name to a running DPDK device.

use super::descriptor;
use super::devargs::{devargs, memif_buffer, packet_ring, slot_size};
use super::device::{device_info, link};
use super::eal;
use super::hash::Hash;
use super::log;
use super::packet_ring::TransmitRing;
use super::pool::Pool;
use super::port_info::{LinuxInterface, PortConfig, PortInfo};
use super::prepare::{PortError, Prepared};
use super::unprivileged;
use super::xdp::{self, Attachment};
use crate::port_spec::{PortSpec, RingEnd, SocketRole};
use crate::socket_option;
use dpdk_sys as dpdk;
use roce::wire::Mac;
use std::ffi::{CStr, CString, c_int};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

const ANY_SOCKET: c_int = -1;

/// Returns the size in bytes of a buffer for frames of `max_frame` bytes on a port of this kind.
pub(super) fn room(spec: &PortSpec, max_frame: usize) -> usize {
    match spec {
        // The driver refuses buffers smaller than a slot of its ring.
        PortSpec::AfPacket(_) => slot_size(max_frame),
        PortSpec::Xdp(_) => xdp::HEADROOM + max_frame,
        // NICs round the buffer size: the oldest to powers of two, others to KiB. They split a longer frame over several buffers.
        PortSpec::Pci(_) => max_frame.next_power_of_two().max(2048),
        _ => memif_buffer(max_frame).max(2048),
    }
}

pub(super) struct Setup<'a> {
    pub(super) spec: &'a PortSpec,
    pub(super) config: &'a PortConfig,
    pub(super) prepared: &'a Prepared,
    pub(super) connection: Option<(SocketRole, String)>,
    pub(super) xdp: Option<&'a Attachment>,
    pub(super) max_frame: usize,
}

impl Setup<'_> {
    fn failed(&self, step: &'static str, errno: c_int, messages: String) -> PortError {
        let messages = if messages.is_empty() { "DPDK says no more".into() } else { messages };
        PortError::Driver { port: self.spec.to_string(), step, errno: eal::words(errno), messages }
    }

    fn call(&self, step: &'static str, f: impl FnOnce() -> c_int) -> Result<(), PortError> {
        let (result, messages) = log::errors_of(f);
        if result < 0 { Err(self.failed(step, result, messages)) } else { Ok(()) }
    }

    fn text(&self, text: String) -> Result<CString, PortError> {
        CString::new(text).map_err(|_| self.failed("its name", libc::EINVAL, "it contains a NUL".into()))
    }

    /// Returns this process's open sockets of the kind that the port's driver opens.
    pub(super) fn sockets(&self) -> Vec<RawFd> {
        match (self.spec, &self.prepared.interface) {
            (PortSpec::Xdp(_), _) => descriptor::xdp_sockets(),
            (PortSpec::AfPacket(_), Some(interface)) => descriptor::packet_sockets(interface.index),
            _ => Vec::new(),
        }
    }

    pub(super) fn new_socket(&self, before: &[RawFd]) -> Option<RawFd> {
        let socket = self.sockets().into_iter().find(|fd| !before.contains(fd))?;
        self.own(socket);
        Some(socket)
    }

    /// Closes the port's socket in forked children, and makes a packet socket promiscuous if the configuration requires it.
    fn own(&self, socket: RawFd) {
        descriptor::keep_to_this_process(socket);
        let is_packet = matches!(self.spec, PortSpec::AfPacket(_));
        let interface = self.prepared.interface.as_ref().filter(|_| self.config.promiscuous && is_packet);
        if let Some(interface) = interface
            && let Err(error) = socket_option::receive_all_addresses(&socket, interface.index)
        {
            tracing::warn!("{}: cannot receive frames for other addresses: {error}", self.spec);
        }
    }

    pub(super) fn transmit_ring(&self, socket: RawFd) -> Option<TransmitRing> {
        let (slot, slots) = packet_ring(self.max_frame, self.config);
        // SAFETY: the driver has just created this ring as requested, and the port closes it only when it is dropped.
        unsafe { TransmitRing::of(socket, slot, slots) }
    }

    pub(super) fn probe(&self) -> Result<u16, PortError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (driver, mut arguments) =
            devargs(self.spec, self.connection.as_ref(), self.max_frame, self.config);
        self.xdp.into_iter().for_each(|xdp| arguments += &xdp.arguments());
        let device = match self.spec {
            PortSpec::Ring { name, end } => return self.ring(name, *end),
            PortSpec::Pci(_) | PortSpec::Eal(_) => driver,
            // The drivers of memif and tap accept only a number after the driver's name.
            PortSpec::AfPacket(_) => {
                format!("{driver}{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
            }
            _ => format!("{driver}{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        };
        let whole = if arguments.is_empty() { device.clone() } else { format!("{device},{arguments}") };
        let (device, whole) = (self.text(device)?, self.text(whole)?);
        let mut id = 0;
        // SAFETY: the EAL runs, and both pointers are NUL-terminated strings that outlive the calls.
        let found = || unsafe { dpdk::rte_eth_dev_get_port_by_name(device.as_ptr(), &mut id) };
        // SAFETY: see `found`.
        let make = || unsafe { dpdk::rte_dev_probe(whole.as_ptr()) };
        self.call("making the device", || match self.spec {
            PortSpec::AfPacket(_) => unprivileged::without_interface_changes(make).unwrap_or(-libc::EAGAIN),
            _ => make(),
        })?;
        self.call("finding the device's port", found)?;
        Ok(id)
    }

    fn ring(&self, name: &str, end: Option<RingEnd>) -> Result<u16, PortError> {
        let (receive, send) = match end {
            None => ("l", "l"),
            Some(RingEnd::A) => ("b", "a"),
            Some(RingEnd::B) => ("a", "b"),
        };
        let mut rx = [self.ring_of(name, receive)?];
        let mut tx = [self.ring_of(name, send)?];
        let end = end.map_or("", |end| if end == RingEnd::A { "_a" } else { "_b" });
        let device = self.text(format!("{name}{end}"))?;
        let mut id = 0;
        self.call("making the rings' port (is it open already?)", || {
            // SAFETY: each array has one ring, which lives for the whole process; the name is a NUL-terminated string.
            id = unsafe {
                dpdk::rte_eth_from_rings(device.as_ptr(), rx.as_mut_ptr(), 1, tx.as_mut_ptr(), 1, 0)
            };
            if id < 0 { -libc::EEXIST } else { 0 }
        })?;
        Ok(id as u16)
    }

    /// Returns the ring of that name, which both ends of a pair use. It lives for the whole process.
    fn ring_of(&self, name: &str, towards: &str) -> Result<*mut dpdk::rte_ring, PortError> {
        let text = self.text(format!("fr_{name}_{towards}"))?;
        let slots = u32::from(self.config.ring_slots.clamp(64, 1 << 14)).next_power_of_two();
        let one_each_side = dpdk::RING_F_SP_ENQ | dpdk::RING_F_SC_DEQ;
        // SAFETY: the EAL runs, and the name is a NUL-terminated string.
        let ring = unsafe {
            let known = dpdk::rte_ring_lookup(text.as_ptr());
            if known.is_null() {
                dpdk::rte_ring_create(text.as_ptr(), slots, ANY_SOCKET, one_each_side)
            } else {
                known
            }
        };
        if ring.is_null() {
            Err(self.failed("making its ring", libc::ENOMEM, eal::errno()))
        } else {
            Ok(ring)
        }
    }

    /// Sets up a receive and a transmit queue for each pool, sets the MTU if the driver supports it, and starts the port. `hash`
    /// distributes received frames over the queues.
    pub(super) fn start(&self, id: u16, pools: &[&Pool], hash: Option<&Hash>) -> Result<(), PortError> {
        let device = device_info(id);
        let mtu = self.prepared.mtu;
        let device_mtu = match self.spec {
            PortSpec::Pci(_) | PortSpec::Eal(_) | PortSpec::Virtio { .. } => {
                mtu.clamp(device.min_mtu, device.max_mtu.max(device.min_mtu)).into()
            }
            _ => 0,
        };
        let (key, flows) = hash.map_or((&[][..], 0), |hash| (&hash.key, hash.flows));
        let count = pools.len() as u16;
        // SAFETY: the port exists, and the key has the given length.
        self.call("configuring it", || unsafe {
            dpdk::ferroce_configure(id, count, device_mtu, key.as_ptr(), key.len() as u8, flows)
        })?;
        (0..).zip(pools).try_for_each(|(queue, pool)| self.set_up_queue(id, queue, pool))?;
        if matches!(self.spec, PortSpec::Tap(_)) {
            // SAFETY: the port is configured.
            self.call("setting its MTU", || unsafe { dpdk::rte_eth_dev_set_mtu(id, mtu) })?;
        }
        // SAFETY: the port is configured and its queues are set up.
        let start = || unsafe { dpdk::rte_eth_dev_start(id) };
        self.call("starting it", || match self.spec {
            PortSpec::AfPacket(_) | PortSpec::Xdp(_) => {
                unprivileged::without_interface_changes(start).unwrap_or(-libc::EAGAIN)
            }
            _ => start(),
        })?;
        // For a Linux interface, `own` makes the packet socket promiscuous.
        if self.config.promiscuous && !matches!(self.spec, PortSpec::AfPacket(_)) {
            // SAFETY: the port is started. A driver without an address filter returns ENOTSUP; it receives all frames anyway.
            unsafe { dpdk::rte_eth_promiscuous_enable(id) };
        }
        if matches!(self.spec, PortSpec::Pci(_)) {
            // Neighbour discovery and multicast groups require these frames.
            // SAFETY: the port is started. A driver without such a filter returns ENOTSUP.
            unsafe { dpdk::rte_eth_allmulticast_enable(id) };
        }
        hash.map_or(Ok(()), |hash| self.call("setting its redirection table", || hash.set_table(id)))
    }

    fn set_up_queue(&self, id: u16, queue: u16, pool: &Pool) -> Result<(), PortError> {
        let (mut receive, mut send) = match self.spec {
            // The tap driver allocates a buffer for each descriptor, but fills one frame at a time.
            PortSpec::Tap(_) => (2, self.config.ring_slots),
            _ => (self.config.ring_slots, self.config.ring_slots),
        };
        self.call("sizing its queues", || {
            // SAFETY: the port exists, and both numbers outlive the call.
            unsafe { dpdk::rte_eth_dev_adjust_nb_rx_tx_desc(id, &mut receive, &mut send) }
        })?;
        self.call("setting up its receive queue", || {
            // SAFETY: the port is configured with this queue, a null configuration selects the driver's default, and the device keeps the
            // pool alive.
            unsafe {
                dpdk::rte_eth_rx_queue_setup(id, queue, receive, ANY_SOCKET as u32, ptr::null(), pool.raw())
            }
        })?;
        self.call("setting up its transmit queue", || {
            // SAFETY: the port is configured with this queue, and a null configuration selects the driver's default.
            unsafe { dpdk::rte_eth_tx_queue_setup(id, queue, send, ANY_SOCKET as u32, ptr::null()) }
        })
    }

    pub(super) fn info(&self, id: u16) -> PortInfo {
        let device = device_info(id);
        let driver = if device.driver_name.is_null() {
            "unknown".to_owned()
        } else {
            // SAFETY: a driver's name is a static NUL-terminated string, and drivers are never unloaded.
            unsafe { CStr::from_ptr(device.driver_name) }.to_string_lossy().into_owned()
        };
        let interface = self.prepared.interface.as_ref();
        PortInfo {
            name: self.spec.to_string(),
            driver,
            mac: Mac::default(),
            mtu: crate::path_mtu::path_mtu(self.prepared.mtu.into()),
            ip_mtu: self.prepared.mtu,
            max_frame: self.max_frame,
            speed_mbps: interface.and_then(|interface| interface.speed_mbps).or_else(|| self.speed(id)),
            numa_node: numa_node(self.spec),
            linux_interface: interface.map(|i| LinuxInterface { index: i.index, name: i.name.clone() }),
            peer_mac: None,
        }
    }

    /// Returns the speed of a NIC in Mb/s. Software drivers report a meaningless constant.
    fn speed(&self, id: u16) -> Option<u32> {
        let speed = match self.spec {
            PortSpec::Pci(_) => link(id).speed,
            _ => 0,
        };
        (speed != 0 && speed != u32::MAX).then_some(speed)
    }

    /// Returns the port's Ethernet address. Sets a different one on the kernel's side of a tap: behind a bridge, frames to the kernel's
    /// address would be delivered to the bridge's host.
    pub(super) fn addresses(&self, id: u16) -> Result<Mac, PortError> {
        let mut address = dpdk::rte_ether_addr::default();
        // SAFETY: the port exists, and `address` has room for the result.
        self.call("reading its address", || unsafe { dpdk::rte_eth_macaddr_get(id, &mut address) })?;
        let mut mac = Mac(address.addr_bytes);
        if let PortSpec::Ring { end: Some(RingEnd::B), .. } = self.spec {
            // The driver gives all rings the same address, and a frame to the sender's own address is never sent.
            mac.0[5] ^= 1;
        }
        if let PortSpec::Tap(name) = self.spec {
            let mut kernel = mac;
            kernel.0[5] ^= 0x80;
            crate::linux::set_mac(name, kernel).map_err(|e| PortError::Interface {
                name: name.clone(),
                why: format!("cannot set the address of the kernel's side: {e}"),
                remedy: crate::capabilities::remedy("CAP_NET_ADMIN"),
            })?;
        }
        Ok(mac)
    }
}

pub(super) fn numa_node(spec: &PortSpec) -> Option<u8> {
    let device = match spec {
        PortSpec::Pci(address) => format!("/sys/bus/pci/devices/{address}"),
        _ => format!("/sys/class/net/{}/device", spec.shared_interface()?),
    };
    // The file contains -1 if there is only one node.
    std::fs::read_to_string(device + "/numa_node").ok()?.trim().parse().ok()
}
