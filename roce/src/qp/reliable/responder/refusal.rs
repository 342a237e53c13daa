//! Why a request packet was not executed (IBA 9.7.4.1).

use crate::Discard;
use crate::qp::CompletionStatus;
use crate::wire::NakCode;

/// Refusal of a request packet, and its consequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::qp::reliable) enum Refusal {
    /// The packet is counted and dropped. An answer may already be due.
    Drop(Discard),
    /// The queue pair fails without a NAK, because the packet was correct. The receive request completes with `receive`.
    FatalWithoutNak { discard: Discard, receive: CompletionStatus },
    /// A NAK is sent, and the queue pair fails. The receive request of the message, if any, completes with `receive`.
    Fatal { code: NakCode, discard: Discard, receive: CompletionStatus },
}

impl Refusal {
    pub(super) const fn invalid(discard: Discard) -> Self {
        Self::Fatal {
            code: NakCode::InvalidRequest,
            discard,
            receive: CompletionStatus::RemoteInvalidRequest,
        }
    }

    pub(super) const fn access(discard: Discard) -> Self {
        Self::Fatal { code: NakCode::RemoteAccessError, discard, receive: CompletionStatus::RemoteAccess }
    }

    pub(super) const fn operational(receive: CompletionStatus) -> Self {
        Self::Fatal { code: NakCode::RemoteOperationalError, discard: Discard::LocalProtection, receive }
    }
}
