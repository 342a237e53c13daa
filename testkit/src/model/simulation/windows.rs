//! Memory windows in the model: one of type 2 per host, over all memory that its peer writes.
//!
//! A host binds the window. The peer may then write with its key, and invalidates it by a SEND with invalidate after its WRITEs. Or the
//! host itself invalidates it, unless the peer has written with it. So no request uses a key that may be invalid.

use super::*;
use roce::{Access, Binding, Rkey, WindowKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    Free,
    /// A request to bind or to invalidate it is outstanding.
    Pending {
        key: Rkey,
    },
    /// Bound: the peer may write with its key.
    Bound {
        key: Rkey,
    },
    /// The peer has written with its key.
    Used {
        key: Rkey,
    },
    /// The peer's SEND will invalidate it.
    Returning {
        key: Rkey,
    },
}

impl Window {
    /// Returns the key with which the peer may write.
    pub(super) const fn key(self) -> Option<Rkey> {
        match self {
            Self::Bound { key } | Self::Used { key } => Some(key),
            Self::Free | Self::Pending { .. } | Self::Returning { .. } => None,
        }
    }
}

impl Simulation {
    /// Registers a region with all rights and creates a window, on each host.
    pub(super) fn prepare_windows(pair: &mut Pair) -> [Rkey; 2] {
        [0, 1].map(|host: usize| {
            let host = &mut pair.hosts[host];
            host.endpoint.deregister(host.region.lkey).unwrap();
            let rights = Access::ALL | Access::REMOTE_FLUSH | Access::WINDOWS;
            host.region = host.endpoint.register(host.pd, BASE, host.ram.0.len() as u64, rights).unwrap();
            host.endpoint.create_window(host.pd, WindowKind::Two).unwrap()
        })
    }

    pub(super) fn bind(&mut self, host: usize, with: With) {
        if self.windows[host] != Window::Free || !self.can_post(host) {
            return;
        }
        let (window, key) = (self.keys[host], self.keys[host].next());
        let first = offset(Area::Written, 0);
        let binding = Binding {
            window,
            rkey: key,
            lkey: self.pair.hosts[host].region.lkey,
            address: BASE + first,
            length: offset(Area::Written, REQUESTS) - first,
            access: Access::REMOTE_WRITE,
            zero_based: false,
        };
        let request = SendRequest::bind(self.logs[host].posted.len() as u64, binding);
        (self.keys[host], self.windows[host]) = (key, Window::Pending { key });
        self.post(host, request, said(with), (CompletionOpcode::Bind, 0, false, 0));
    }

    pub(super) fn invalidate(&mut self, host: usize, with: With) {
        let Window::Bound { key } = self.windows[host] else { return };
        if self.can_post(host) {
            let request = SendRequest::local_invalidate(self.logs[host].posted.len() as u64, key);
            self.windows[host] = Window::Pending { key };
            self.post(host, request, said(with), (CompletionOpcode::LocalInvalidate, 0, false, 0));
        }
    }

    pub(super) fn send_invalidate(&mut self, host: usize, length: u16, with: With) {
        let peer = 1 - host;
        let Window::Used { key } = self.windows[peer] else { return };
        if self.can_post(host) {
            let (index, length) = (self.logs[host].posted.len(), u32::from(length) % (LONGEST + 1));
            let sge = self.pair.hosts[host].sge(offset(Area::Outgoing, index), length);
            self.windows[peer] = Window::Returning { key };
            let request = SendRequest::send_invalidate(index as u64, sge, key);
            self.post(host, request, with, (CompletionOpcode::Send, length, true, 0));
            self.logs[host].posted[index].returns = Some(key);
        }
    }

    /// Updates the state after a completion of `host`'s own request.
    pub(super) fn follow_window(&mut self, host: usize, completion: &Completion) {
        if completion.status != CompletionStatus::Success {
            return;
        }
        let Window::Pending { key } = self.windows[host] else { return };
        match completion.opcode {
            CompletionOpcode::Bind => self.windows[host] = Window::Bound { key },
            CompletionOpcode::LocalInvalidate => self.windows[host] = Window::Free,
            _ => {}
        }
    }

    /// Updates the state after a received message that may have invalidated the window.
    pub(super) fn follow_return(&mut self, host: usize, completion: &Completion) {
        let Some(invalidated) = completion.invalidated else { return };
        assert_eq!(self.windows[host], Window::Returning { key: invalidated });
        self.windows[host] = Window::Free;
        self.reached.returned += 1;
    }

    /// Returns the address and key with which `host` writes. They are those of its peer's window if this is allowed and `by_window` is set,
    /// and otherwise those of its region.
    pub(super) fn remote_by(&mut self, host: usize, by_window: bool, offset: u64) -> Remote {
        let remote = self.remote(host, offset);
        match self.windows[1 - host].key().filter(|_| by_window && self.can_post(host)) {
            Some(key) => {
                self.windows[1 - host] = Window::Used { key };
                self.reached.by_window += 1;
                Remote { rkey: key, ..remote }
            }
            None => remote,
        }
    }

    fn can_post(&self, host: usize) -> bool {
        !self.destroyed[host] && self.logs[host].room()
    }
}

/// Makes the request signalled, because the model needs its status.
const fn said(with: With) -> With {
    With { signalled: true, ..with }
}
