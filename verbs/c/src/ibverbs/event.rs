//! Asynchronous events, and the program's objects to which they refer.

use crate::abi::*;
use crate::cancel;
use crate::errno::{ENDED, Errno, at, count, out, status};
use crate::ibverbs::context::Context;
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use verbs::event::{AsyncEvent, CqId, Event, Events, FailureCause, SrqId};
use verbs::{Device, Qpn};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Object {
    Qp(Qpn),
    Cq(CqId),
    Srq(SrqId),
}

struct Owned {
    /// The program's pointer to the object, as a number. It is only returned to the program.
    address: usize,
    /// Number of events that the program has received and not acknowledged.
    unacknowledged: u32,
}

#[derive(Default)]
struct Owners {
    objects: Mutex<HashMap<Object, Owned>>,
    acknowledged: Condvar,
}

impl Owners {
    fn lock(&self) -> MutexGuard<'_, HashMap<Object, Owned>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The events of one context: those of its objects and of the port.
pub(crate) struct AsyncEvents {
    events: Events,
    owners: Arc<Owners>,
}

impl AsyncEvents {
    pub(crate) fn new(device: &Device) -> Result<Self, Errno> {
        let owners = Arc::new(Owners::default());
        let ours = owners.clone();
        let events = device.events_where(move |event| {
            kind(event).is_some() && object(event).is_none_or(|object| ours.lock().contains_key(&object))
        })?;
        Ok(Self { events, owners })
    }

    pub(crate) fn descriptor(&self) -> c_int {
        self.events.as_raw_fd()
    }

    /// Registers an object, whose events the context receives from now on. If the object is registered already, its first pointer is kept.
    pub(crate) fn register<T>(&self, object: Object, program: *mut T) {
        let owned = Owned { address: program.expose_provenance(), unacknowledged: 0 };
        self.owners.lock().entry(object).or_insert(owned);
    }

    /// Unregisters an object that is about to be destroyed. As in rdma-core, waits until the program has acknowledged the events that it
    /// received. The other events are discarded, and the descriptor no longer counts them.
    pub(crate) fn unregister(&self, object: Object) {
        let objects = self.owners.lock();
        let waits = |objects: &mut HashMap<Object, Owned>| {
            objects.get(&object).is_some_and(|it| it.unacknowledged > 0)
        };
        let objects = self.owners.acknowledged.wait_while(objects, waits);
        objects.unwrap_or_else(PoisonError::into_inner).remove(&object);
        // From here on, the filter rejects the events of the object.
        self.events.discard(|event| self::object(event) == Some(object));
    }

    /// Unregisters an object if `program` is its registered pointer. A target that was opened again has its first pointer.
    pub(crate) fn unregister_as<T>(&self, object: Object, program: *mut T) {
        let registered = self.owners.lock().get(&object).map(|owned| owned.address);
        if registered == Some(program.addr()) {
            self.unregister(object);
        }
    }

    /// Returns the event that the descriptor signalled, unless its object no longer exists.
    fn pop_after_read(&self) -> Option<ibv_async_event> {
        let event = self.events.pop_after_read()?;
        let event_type = kind(&event)?;
        let Some(object) = object(&event) else {
            return Some(ibv_async_event {
                element: ibv_async_event__bindgen_ty_1 { port_num: 1 },
                event_type,
            });
        };
        let mut objects = self.owners.lock();
        let owned = objects.get_mut(&object)?;
        owned.unacknowledged += 1;
        let qp = std::ptr::with_exposed_provenance_mut(owned.address);
        Some(ibv_async_event { element: ibv_async_event__bindgen_ty_1 { qp }, event_type })
    }

