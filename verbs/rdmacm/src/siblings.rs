//! The other processes of the interface. All have its queue pair 1, and each message of a peer comes to all. The process that has the
//! connection, or listens to the service, takes it in; of the others one answers requests without an owner.

use crate::abi::ibv_context;
use crate::address;
use crate::claim::Claim;
use crate::device::{Device, device_of, devices, function};
use crate::errno::{Errno, last};
use crate::message::Mad;
use std::ffi::{c_int, c_void};
use std::net::IpAddr;

/// The bits of a communication id below the process's slot.
const ID_BITS: u32 = 26;
/// The slots that there are.
const SLOTS: u32 = 64;

type CallClaim = unsafe extern "C" fn(*mut ibv_context, u64, *const [u8; 16], c_int, c_int) -> c_int;
type Answers = unsafe extern "C" fn(*mut ibv_context, u64, *const [u8; 16]) -> c_int;
type AnswersTo = unsafe extern "C" fn(*mut ibv_context, u32) -> c_int;
type Farewell =
    unsafe extern "C" fn(*mut ibv_context, u32, *const [u8; 16], *const [u8; 16], *const Mad) -> c_int;
type Slot = unsafe extern "C" fn(*mut ibv_context) -> c_int;

/// The functions for siblings that this project's libibverbs has.
#[derive(Clone, Copy)]
pub(crate) struct Siblings {
    slot: u32,
    claim: CallClaim,
    answers: Answers,
    answers_to: AnswersTo,
    farewell: Farewell,
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
                claim: std::mem::transmute::<*mut c_void, CallClaim>(claim?),
                answers: std::mem::transmute::<*mut c_void, Answers>(answers?),
                answers_to: std::mem::transmute::<*mut c_void, AnswersTo>(answers_to?),
                farewell: std::mem::transmute::<*mut c_void, Farewell>(farewell?),
            };
            Ok((slot < SLOTS).then_some(siblings))
        }
    }
}

impl Claim {
    /// The devices whose other processes may have it too: all, if the address is the unspecified one.
    pub(crate) fn devices(&self) -> Result<impl Iterator<Item = &'static Device> + Clone, Errno> {
        let (all, one) = match self.at.is_unspecified() {
            true => (devices()?, None),
            false => (&[][..], Some(device_of(self.at)?)),
        };
        Ok(all.iter().chain(one))
    }
}

impl Device {
    /// A communication id of this process, from an unpredictable number.
    pub(crate) fn communication_id(&self, random: u32) -> u32 {
        let within = random & ((1 << ID_BITS) - 1);
        self.siblings.map_or(random, |siblings| siblings.slot << ID_BITS | within)
    }

    /// Takes a service before all other processes.
    pub(crate) fn claim(&self, claim: &Claim) -> Result<(), Errno> {
        if self.call_claim(claim, true) < 0 { Err(last()) } else { Ok(()) }
    }

    /// Gives up what [`claim`](Self::claim) took.
    pub(crate) fn release(&self, claim: &Claim) {
        self.call_claim(claim, false);
    }

    fn call_claim(&self, claim: &Claim, take: bool) -> c_int {
        let Some(siblings) = self.siblings else { return 0 };
        let flags = [claim.family_only, claim.shared, claim.listens];
        let flags = flags.iter().enumerate().map(|(at, &flag)| c_int::from(flag) << at).sum();
        // SAFETY: the context is open, and the array lives through the call.
        unsafe { (siblings.claim)(self.context, claim.service, &address::gid(claim.at), flags, take.into()) }
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

    /// If this process dies, another sends this DREQ.
    pub(crate) fn remember(&self, local: u32, from: IpAddr, to: IpAddr, disconnect_request: &Mad) {
        let Some(siblings) = self.siblings else { return };
        let (from, to) = (address::gid(from), address::gid(to));
        // SAFETY: the context is open, and the arrays live through the call. Refused, the peer finds out by itself.
        unsafe { (siblings.farewell)(self.context, local, &from, &to, disconnect_request) };
    }

    /// The connection has ended: its peer knows, or has been informed.
    pub(crate) fn forget(&self, local: u32) {
        let Some(siblings) = self.siblings.filter(|_| local != 0) else { return };
        let nothing = std::ptr::null();
        // SAFETY: the context is open; null ends it.
        unsafe { (siblings.farewell)(self.context, local, nothing, nothing, std::ptr::null()) };
    }
}
