//! The requests of one side and their completions.

use super::REQUESTS;
use roce::Rkey;
use roce::qp::{Completion, CompletionOpcode, CompletionStatus};

/// A posted send request.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub kind: CompletionOpcode,
    pub length: u32,
    pub signalled: bool,
    /// The number of the peer's receive that it consumes.
    pub receive: Option<usize>,
    /// The value that a FETCH_ADD must return: the sum of all before it.
    pub finds: u64,
    /// The window that a SEND invalidates; it carries no immediate data then.
    pub returns: Option<Rkey>,
}

#[derive(Default)]
pub struct Ledger {
    pub asked: Vec<Asked>,
    /// The number of requests that are known to have ended, in order.
    pub ended: usize,
    /// The number of requests that succeeded; they precede the first that failed.
    pub done: usize,
    /// The status of the first request that failed.
    pub failed: Option<CompletionStatus>,
    /// The numbers of receives posted, and of those that have ended.
    pub receives: usize,
    pub received: usize,
    /// The number of receives that succeeded.
    pub delivered: usize,
    /// The status of the first receive that failed.
    pub receive_failed: Option<CompletionStatus>,
    /// The number of messages posted to the peer that consume a receive there.
    pub consuming: usize,
    /// The sum of all FETCH_ADDs posted.
    pub added: u64,
}

impl Ledger {
    pub fn room(&self) -> bool {
        self.asked.len() < REQUESTS
    }

    /// Checks a send completion: of the next request, or of a later one if the requests between succeeded and were not signalled.
    pub fn on_sent(&mut self, completion: &Completion) {
        let index = completion.id as usize;
        assert!(index >= self.ended, "request {index} completed again, or out of order");
        assert!(index < self.asked.len(), "request {index} was never posted");
        let silent = &self.asked[self.ended..index];
        assert!(
            silent.iter().all(|asked| !asked.signalled),
            "a signalled request before {index} said nothing"
        );
        match (completion.status, self.failed) {
            (CompletionStatus::Success, None) => {
                let asked = self.asked[index];
                assert!(asked.signalled, "request {index} was not signalled");
                assert_eq!(completion.opcode, asked.kind, "request {index}");
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

    /// Checks a receive completion, which must be that of the oldest receive. `asked` has the peer's requests.
    pub fn on_received(&mut self, completion: &Completion, asked: &[Asked]) {
        let index = completion.id as usize;
        assert_eq!(index, self.received, "receives end in order");
        assert!(index < self.receives, "receive {index} was never posted");
        self.received += 1;
        if completion.status != CompletionStatus::Success {
            self.receive_failed.get_or_insert(completion.status);
            return;
        }
        assert_eq!(self.receive_failed, None, "receive {index} ended well after an error");
        let number = asked.iter().position(|asked| asked.receive == Some(index)).expect("a message for it");
        let expected = match asked[number].kind {
            CompletionOpcode::Write => CompletionOpcode::RecvWithWrite,
            _ => CompletionOpcode::Recv,
        };
        assert_eq!(
            (completion.opcode, completion.length),
            (expected, asked[number].length),
            "receive {index}"
        );
        // The immediate data is the message's number: it reveals a message that was delivered twice or out of order.
        let brings = match asked[number].returns {
            Some(key) => (None, Some(key)),
            None => (Some((number as u32).to_be_bytes()), None),
        };
        assert_eq!((completion.immediate, completion.invalidated), brings, "receive {index}");
        self.delivered += 1;
    }
}
