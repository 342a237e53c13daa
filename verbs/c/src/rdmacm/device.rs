//! The devices of the process, opened once and kept open, as in librdmacm.

use crate::abi::*;
use crate::ibverbs::context::Context;
use crate::ibverbs::{ibv_free_device_list, ibv_get_device_guid, ibv_get_device_list, ibv_open_device};
use crate::rdmacm::address;
use crate::rdmacm::errno::{Errno, INVALID, made};
use crate::rdmacm::process::PerProcess;
use datapath::siblings::{Claim, ClaimError, Siblings};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use verbs::Qpn;
use verbs::cm::machine::Machine;
use verbs::cm::machine::message::{Mad, SMALLEST_MTU, Sent};
use verbs::management::ManagementPort;
use verbs::port::GidTable;

/// The largest number of READs and atomics in flight.
pub(crate) const MAX_RD_ATOMIC: u8 = 16;

/// A device's queue pair 1. No method blocks.
pub(crate) trait ManagementQueuePair: Send + Sync {
    /// Sends a datagram, also from an address that the device has lost.
    fn send(&self, from: IpAddr, to: IpAddr, mad: &Mad) -> Result<Sent, Errno>;
    /// Returns whether a peer's Ethernet address is resolved. Starts to resolve it if not. Returns an error if the peer does not answer.
    fn poll_resolution(&self, peer: IpAddr) -> Result<bool, Errno>;
    /// Returns the oldest received datagram and its sender.
    fn receive(&self) -> Option<(IpAddr, Mad)>;
    /// Moves a queue pair whose connection has ended to the error state. Does nothing if the queue pair was destroyed.
    fn end(&self, qpn: u32);
    /// Returns the device's current addresses.
    fn gids(&self) -> GidTable;
    /// Returns the code of the active path MTU.
    fn mtu(&self) -> u8;
    /// Returns whether the device has stopped, for example because its interface was removed.
    fn has_ended(&self) -> bool {
        false
    }
    /// Returns the other processes on the device's interface, if processes share it.
    fn siblings(&self) -> Option<&Siblings> {
        None
    }
}

impl ManagementQueuePair for ManagementPort {
    fn send(&self, from: IpAddr, to: IpAddr, mad: &Mad) -> Result<Sent, Errno> {
        Ok(ManagementPort::send(self, from, to, *mad)?)
    }

    fn poll_resolution(&self, peer: IpAddr) -> Result<bool, Errno> {
        // A host that forges source addresses could otherwise fill the log.
        ManagementPort::poll_resolution(self, peer).map_err(Errno::without_log)
    }

    fn receive(&self) -> Option<(IpAddr, Mad)> {
        // A stopped core returns no datagrams.
        ManagementPort::receive(self).unwrap_or_default()
    }

    fn end(&self, qpn: u32) {
        let _ = ManagementPort::end(self, Qpn::new(qpn & 0xff_ffff));
    }

    fn gids(&self) -> GidTable {
        ManagementPort::gids(self)
    }

    fn mtu(&self) -> u8 {
        self.path_mtu().code()
    }

    fn has_ended(&self) -> bool {
        ManagementPort::has_ended(self)
    }

    fn siblings(&self) -> Option<&Siblings> {
        ManagementPort::siblings(self)
    }
}

/// An object of libibverbs for programs that pass none. It exists as long as the process, as the device does.
pub(crate) struct ProcessObject<T>(OnceLock<Result<*mut T, Errno>>);

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl<T> Send for ProcessObject<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for ProcessObject<T> {}

impl<T> ProcessObject<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Returns an object whose creation failed.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn missing() -> Self {
        Self(OnceLock::from(Err(Errno(libc::ENOMEM))))
    }

    /// Returns the object. Creates it by `make` at the first call.
    pub(crate) fn get_or_create(
        &self,
        make: impl FnOnce() -> Result<*mut T, Errno>,
    ) -> Result<*mut T, Errno> {
        *self.0.get_or_init(make)
    }
}

