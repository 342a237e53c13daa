//! Queue pairs: what is asked of them and what they answer.

mod build;
mod request;
mod settings;

pub use request::{
    Completion, CompletionOpcode, CompletionStatus, Data, PostError, RecvRequest, Remote, SendOperation,
    SendRequest, Sge,
};
pub use settings::{
    AckTimeout, Capabilities, Congestion, CongestionAlgorithm, Modify, QpInit, QpReport, RtrSettings,
    RtsSettings, State,
};
