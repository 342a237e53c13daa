//! Constructors of common work requests.

use super::{Binding, Data, Datagram, RecvRequest, Remote, SendOperation, SendRequest, Sge};
use crate::wire::{Feth, Immediate};
use crate::{Rkey, SrqNumber};
use smallvec::SmallVec;

impl Data {
    /// Creates data without bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self::Buffers(SmallVec::new())
    }

    /// Copies `bytes` into the request. More than 64 bytes are allocated on the heap.
    #[must_use]
    pub fn inline(bytes: &[u8]) -> Self {
        Self::Inline(SmallVec::from_slice(bytes))
    }

    /// Returns the length of the message, bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Self::Buffers(buffers) => match buffers.as_slice() {
                [only] => u64::from(only.length),
                several => several.iter().map(|sge| u64::from(sge.length)).sum(),
            },
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

impl From<Sge> for Data {
    fn from(sge: Sge) -> Self {
        Self::Buffers(SmallVec::from_slice(&[sge]))
    }
}

impl From<&[Sge]> for Data {
    fn from(buffers: &[Sge]) -> Self {
        Self::Buffers(SmallVec::from_slice(buffers))
    }
}

impl SendRequest {
    /// Creates a signalled request, neither solicited nor fenced.
    #[must_use]
    pub fn new(id: u64, operation: SendOperation, data: impl Into<Data>) -> Self {
        Self { id, operation, data: data.into(), signalled: true, solicited: false, fence: false, srq: None }
    }

    /// Creates a SEND.
    #[must_use]
    pub fn send(id: u64, data: impl Into<Data>) -> Self {
        Self::new(id, SendOperation::Send { immediate: None }, data)
    }

    /// Creates a SEND that invalidates the peer's memory window `rkey`.
    #[must_use]
    pub fn send_invalidate(id: u64, data: impl Into<Data>, rkey: Rkey) -> Self {
        Self::new(id, SendOperation::SendInvalidate { rkey }, data)
    }

    /// Creates a request that binds a memory window.
    #[must_use]
    pub fn bind(id: u64, binding: Binding) -> Self {
        Self::new(id, SendOperation::Bind(binding), Data::empty())
    }

    /// Creates a request that invalidates a memory window of this side.
    #[must_use]
    pub fn local_invalidate(id: u64, rkey: Rkey) -> Self {
        Self::new(id, SendOperation::LocalInvalidate { rkey }, Data::empty())
    }

    /// Creates a SEND of a datagram.
    #[must_use]
    pub fn send_to(id: u64, data: impl Into<Data>, to: Datagram) -> Self {
        Self::new(id, SendOperation::SendTo { to, immediate: None }, data)
    }

    /// Creates an RDMA WRITE to `remote`.
    #[must_use]
    pub fn write(id: u64, data: impl Into<Data>, remote: Remote) -> Self {
        Self::new(id, SendOperation::Write { remote, immediate: None }, data)
    }

    /// Creates an RDMA READ from `remote` into `buffers`.
    #[must_use]
    pub fn read(id: u64, buffers: impl Into<Data>, remote: Remote) -> Self {
        Self::new(id, SendOperation::Read { remote }, buffers)
    }

    /// Creates a FETCH_ADD at `remote`. The original value is written to `result`, 8 bytes in host byte order.
    #[must_use]
    pub fn fetch_add(id: u64, result: Sge, remote: Remote, add: u64) -> Self {
        Self::new(id, SendOperation::FetchAdd { remote, add }, result)
    }

    /// Creates a CMP_SWAP at `remote`. The original value is written to `result`, 8 bytes in host byte order.
    #[must_use]
    pub fn compare_swap(id: u64, result: Sge, remote: Remote, compare: u64, swap: u64) -> Self {
        Self::new(id, SendOperation::CompareSwap { remote, compare, swap }, result)
    }

    /// Creates an ATOMIC WRITE of 8 bytes to `remote`.
    #[must_use]
    pub fn atomic_write(id: u64, data: impl Into<Data>, remote: Remote) -> Self {
        Self::new(id, SendOperation::AtomicWrite { remote }, data)
    }

    /// Creates a FLUSH of `length` bytes at `remote`.
    #[must_use]
    pub fn flush(id: u64, remote: Remote, length: u32, to: Feth) -> Self {
        Self::new(id, SendOperation::Flush { remote, length, to }, Data::empty())
    }

    /// Adds immediate data for the peer's completion. Operations without immediate data are unchanged.
    #[must_use]
    pub fn with_immediate(mut self, data: Immediate) -> Self {
        match &mut self.operation {
            SendOperation::Send { immediate }
            | SendOperation::SendTo { immediate, .. }
            | SendOperation::Write { immediate, .. } => *immediate = Some(data),
            SendOperation::SendInvalidate { .. }
            | SendOperation::Bind(_)
            | SendOperation::LocalInvalidate { .. }
            | SendOperation::AtomicWrite { .. }
            | SendOperation::Flush { .. }
            | SendOperation::Read { .. }
            | SendOperation::FetchAdd { .. }
            | SendOperation::CompareSwap { .. } => {}
        }
        self
    }

    /// Addresses the request to the peer's shared receive queue `srq`, as an XRC initiator must.
    #[must_use]
    pub fn to_srq(self, srq: SrqNumber) -> Self {
        Self { srq: Some(srq), ..self }
    }

    /// Makes the request unsignalled: success creates no completion.
    #[must_use]
    pub fn unsignalled(self) -> Self {
        Self { signalled: false, ..self }
    }

    /// Makes the peer's completion raise an event.
    #[must_use]
    pub fn solicited(self) -> Self {
        Self { solicited: true, ..self }
    }

    /// Makes the request wait until all earlier READs and atomics have completed.
    #[must_use]
    pub fn fenced(self) -> Self {
        Self { fence: true, ..self }
    }
}

impl RecvRequest {
    /// Creates a receive request with one buffer.
    #[must_use]
    pub fn new(id: u64, buffer: Sge) -> Self {
        Self { id, buffers: SmallVec::from_slice(&[buffer]) }
    }

    /// Creates a receive request with several buffers, filled in order.
    #[must_use]
    pub fn scatter(id: u64, buffers: &[Sge]) -> Self {
        Self { id, buffers: SmallVec::from_slice(buffers) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lkey, Rkey};

    #[test]
    fn builders_set_the_fields_of_their_arguments() {
        let sge = Sge { address: 64, length: 8, lkey: Lkey::new(1) };
        let remote = Remote { address: 128, rkey: Rkey::new(2) };
        let write = SendRequest::write(7, sge, remote).with_immediate([1, 2, 3, 4]).unsignalled().fenced();
        assert_eq!(write.operation, SendOperation::Write { remote, immediate: Some([1, 2, 3, 4]) });
        assert!(!write.signalled && write.fence && !write.solicited);
        assert_eq!(write.data.length(), 8);
        assert_eq!(SendRequest::send(1, Data::inline(b"hello")).data.length(), 5);
        let read = SendRequest::read(1, sge, remote).with_immediate([0; 4]);
        assert_eq!(read.operation, SendOperation::Read { remote });
    }
}