pub(crate) struct Device {
    pub(crate) context: *mut ibv_context,
    /// Descriptor that is readable while datagrams are queued.
    pub(crate) descriptor: RawFd,
    pub(crate) management: Box<dyn ManagementQueuePair>,
    pub(crate) domain: ProcessObject<ibv_pd>,
    pub(crate) xrc_domain: ProcessObject<ibv_xrcd>,
    pub(crate) machine: Mutex<Machine<Self>>,
}

// SAFETY: the context is libibverbs', which any thread may use, and is never closed.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

static DEVICES: PerProcess<Result<Vec<Device>, Errno>> = PerProcess::new();

#[cfg(any(test, fuzzing))]
pub(crate) fn replace(devices: impl IntoIterator<Item = Device>) -> &'static [Device] {
    DEVICES.cell().get_or_init(|| Ok(devices.into_iter().collect())).as_ref().unwrap()
}

/// Returns all devices, at least one, or `ENODEV` if there is none.
pub(crate) fn devices() -> Result<&'static [Device], Errno> {
    DEVICES.cell().get_or_init(Device::open_all).as_deref().map_err(|errno| *errno)
}

pub(crate) fn device_of(ours: IpAddr) -> Result<&'static Device, Errno> {
    #[cfg(any(test, fuzzing))]
    if let Some(device) = crate::rdmacm::test_environment::server_of(ours) {
        return Ok(device);
    }
    let has = |device: &&Device| device.gids().contains(ours);
    devices()?.iter().find(has).ok_or(Errno(libc::EADDRNOTAVAIL))
}

/// Returns the device with the context at this address; `None` for 0.
pub(crate) fn device_with(context: usize) -> Option<&'static Device> {
    let is_it = |device: &&Device| context != 0 && device.context.addr() == context;
    #[cfg(any(test, fuzzing))]
    if let Some(device) = crate::rdmacm::test_environment::server_where(is_it) {
        return Some(device);
    }
    devices().ok()?.iter().find(is_it)
}

/// Returns the device for a peer, our address on it, and the peer's address. First choice is the device that has the peer's address itself,
/// second the device of the kernel's route. The last choice is the device whose address has the most leading bits in common with the
/// peer's.
pub(crate) fn route(peer: IpAddr) -> Result<(&'static Device, IpAddr, IpAddr), Errno> {
    let devices = devices()?;
    let leads = |device: &'static Device| {
        let to = device.destination(peer)?;
        Ok((device, device.address_towards(to)?, to))
    };
    if let [only] = devices {
        return leads(only);
    }
    let mut routes = devices.iter().filter_map(|device| leads(device).ok());
    if address::is_any(peer) {
        return routes.next().ok_or(Errno(libc::ENODEV));
    }
    if let Ok(device) = device_of(peer) {
        return leads(device);
    }
    if let Ok(from) = address::kernel_source(peer)
        && let Ok(device) = device_of(from)
    {
        return Ok((device, from, peer));
    }
    // The first of several equal ones.
    let nearest = routes.rev().max_by_key(|(_, from, to)| address::common_bits(*from, *to));
    nearest.ok_or(Errno(libc::ENETUNREACH))
}

/// Returns the devices on which other processes may have a conflicting claim: all for the unspecified address, else the device with the
/// address.
pub(crate) fn devices_of(claim: &Claim) -> Result<impl Iterator<Item = &'static Device> + Clone, Errno> {
    let (all, one) = match claim.at.is_unspecified() {
        true => (devices()?, None),
        false => (&[][..], Some(device_of(claim.at)?)),
    };
    Ok(all.iter().chain(one))
}

impl Device {
    /// Opens all devices of libibverbs. Omits those that cannot be opened, and fails if none can.
    fn open_all() -> Result<Vec<Self>, Errno> {
        // SAFETY: the list is null or ends with null, and is freed once.
        unsafe {
            let list = made(ibv_get_device_list(std::ptr::null_mut()))?;
            let places = (0..).map(|at| *list.add(at)).take_while(|device| !device.is_null());
            let (opened, failed): (Vec<_>, Vec<_>) =
                places.map(|device| Self::open(device)).partition(Result::is_ok);
            ibv_free_device_list(list);
            let opened: Vec<_> = opened.into_iter().flatten().collect();
            match (opened.is_empty(), failed.into_iter().find_map(Result::err)) {
                (true, errno) => Err(errno.unwrap_or(Errno(libc::ENODEV))),
                (false, _) => Ok(opened),
            }
        }
    }

