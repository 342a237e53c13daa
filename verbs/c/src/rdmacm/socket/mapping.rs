//! Memory of the program that the peer of a stream writes by `riowrite`, and the related calls.

use super::memory::Registered;
use super::sender::Write;
use super::stream::{Stream, StreamState};
use super::transfer::{is_blocking, readable};
use super::wire::{Greeting, Mapping, Message, Target};
use super::{Socket, socket};
use crate::abi::*;
use crate::ibverbs::{ibv_dereg_mr, ibv_reg_mr};
use crate::rdmacm::errno::{Errno, INVALID, made, size};
use libc::{off_t, size_t};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

/// The `offset` argument that selects the address of the memory as the offset.
const OWN_ADDRESS: off_t = -1;

/// Memory that the peer may write.
struct Mapped {
    start: *mut c_void,
    length: usize,
    region: NonNull<ibv_mr>,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: registered by `Mappings::add`, and deregistered once.
        unsafe { ibv_dereg_mr(self.region.as_ptr()) };
    }
}

/// The mappings of a stream's program, each at its index in the peer's table.
#[derive(Default)]
pub(super) struct Mappings {
    mapped: Vec<Option<Mapped>>,
    /// The memory from which table entries are sent, with a place for each index.
    entries: Option<Registered>,
    table: Target,
    big_endian: bool,
}

impl Mappings {
    /// Records the address of the peer's table, which follows its list.
    pub(super) fn on_greeting(&mut self, peer: &Greeting) {
        let list = u64::from(peer.list.length) * Target::SIZE as u64;
        let address = peer.list.address.wrapping_add(list);
        self.table = Target { address, length: peer.mappings.into(), ..peer.list };
        self.big_endian = peer.big_endian;
    }

    /// Registers memory at a free index. Returns the WRITE that announces it to the peer.
    ///
    /// # Safety
    /// The caller must ensure that the domain is alive, and that the program keeps the memory until it is removed.
    pub(super) unsafe fn add(
        &mut self,
        pd: *mut ibv_pd,
        start: *mut c_void,
        length: usize,
        offset: u64,
    ) -> Result<Write, Errno> {
        let places = self.table.length as usize;
        self.mapped.resize_with(places, || None);
        let index = self.mapped.iter().position(Option::is_none).ok_or(Errno(libc::ENOMEM))?;
        let bytes = u32::try_from(length).map_err(|_| INVALID)?;
        if self.entries.is_none() {
            // SAFETY: guaranteed by the caller.
            let entries = unsafe { Registered::new(pd, places * Mapping::SIZE, IBV_ACCESS_LOCAL_WRITE) };
            self.entries = Some(entries?);
        }
        let entries = self.entries.as_mut().ok_or(INVALID)?;
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        // SAFETY: as above.
        let region = made(unsafe { ibv_reg_mr(pd, start, length, access as c_int) })?;
        let region = NonNull::new(region).ok_or(INVALID)?;
        // SAFETY: the region was registered above.
        let key = unsafe { region.as_ref() }.rkey;
        self.mapped[index] = Some(Mapped { start, length, region });
        let memory = Target { address: start as u64, key, length: bytes };
        let place = index * Mapping::SIZE;
        entries.write(place, &Mapping { offset, memory }.to_entry(self.big_endian));
        Ok(Write {
            message: Message::Mapped(index as u16),
            silent: false,
            from: entries.address() + place as u64,
            length: Mapping::SIZE as u32,
            lkey: entries.lkey(),
            to: self.table.address.wrapping_add(place as u64),
            rkey: self.table.key,
        })
    }

    /// Deregisters memory. A later write of the peer to it ends the connection.
    fn remove(&mut self, start: *mut c_void, length: usize) -> Result<(), Errno> {
        let same = |place: &&mut Option<Mapped>| {
            place.as_ref().is_some_and(|mapped| mapped.start == start && mapped.length == length)
        };
        *self.mapped.iter_mut().find(same).ok_or(INVALID)? = None;
        Ok(())
    }
}

/// Returns whether a stream is usable, or `None` while it is being connected.
fn ready(stream: &Stream) -> Option<Result<(), Errno>> {
    match stream.state {
        StreamState::Connecting | StreamState::Accepting => None,
        StreamState::Failed(errno) => Some(Err(errno)),
        StreamState::Down => Some(Err(Errno(libc::ECONNRESET))),
        StreamState::Up if !stream.writable => Some(Err(Errno(libc::EPIPE))),
        StreamState::Up => Some(Ok(())),
    }
}

/// `riomap(3)`: returns the offset at which the peer writes the memory, or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riomap(
    number: c_int,
    start: *mut c_void,
    length: size_t,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let at = if offset == OWN_ADDRESS { start as off_t } else { offset };
    let mapped = size(|| {
        let socket = socket(number)?;
        if start.is_null() || length == 0 || protection & !libc::PROT_WRITE != 0 {
            return Err(INVALID);
        }
        if protection == libc::PROT_NONE {
            // The peer may not write the memory.
            return socket.lock().stream().map(|_| 0);
        }
        let announced = socket.wait(true, |stream: &mut Stream| match ready(stream)? {
            // SAFETY: the contract of the manual page.
            Ok(()) if stream.sender.may_announce() => Some(unsafe { stream.map(start, length, at as u64) }),
            Ok(()) => None,
            Err(errno) => Some(Err(errno)),
        });
        announced?.map(|()| 0)
    });
    if mapped == 0 { at } else { -1 }
}

/// `riounmap(3)`
#[unsafe(no_mangle)]
pub extern "C" fn riounmap(number: c_int, start: *mut c_void, length: size_t) -> c_int {
    crate::rdmacm::errno::status(|| socket(number)?.lock().stream()?.mappings.remove(start, length))
}

/// Writes all data, or, without blocking, as much as possible.
fn write(socket: &Socket, data: &[u8], offset: u64, flags: c_int) -> Result<usize, Errno> {
    let is_blocking = is_blocking(socket, flags);
    let mut done = 0;
    while done < data.len() {
        let at = offset.checked_add(done as u64).ok_or(INVALID)?;
        let wrote = socket.wait(is_blocking, |stream: &mut Stream| match ready(stream)? {
            Ok(()) if stream.sender.has_space() => Some(stream.write(&data[done..], at)),
            Ok(()) => None,
            Err(errno) => Some(Err(errno)),
        });
        match wrote.and_then(|wrote| wrote) {
            Ok(wrote) => done += wrote,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// `riowrite(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riowrite(
    number: c_int,
    data: *const c_void,
    length: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    // SAFETY: the contract of the manual page.
    size(|| write(&*socket(number)?, unsafe { readable(data, length) }?, offset as u64, flags)) as size_t
}
