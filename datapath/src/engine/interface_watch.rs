//! The thread that follows the Linux interface of a port while it is open.

use super::interface_changes::InterfaceChanges;
use crate::event_fd::EventFd;
use crate::neighbour::{Change, Notifications};
use crate::signals;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

#[derive(Debug)]
pub(super) struct InterfaceWatch {
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

impl InterfaceWatch {
    /// Follows the interface `index`, and applies its changes to `changes`.
    pub(super) fn start(index: u32, changes: Arc<Mutex<InterfaceChanges>>) -> io::Result<Self> {
        let notifications = Notifications::open(index)?;
        let stop = EventFd::new(0)?;
        let watched = stop.try_clone()?;
        // Read after the notifications have been subscribed to, so that no change is missed.
        let apply = move |change| changes.lock().unwrap_or_else(PoisonError::into_inner).apply(change);
        apply(Change::Lost);
        let body = move || {
            while waits(&notifications, &watched) {
                notifications.receive().into_iter().for_each(&apply);
            }
        };
        let thread = signals::spawn("ferroce-link", body)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for InterfaceWatch {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic.
            let _ = thread.join();
        }
    }
}

/// Waits for a message from the kernel. Returns false when the watch ends.
fn waits(notifications: &Notifications, stop: &EventFd) -> bool {
    let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut descriptors = [watch(notifications.as_raw_fd()), watch(stop.as_raw_fd())];
    // SAFETY: passes two pollfds with open descriptors. A signal only causes another turn of the loop.
    unsafe { libc::poll(descriptors.as_mut_ptr(), 2, -1) };
    descriptors[1].revents == 0
}
