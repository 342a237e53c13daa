//! The small types that all parts of the crate need. They depend only on each other, on keys, on [`Discard`](crate::Discard), and on the
//! types of `wire` and of `cc`.

mod access;
mod build;
mod control_error;
mod failure;
mod ids;
mod outcome;
mod request;
mod state;
mod window;

pub use access::{Access, AccessError};
pub use control_error::ControlError;
pub use failure::{FailureCause, FailureReason, QpFailure, Unreachable};
pub use ids::{AddressId, CqId, PdId, SrqId, XrcdId};
pub use outcome::RequestFailed;
pub use request::{
    Completion, CompletionOpcode, CompletionStatus, Data, Datagram, PostError, RecvRequest, Remote,
    SendOperation, SendRequest, Sge,
};
pub use state::{Capabilities, State};
pub use window::{BindError, Binding, WindowKind};