    fn acknowledge(&self, address: usize) {
        if let Some(owned) = self.owners.lock().values_mut().find(|owned| owned.address == address) {
            owned.unacknowledged = owned.unacknowledged.saturating_sub(1);
        }
        self.owners.acknowledged.notify_all();
    }
}

fn object(event: &AsyncEvent) -> Option<Object> {
    match event {
        AsyncEvent::Transport(event) => match *event {
            Event::CommunicationEstablished(qpn) | Event::SendQueueDrained(qpn) | Event::LastReceive(qpn) => {
                Some(Object::Qp(qpn))
            }
            Event::QpFailed(failure) | Event::SendQueueFailed(failure) => Some(Object::Qp(failure.qpn)),
            Event::SharedReceivesLow(srq) => Some(Object::Srq(srq)),
            Event::CqOverflowed(cq) => Some(Object::Cq(cq)),
        },
        AsyncEvent::PortUp | AsyncEvent::PortDown | AsyncEvent::GidChange | AsyncEvent::CoreFailed => None,
    }
}

/// Returns the type of the event. Returns `None` for a failure that a completion reports, which is not an event (IBA 11.6.3.2).
fn kind(event: &AsyncEvent) -> Option<ibv_event_type> {
    Some(match event {
        AsyncEvent::PortUp => IBV_EVENT_PORT_ACTIVE,
        AsyncEvent::PortDown => IBV_EVENT_PORT_ERR,
        AsyncEvent::GidChange => IBV_EVENT_GID_CHANGE,
        AsyncEvent::CoreFailed => IBV_EVENT_DEVICE_FATAL,
        AsyncEvent::Transport(event) => match event {
            Event::CommunicationEstablished(_) => IBV_EVENT_COMM_EST,
            Event::SendQueueDrained(_) => IBV_EVENT_SQ_DRAINED,
            Event::LastReceive(_) => IBV_EVENT_QP_LAST_WQE_REACHED,
            Event::SharedReceivesLow(_) => IBV_EVENT_SRQ_LIMIT_REACHED,
            Event::CqOverflowed(_) => IBV_EVENT_CQ_ERR,
            Event::QpFailed(failure) | Event::SendQueueFailed(failure) => match failure.cause {
                FailureCause::Refused(verbs::event::NakCode::RemoteAccessError, _) => IBV_EVENT_QP_ACCESS_ERR,
                FailureCause::Refused(..) => IBV_EVENT_QP_REQ_ERR,
                FailureCause::CompletionQueue => IBV_EVENT_QP_FATAL,
                FailureCause::Request(_) | FailureCause::Receive(_) => return None,
            },
        },
    })
}

/// `ibv_get_async_event(3)`: blocks if the descriptor does.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    into: *mut ibv_async_event,
) -> c_int {
    loop {
        let descriptor = count(|| {
            // SAFETY: the contract of the manual page.
            let (context, _) = unsafe { (Context::from(context)?, out(into)?) };
            context.device.hand_over();
            Ok(context.events.descriptor())
        });
        if descriptor < 0 || !cancel::take_event(descriptor) {
            return -1;
        }
        let found = count(|| {
            // SAFETY: the contract of the manual page.
            let (context, into) = unsafe { (Context::from(context)?, out(into)?) };
            let Some(event) = context.events.pop_after_read() else {
                return if context.events.events.has_ended() { Err(ENDED) } else { Ok(0) };
            };
            *into = event;
            Ok(1)
        });
        if found != 0 {
            return found.min(0);
        }
    }
}

/// `ibv_ack_async_event(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    status(|| {
        // SAFETY: the contract of the manual page.
        let event = unsafe { at(event) }?;
        // SAFETY: `ibv_get_async_event` returned the event, and its object lives until the event is acknowledged.
        let (address, context) = unsafe {
            match event.event_type {
                IBV_EVENT_SRQ_LIMIT_REACHED => (event.element.srq.addr(), at(event.element.srq)?.context),
                IBV_EVENT_CQ_ERR => (event.element.cq.addr(), at(event.element.cq)?.context),
                IBV_EVENT_PORT_ACTIVE
                | IBV_EVENT_PORT_ERR
                | IBV_EVENT_GID_CHANGE
                | IBV_EVENT_DEVICE_FATAL => return Ok(()),
                _ => (event.element.qp.addr(), at(event.element.qp)?.context),
            }
        };
        // SAFETY: the object's context is open.
        unsafe { Context::from(context) }?.events.acknowledge(address);
        Ok(())
    });
}
