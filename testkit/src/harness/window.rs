//! Memory windows of a scripted host.

use super::BASE;
use super::script::Script;
use roce::qp::{CompletionStatus, SendRequest};
use roce::{Access, Binding, Region, Rkey, WindowKind};

impl Script {
    /// Registers another region over the same memory, to which windows may be bound.
    pub fn windowed(&mut self, access: Access) -> Region {
        let length = self.host.ram.0.len() as u64;
        self.host.endpoint.register(self.host.pd, BASE, length, access | Access::WINDOWS).unwrap()
    }

    /// Creates a window, binds it to `length` bytes from `offset` on, and returns its key.
    pub fn window(
        &mut self,
        kind: WindowKind,
        region: &Region,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Rkey {
        let window = self.host.endpoint.create_window(self.host.pd, kind).unwrap();
        let binding = bind(window, region, offset, length, access);
        assert_eq!(self.run_local(SendRequest::bind(1, binding)), CompletionStatus::Success);
        binding.rkey
    }

    /// Posts a request that sends no packet, and returns its completion status.
    pub fn run_local(&mut self, request: SendRequest) -> CompletionStatus {
        self.host.endpoint.post_send(self.now, self.host.qpn, request).unwrap();
        assert_eq!(self.next(), None);
        let sent = self.host.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent[0].status
    }
}

/// Returns the binding of `window` with its next key.
pub fn bind(window: Rkey, region: &Region, offset: u64, length: u64, access: Access) -> Binding {
    let (rkey, lkey, address) = (window.next(), region.lkey, BASE + offset);
    Binding { window, rkey, lkey, address, length, access, zero_based: false }
}
