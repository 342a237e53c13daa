//! Why a request packet was not executed (IBA 9.7.4.1).

use crate::Discard;
use crate::qp::CompletionStatus;
use crate::wire::NakCode;

/// Why a request packet was not executed, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::qp::reliable) enum Refusal {
    /// Nothing but this count follows; an answer may already be on its way.
    Drop(Discard),
    /// The queue pair fails without a NAK, because the peer's packet was well; the receive request ends as `receive`.
    Quiet { discard: Discard, receive: CompletionStatus },
    /// A NAK informs the peer, and the queue pair fails. A receive request that the message had taken ends as `receive`.
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
