//! The other processes of the interface. All have its queue pair 1, and each message of a peer comes to all. The process that has the
//! connection, or listens to the service, takes it in; of the others one answers requests without an owner.

use crate::abi::ibv_context;
use crate::address;
use crate::device::{Device, device_of, devices, function};
use crate::errno::{Errno, last};
use crate::id::Connection;
use crate::message::Mad;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The bits of a communication id below the process's slot.
const ID_BITS: u32 = 26;
/// The slots that there are.
const SLOTS: u32 = 64;

type Claim = unsafe extern "C" fn(*mut ibv_context, u64, *const [u8; 16], c_int, c_int) -> c_int;
type Answers = unsafe extern "C" fn(*mut ibv_context, u64, *const [u8; 16]) -> c_int;
type AnswersTo = unsafe extern "C" fn(*mut ibv_context, u32) -> c_int;
type Farewell =
    unsafe extern "C" fn(*mut ibv_context, u32, *const [u8; 16], *const [u8; 16], *const Mad) -> c_int;
type Slot = unsafe extern "C" fn(*mut ibv_context) -> c_int;

/// The functions for siblings that this project's libibverbs has.
#[derive(Clone, Copy)]
pub(crate) struct Siblings {
    slot: u32,
    claim: Claim,
    answers: Answers,
    answers_to: AnswersTo,
    farewell: Farewell,
}

/// A service at an address, as an identifier has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) service: u64,
    pub(crate) at: IpAddr,
    pub(crate) family_only: bool,
    pub(crate) shared: bool,
    pub(crate) listens: bool,
}

impl Siblings {
    /// `None` if the port is not on an interface that processes share.
    ///
    /// # Safety
    /// The context is open, and has queue pair 1.
    pub(crate) unsafe fn of(context: *mut ibv_context) -> Result<Option<Self>, Errno> {
        let [slot, claim, answers, answers_to, farewell] = [
            c"ferroce_siblings_slot",
            c"ferroce_siblings_claim",
            c"ferroce_siblings_answers",
            c"ferroce_siblings_answers_to",
            c"ferroce_siblings_farewell",
        ]
        .map(function);
        // SAFETY: the functions of these names have these types, in the library of the same project; the context is open.
        unsafe {
            let slot = std::mem::transmute::<*mut c_void, Slot>(slot?)(context);
            let slot = u32::try_from(slot).map_err(|_| last())?;
            let siblings = Self {
                slot,
                claim: std::mem::transmute::<*mut c_void, Claim>(claim?),
                answers: std::mem::transmute::<*mut c_void, Answers>(answers?),
                answers_to: std::mem::transmute::<*mut c_void, AnswersTo>(answers_to?),
                farewell: std::mem::transmute::<*mut c_void, Farewell>(farewell?),
            };
            Ok((slot < SLOTS).then_some(siblings))
        }
    }
}

impl Held {
    /// The devices whose other processes may have it too: all, if the address is the unspecified one.
    pub(crate) fn devices(&self) -> Result<impl Iterator<Item = &'static Device> + Clone, Errno> {
        let all = devices()?;
        let one = if address::is_any(self.at) { None } else { Some(device_of(self.at)?) };
        Ok(all.iter().filter(move |device| one.is_none_or(|one| std::ptr::eq(one, *device))))
    }
}

impl Device {
    /// A communication id of this process, from an unpredictable number.
    pub(crate) fn communication_id(&self, random: u32) -> u32 {
        let within = random & ((1 << ID_BITS) - 1);
        self.siblings.map_or(random, |siblings| siblings.slot << ID_BITS | within)
    }

    /// Takes a service before all other processes.
    pub(crate) fn claim(&self, held: &Held) -> Result<(), Errno> {
        if self.call_claim(held, true) < 0 { Err(last()) } else { Ok(()) }
    }

    /// Gives up what [`claim`](Self::claim) took.
    pub(crate) fn release(&self, held: &Held) {
        self.call_claim(held, false);
    }

    fn call_claim(&self, held: &Held, take: bool) -> c_int {
        let Some(siblings) = self.siblings else { return 0 };
        let at = match (address::is_any(held.at), held.at) {
            (true, IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
            (true, IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            (false, at) => at,
        };
        let flags = [held.family_only, held.shared, held.listens];
        let flags = flags.iter().enumerate().map(|(at, &flag)| c_int::from(flag) << at).sum();
        // SAFETY: the context is open, and the array lives through the call.
        unsafe { (siblings.claim)(self.context, held.service, &address::gid(at), flags, take.into()) }
    }

    /// Returns whether this process answers a request for a service that none of its identifiers listens to.
    pub(crate) fn answers_for(&self, service: u64, at: IpAddr) -> bool {
        let Some(siblings) = self.siblings else { return true };
        // SAFETY: the context is open, and the array lives through the call.
        unsafe { (siblings.answers)(self.context, service, &address::gid(at)) == 1 }
    }

    /// Returns whether this process answers a message to a communication id that is not one of its own.
    pub(crate) fn answers_to(&self, id: u32) -> bool {
        // SAFETY: the context is open.
        self.siblings.is_none_or(|siblings| unsafe { (siblings.answers_to)(self.context, id) == 1 })
    }

    /// If this process dies, another informs the peer that the connection has ended.
    pub(crate) fn remember(&self, connection: &Connection) {
        let (Some(siblings), Ok((source, destination))) = (self.siblings, connection.addresses()) else {
            return;
        };
        let (source, destination) = (address::gid(source), address::gid(destination));
        let mad = connection.disconnect_request();
        // SAFETY: the context is open, and the arrays live through the call. Refused, the peer finds out by itself.
        unsafe { (siblings.farewell)(self.context, connection.local, &source, &destination, &mad) };
    }

    /// The connection has ended: its peer knows, or has been informed.
    pub(crate) fn forget(&self, local: u32) {
        let Some(siblings) = self.siblings.filter(|_| local != 0) else { return };
        let nothing = std::ptr::null();
        // SAFETY: the context is open; null ends it.
        unsafe { (siblings.farewell)(self.context, local, nothing, nothing, std::ptr::null()) };
    }
}
