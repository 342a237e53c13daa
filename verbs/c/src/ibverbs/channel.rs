//! Completion channels: descriptors, and the search for the completion queue of an event.

use crate::abi::*;
use crate::cancel;
use crate::errno::{BUSY, ENDED, count, created, injected, out, status};
use crate::ibverbs::completion::Cq;
use crate::ibverbs::context::Context;
use crate::ibverbs::live_objects;
use crate::ibverbs::lock::{Lock, Rank};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::sync::{Condvar, Mutex, PoisonError};
use verbs::fault::Verb;
use verbs::{CompletionChannel, Device};

#[repr(C)]
pub(crate) struct Channel {
    abi: ibv_comp_channel,
    channel: CompletionChannel,
    device: Device,
    queues: Lock<Queues>,
}

struct Queues {
    /// The queues in the order of the search. A queue with an event moves to the end.
    ring: Vec<*mut Cq>,
    /// Number of events of destroyed queues that a thread has already read from the descriptor. That thread must find no queue.
    read: u32,
}

// SAFETY: the pointers are used under the lock, and a queue is removed before it is destroyed.
unsafe impl Send for Queues {}

/// The events of a queue that the program has received and not acknowledged. They delay the destruction of the queue.
#[derive(Default)]
pub(crate) struct Events {
    unacknowledged: Mutex<u64>,
    acknowledged: Condvar,
}

impl Events {
    fn on_delivered(&self) {
        *self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn acknowledge(&self, count: u64) {
        let mut unacknowledged = self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        *unacknowledged = unacknowledged.saturating_sub(count);
        self.acknowledged.notify_all();
    }

    /// Waits until the program has acknowledged all events. rdma-core waits, too, before it destroys a queue.
    pub(crate) fn wait_until_acknowledged(&self) {
        let unacknowledged = self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.acknowledged.wait_while(unacknowledged, |unacknowledged| *unacknowledged > 0));
    }
}

impl Channel {
    pub(crate) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    pub(crate) fn join(&self, cq: *mut Cq) {
        self.queues.lock().ring.push(cq);
    }

    /// Removes a queue that is about to be destroyed. The descriptor no longer counts its unread events.
    ///
    /// # Safety
    /// The caller must pass a live queue.
    pub(crate) unsafe fn leave(&self, cq: *mut Cq) {
        let mut queues = self.queues.lock();
        queues.ring.retain(|&other| other != cq);
        // SAFETY: guaranteed by the caller.
        queues.read += unsafe { &*cq }.queue.lock().unbind_channel();
    }

    /// Removes one event of the channel. Returns the queue of the event.
    fn take_event(&self) -> Option<*mut Cq> {
        let mut queues = self.queues.lock();
        if queues.read > 0 {
            queues.read -= 1;
            return None;
        }
        let rang = |&cq: &*mut Cq| {
            // SAFETY: a queue in the list is alive.
            let cq = unsafe { &*cq };
            cq.queue.lock().take_event()
        };
        let index = queues.ring.iter().position(rang)?;
        let cq = queues.ring.remove(index);
        queues.ring.push(cq);
        // SAFETY: a queue in the list is alive.
        unsafe { &*cq }.events.on_delivered();
        Some(cq)
    }
}

/// `ibv_create_comp_channel(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    created(|| {
        injected(Verb::CreateCompChannel)?;
        // SAFETY: the contract of the manual page.
        let device = unsafe { Context::from(context) }?.device.clone();
        let channel = device.create_channel()?;
        let abi = ibv_comp_channel { context, fd: channel.as_raw_fd(), refcnt: 0 };
        let queues = Lock::new(Rank::Channel, Queues { ring: Vec::new(), read: 0 });
        Ok(live_objects::publish(Channel { abi, channel, device, queues }).cast())
    })
}

/// `ibv_destroy_comp_channel(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    status(|| {
        let channel = channel.cast::<Channel>();
        // SAFETY: the contract of the manual page.
        if !unsafe { live_objects::find_last(channel) }?.queues.lock().ring.is_empty() {
            return Err(BUSY);
        }
        // SAFETY: no queue is bound to the channel, and the program must not use it after this call.
        drop(unsafe { live_objects::reclaim(channel) }?);
        Ok(())
    })
}

/// `ibv_get_cq_event(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    user: *mut *mut c_void,
) -> c_int {
    if status(|| injected(Verb::GetCqEvent)) != 0 {
        return -1;
    }
    loop {
        let descriptor = count(|| {
            // SAFETY: the contract of the manual page.
            let (channel, _, _) =
                unsafe { (live_objects::find(channel.cast::<Channel>())?, out(cq)?, out(user)?) };
            channel.device.hand_over();
            Ok(channel.channel.as_raw_fd())
        });
        if descriptor < 0 || !cancel::take_event(descriptor) {
            return -1;
        }
        let found = count(|| {
            // SAFETY: the contract of the manual page.
            let (channel, cq, user) =
                unsafe { (live_objects::find(channel.cast::<Channel>())?, out(cq)?, out(user)?) };
            let Some(rang) = channel.take_event() else {
                // The event belonged to a queue that has been destroyed, or signals that the core has stopped.
                return if channel.channel.has_ended() { Err(ENDED) } else { Ok(0) };
            };
            // SAFETY: destroying the queue waits until the program acknowledges this event.
            *user = unsafe { &*rang }.user();
            *cq = rang.cast();
            Ok(1)
        });
        if found != 0 {
            return found.min(0);
        }
    }
}

/// `ibv_ack_cq_events(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    status(|| {
        // SAFETY: the contract of the manual page.
        unsafe { live_objects::find(cq.cast::<Cq>()) }?.events.acknowledge(count.into());
        Ok(())
    });
}
