//! Completions as results: a failed request becomes an error.

use super::{Completion, CompletionOpcode, CompletionStatus};
use crate::Qpn;
use thiserror::Error;

/// Error of a request that did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("request {id} of QP {qpn} ({opcode:?}): {status}; {}", status.remedy())]
pub struct RequestFailed {
    /// Id of the request.
    pub id: u64,
    /// Queue pair, which is in the error state unless it is for datagrams.
    pub qpn: Qpn,
    /// Operation of the request; undefined if the request was flushed.
    pub opcode: CompletionOpcode,
    /// Status of the completion.
    pub status: CompletionStatus,
}

crate::debug_as_display!(RequestFailed, super::PostError);

impl Completion {
    /// Returns the completion if its request succeeded.
    ///
    /// # Errors
    /// Returns [`RequestFailed`] if the status is not success.
    #[must_use = "a request that failed did nothing of what it was asked to do, or not all"]
    pub const fn ok(self) -> Result<Self, RequestFailed> {
        let Self { id, status, opcode, qpn, .. } = self;
        match status {
            CompletionStatus::Success => Ok(self),
            status => Err(RequestFailed { id, qpn, opcode, status }),
        }
    }
}

impl CompletionStatus {
    /// Returns the remedy for the program.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Success => "no remedy is needed",
            Self::LocalLength => "post receives as long as the peer's messages",
            Self::LocalProtection => {
                "keep the buffer within its region, and register that with Access::LOCAL_WRITE if it is written"
            }
            Self::LocalQpOperation => "post requests within the queue pair's capabilities",
            Self::Bind => "bind a window of this queue pair to a region with Access::WINDOWS",
            Self::Flushed => "look at the first failed completion of the queue pair, and connect a new one",
            Self::BadResponse => "check which peer answers, and whether both sides have the same PSNs",
            Self::RemoteInvalidRequest => {
                "check that the peer's queue pair and receives accept such a request"
            }
            Self::RemoteAccess => "check the peer's rkey, its range and its access rights",
            Self::RemoteOperation => "look at the peer: its queue pair failed by itself",
            Self::RetryExceeded => {
                "check that the peer runs, its address, and that the whole path carries the MTU: ferroce doctor --peer"
            }
            Self::RnrRetryExceeded => "post receives at the peer before sending to it",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(status: CompletionStatus) -> Completion {
        Completion::new(7, status, CompletionOpcode::Write, Qpn::new(17))
    }

    #[test]
    fn success_is_the_completion_itself() {
        let completion = ended(CompletionStatus::Success);
        assert_eq!(completion.ok(), Ok(completion));
    }

    #[test]
    fn a_failure_names_the_request_the_reason_and_the_remedy() {
        let failed = ended(CompletionStatus::RemoteAccess).ok().unwrap_err();
        let text = std::string::ToString::to_string(&failed);
        for part in ["request 7", "Write", "remote access error", "; check the peer's rkey"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(std::format!("{failed:?}"), text);
    }
}
