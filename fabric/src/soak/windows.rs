//! Memory windows: each side has one window of type 2 over the memory that its peer writes.
//!
//! A side binds its window. The peer may then write with its rkey, and invalidates it after those WRITEs by a SEND with invalidate. If the
//! peer has not written with it, the side itself may invalidate it. Thus no request uses an rkey that may be invalid.

use super::connection::{Area, Connection, Host};
use super::memory::BASE;
use super::program::PlannedRequest;
use super::reached::Reached;
use super::requests::rule;
use roce::qp::{Completion, CompletionOpcode, CompletionStatus, Remote, SendRequest};
use roce::{Access, Binding, Rkey};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// Not bound.
    Free,
    /// A posted request will bind or invalidate it.
    Pending,
    Bound,
    /// The peer has written with its rkey.
    Used,
    /// A SEND of the peer will invalidate it.
    Returning,
}

impl Connection {
    /// Binds or invalidates the side's window; `None` while the peer uses it or a request is pending.
    pub(super) fn planned_window_change(&mut self, side: usize) -> Option<PlannedRequest> {
        let id = self.sides[side].requests.posted.len() as u64;
        let (request, kind) = match self.sides[side].window {
            Window::Free => {
                let (window, length) = (self.sides[side].key, self.places as u64 * self.place());
                let binding = Binding {
                    window,
                    rkey: window.next(),
                    lkey: self.sides[side].region.lkey,
                    address: BASE + self.offset(side, Area::Written, 0),
                    length,
                    access: Access::REMOTE_WRITE,
                    zero_based: false,
                };
                self.sides[side].key = binding.rkey;
                (SendRequest::bind(id, binding), CompletionOpcode::Bind)
            }
            Window::Bound => {
                let request = SendRequest::local_invalidate(id, self.sides[side].key);
                (request, CompletionOpcode::LocalInvalidate)
            }
            Window::Pending | Window::Used | Window::Returning => return None,
        };
        self.sides[side].window = Window::Pending;
        Some(PlannedRequest { request, kind, length: 0, consumes: false, finds: 0, returns: false })
    }

    /// Creates a SEND that invalidates the peer's window; `None` unless this side has written with its rkey.
    pub(super) fn planned_return(&mut self, side: usize, length: u32, host: &Host) -> Option<PlannedRequest> {
        let peer = 1 - side;
        if self.sides[peer].window != Window::Used {
            return None;
        }
        self.sides[peer].window = Window::Returning;
        let index = self.sides[side].requests.posted.len();
        let from = self.offset(side, Area::Outgoing, index);
        let data = self.outgoing(side, from, length, host);
        let request = SendRequest::send_invalidate(index as u64, data, self.sides[peer].key);
        Some(PlannedRequest {
            request,
            kind: CompletionOpcode::Send,
            length,
            consumes: true,
            finds: 0,
            returns: true,
        })
    }

    /// Chooses the rkey of a WRITE: at random the rkey of the peer's window, if it is bound.
    pub(super) fn writes_by(&mut self, side: usize, remote: Remote) -> Remote {
        let peer = &mut self.sides[1 - side];
        if !matches!(peer.window, Window::Bound | Window::Used) || self.random.below(2) == 0 {
            return remote;
        }
        peer.window = Window::Used;
        Remote { rkey: peer.key, ..remote }
    }

    pub(super) fn follow_window(&mut self, side: usize, completion: &Completion, reached: &mut Reached) {
        if completion.status != CompletionStatus::Success {
            return;
        }
        match completion.opcode {
            CompletionOpcode::Bind => {
                self.sides[side].window = Window::Bound;
                reached.once("window: bound");
            }
            CompletionOpcode::LocalInvalidate => {
                self.sides[side].window = Window::Free;
                reached.once("window: taken back");
            }
            CompletionOpcode::AtomicWrite => reached.once("ATOMIC WRITE"),
            CompletionOpcode::Flush => reached.once("FLUSH"),
            _ => {}
        }
    }

    /// Updates the side's window after a received message, which may have invalidated it.
    pub(super) fn follow_return(
        &mut self,
        side: usize,
        completion: &Completion,
        reached: &mut Reached,
    ) -> Result<(), String> {
        let Some(key) = completion.invalidated else { return Ok(()) };
        let (window, ours): (Window, Rkey) = (self.sides[side].window, self.sides[side].key);
        rule((window, key) == (Window::Returning, ours), || format!("{key} came back: {window:?} {ours}"))?;
        self.sides[side].window = Window::Free;
        reached.once("window: given back");
        Ok(())
    }
}
