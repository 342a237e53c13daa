//! Watches the link of a Linux interface.

use super::events::{AsyncEvent, Subscribers};
use crate::event_fd::EventFd;
use crate::signals;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkFlags;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// `RTMGRP_LINK` (rtnetlink(7)).
const LINK_GROUP: u32 = 1;

#[derive(Debug)]
pub(super) struct LinkWatch {
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

impl LinkWatch {
    pub(super) fn start(name: String, index: u32, subscribers: Arc<Subscribers>) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, LINK_GROUP))?;
        let stop = EventFd::new(0)?;
        let watched = stop.try_clone()?;
        // Read after the socket listens, so that no change is missed.
        let mut is_up = crate::linux::is_running(index)?;
        let body = move || {
            while waits(&socket, &watched) {
                let Ok((datagram, _)) = socket.recv_from_full() else { continue };
                for now in changes(&datagram, index) {
                    if now != is_up {
                        is_up = now;
                        let event = if now { AsyncEvent::PortUp } else { AsyncEvent::PortDown };
                        subscribers.tell(&name, event);
                    }
                }
            }
        };
        let thread = signals::spawn("ferroce-link", body)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Waits for a message from the kernel. Returns false when the watch ends.
fn waits(socket: &Socket, stop: &EventFd) -> bool {
    let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut descriptors = [watch(socket.as_raw_fd()), watch(stop.as_raw_fd())];
    // SAFETY: passes two pollfds with open descriptors. A signal only causes another turn of the loop.
    unsafe { libc::poll(descriptors.as_mut_ptr(), 2, -1) };
    descriptors[1].revents == 0
}

/// Returns the interface's carrier after each change in the datagram.
fn changes(datagram: &[u8], index: u32) -> Vec<bool> {
    let mut found = Vec::new();
    let mut rest = datagram;
    while let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) {
        match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link))
                if link.header.index == index =>
            {
                found.push(link.header.flags.contains(LinkFlags::Running));
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link))
                if link.header.index == index =>
            {
                found.push(false);
            }
            _ => {}
        }
        let length = (message.header.length as usize).next_multiple_of(4).max(4);
        rest = rest.get(length..).unwrap_or_default();
        if rest.is_empty() {
            break;
        }
    }
    found
}
