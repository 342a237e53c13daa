//! The requests of one side and their completions.

use super::REQUESTS;
use roce::Rkey;
use roce::qp::{Completion, CompletionOpcode, CompletionStatus};

#[derive(Clone, Copy, Debug)]
pub struct PostedRequest {
    pub kind: CompletionOpcode,
    pub length: u32,
    pub signalled: bool,
    /// The number of the peer's receive that the request consumes.
    pub receive: Option<usize>,
    /// The value that a FETCH_ADD must return: the sum of all before it.
    pub finds: u64,
    /// The window that a SEND invalidates; the SEND then has no immediate data.
    pub returns: Option<Rkey>,
}

#[derive(Default)]
pub struct RequestLog {
    pub posted: Vec<PostedRequest>,
    /// The number of requests that have ended, in order.
    pub ended: usize,
    /// The number of requests that succeeded; they precede the first that failed.
    pub done: usize,
    pub failed: Option<CompletionStatus>,
    /// The numbers of receives posted, and of those that have ended.
    pub receives: usize,
    pub received: usize,
    pub delivered: usize,
    pub receive_failed: Option<CompletionStatus>,
    /// The number of messages posted to the peer that consume a receive there.
    pub consuming: usize,
    pub added: u64,
}

impl RequestLog {
    pub fn room(&self) -> bool {
        self.posted.len() < REQUESTS
    }

    /// Checks a send completion: of the next request, or of a later one if the requests between succeeded and were not signalled.
    pub fn on_sent(&mut self, completion: &Completion) {
        let index = completion.id as usize;
        assert!(index >= self.ended, "request {index} completed again, or out of order");
        assert!(index < self.posted.len(), "request {index} was never posted");
        let silent = &self.posted[self.ended..index];
        assert!(
            silent.iter().all(|posted| !posted.signalled),
            "a signalled request before {index} has no completion"
        );
        match (completion.status, self.failed) {
            (CompletionStatus::Success, None) => {
                let posted = self.posted[index];
                assert!(posted.signalled, "request {index} was not signalled");
                assert_eq!(completion.opcode, posted.kind, "request {index}");
                self.done = index + 1;
            }
            (CompletionStatus::Success, Some(_)) => panic!("request {index} ended well after an error"),
            (status, None) => {
                self.done = index;
                self.failed = Some(status);
            }
            (status, Some(_)) => {
                assert_eq!(status, CompletionStatus::Flushed, "request {index} after an error");
                assert_eq!(index, self.ended, "after an error every request completes");
            }
        }
        self.ended = index + 1;
    }

    /// Checks a receive completion, which must be that of the oldest receive. `posted` has the peer's requests.
    pub fn on_received(&mut self, completion: &Completion, posted: &[PostedRequest]) {
        let index = completion.id as usize;
        assert_eq!(index, self.received, "receives end in order");
        assert!(index < self.receives, "receive {index} was never posted");
        self.received += 1;
        if completion.status != CompletionStatus::Success {
            self.receive_failed.get_or_insert(completion.status);
            return;
        }
        assert_eq!(self.receive_failed, None, "receive {index} ended well after an error");
        let number =
            posted.iter().position(|posted| posted.receive == Some(index)).expect("a message for it");
        let expected = match posted[number].kind {
            CompletionOpcode::Write => CompletionOpcode::RecvWithWrite,
            _ => CompletionOpcode::Recv,
        };
        assert_eq!(
            (completion.opcode, completion.length),
            (expected, posted[number].length),
            "receive {index}"
        );
        // The immediate data is the message's number, which shows whether a message was delivered twice or out of order.
        let brings = match posted[number].returns {
            Some(key) => (None, Some(key)),
            None => (Some((number as u32).to_be_bytes()), None),
        };
        assert_eq!((completion.immediate, completion.invalidated), brings, "receive {index}");
        self.delivered += 1;
    }
}