    /// # Safety
    /// The caller must pass a device of a list that has not been freed.
    unsafe fn open(device: *mut ibv_device) -> Result<Self, Errno> {
        // SAFETY: guaranteed by the caller.
        let (context, guid) =
            unsafe { (made(ibv_open_device(device))?, ibv_get_device_guid(device).to_ne_bytes()) };
        // SAFETY: the context was opened above.
        let management = unsafe { Context::from(context) }?.device.open_management()?;
        let (descriptor, management) = (management.as_raw_fd(), Box::new(management));
        let (domain, xrc_domain) = (ProcessObject::new(), ProcessObject::new());
        let machine = Mutex::new(Machine::new(guid, management.mtu(), MAX_RD_ATOMIC));
        Ok(Self { context, descriptor, management, domain, xrc_domain, machine })
    }

    pub(crate) fn gids(&self) -> GidTable {
        self.management.gids()
    }

    pub(crate) fn mtu(&self) -> u8 {
        self.management.mtu()
    }

    /// Locks the connections of this process. A thread that locks both locks an identifier's connection first.
    pub(crate) fn machine(&self) -> MutexGuard<'_, Machine<Self>> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send(&self, from: IpAddr, to: IpAddr, mad: &Mad) -> Result<Sent, Errno> {
        self.management.send(from, to, mad)
    }

    pub(crate) fn poll_resolution(&self, peer: IpAddr) -> Result<bool, Errno> {
        self.management.poll_resolution(peer)
    }

    pub(crate) fn receive(&self) -> Option<(IpAddr, Mad)> {
        self.management.receive()
    }

    /// Claims a service among all processes of the interface.
    pub(crate) fn claim(&self, claim: &Claim) -> Result<(), Errno> {
        let Some(siblings) = self.management.siblings() else { return Ok(()) };
        siblings.claim(claim).map_err(|error| {
            // The errno contains neither the process with the service nor the remedy.
            if !matches!(error, ClaimError::Taken { .. }) {
                tracing::error!("service {:#x}: {error}", claim.service);
            }
            Errno(error.errno())
        })
    }

    pub(crate) fn release(&self, claim: &Claim) {
        if let Some(siblings) = self.management.siblings() {
            siblings.release(claim);
        }
    }

    pub(crate) fn gid_index(&self, ip: IpAddr) -> Result<u8, Errno> {
        self.gids().position(ip).and_then(|index| u8::try_from(index).ok()).ok_or(Errno(libc::EADDRNOTAVAIL))
    }

    /// Returns our address for a peer: the first of its family. A link-local peer requires a link-local address; a group accepts any.
    pub(crate) fn address_towards(&self, peer: IpAddr) -> Result<IpAddr, Errno> {
        let gids = self.gids();
        let same = |ip: &IpAddr| ip.is_ipv4() == peer.is_ipv4() && is_link_local(ip) == is_link_local(&peer);
        let family = |ip: &IpAddr| peer.is_multicast() && ip.is_ipv4() == peer.is_ipv4();
        let found = gids.addresses().find(same).or_else(|| gids.addresses().find(family));
        found.ok_or(Errno(libc::ENETUNREACH))
    }

    /// Returns the destination for an address of the program: the loopback and the unspecified address select this device itself.
    pub(crate) fn destination(&self, wanted: IpAddr) -> Result<IpAddr, Errno> {
        if !address::is_any(wanted) {
            return Ok(wanted);
        }
        let gids = self.gids();
        let ours = gids.addresses().filter(|ip| ip.is_ipv4() == wanted.is_ipv4());
        ours.min_by_key(is_link_local).ok_or(Errno(libc::ENODEV))
    }
}

fn is_link_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns `EINVAL` unless the port carries the path MTU with code `mtu`.
pub(crate) fn check_mtu(device: &Device, mtu: u8) -> Result<(), Errno> {
    if (SMALLEST_MTU..=device.mtu()).contains(&mtu) { Ok(()) } else { Err(INVALID) }
}
