//! The requests of one side, and checks of their completions.

use roce::qp::{Completion, CompletionOpcode, CompletionStatus};
use roce::wire::Service;

#[derive(Clone, Copy, Debug)]
pub(super) struct PostedRequest {
    pub(super) kind: CompletionOpcode,
    pub(super) length: u32,
    pub(super) signalled: bool,
    /// The peer's receive that the message must consume. Known only on reliable connections.
    pub(super) receive: Option<usize>,
    /// The original value that an atomic must return.
    pub(super) finds: u64,
    /// Whether the request invalidates the peer's window. It then has no immediate data.
    pub(super) returns: bool,
}

#[derive(Default)]
pub(super) struct SideRequests {
    pub(super) posted: Vec<PostedRequest>,
    /// Number of requests that have ended, in order.
    pub(super) ended: usize,
    /// Number of requests that succeeded before the first failure.
    pub(super) done: usize,
    /// Status of the first failed request.
    pub(super) failed: Option<CompletionStatus>,
    /// Numbers of receives posted and completed.
    pub(super) receives: usize,
    pub(super) received: usize,
    /// Per completed receive: number of its message.
    pub(super) brought: Vec<usize>,
    pub(super) receive_failed: Option<CompletionStatus>,
    /// Number of posted messages that consume a receive of the peer.
    pub(super) consuming: usize,
    /// Expected values of the words that FETCH_ADD and COMPARE_SWAP change at the peer.
    pub(super) added: u64,
    pub(super) swapped: u64,
}

/// Returns `Err` with `why` unless `holds`.
pub(super) fn rule(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

impl SideRequests {
    /// Checks a send completion. It must be of the next request, or of a later one if the requests between were unsignalled.
    pub(super) fn on_sent(&mut self, completion: &Completion) -> Result<(), String> {
        let (index, status) = (completion.id as usize, completion.status);
        rule(index >= self.ended, || format!("request {index} completed twice, or out of order"))?;
        rule(index < self.posted.len(), || format!("request {index} was never posted"))?;
        let silent = self.posted[self.ended..index].iter().all(|posted| !posted.signalled);
        rule(silent, || format!("a signalled request before {index} has no completion"))?;
        match (status, self.failed) {
            (CompletionStatus::Success, None) => {
                let posted = self.posted[index];
                rule(posted.signalled, || format!("request {index} was not signalled"))?;
                rule(completion.opcode == posted.kind, || format!("request {index}: {completion:?}"))?;
                self.done = index + 1;
            }
            (CompletionStatus::Success, Some(_)) => {
                return Err(format!("request {index} ended well after an error"));
            }
            (status, None) => {
                self.done = index;
                self.failed = Some(status);
            }
            (status, Some(_)) => {
                let flushed = status == CompletionStatus::Flushed && index == self.ended;
                rule(flushed, || format!("request {index} after an error: {status:?}"))?;
            }
        }
        self.ended = index + 1;
        Ok(())
    }

    /// Checks a receive completion, which must be of the next receive. `posted` has the peer's requests. Returns the message's number.
    pub(super) fn on_received(
        &mut self,
        completion: &Completion,
        posted: &[PostedRequest],
        service: Service,
    ) -> Result<Option<usize>, String> {
        let index = completion.id as usize;
        rule(index == self.received, || format!("receive {index} ended before {}", self.received))?;
        rule(index < self.receives, || format!("receive {index} was never posted"))?;
        self.received += 1;
        if completion.status != CompletionStatus::Success {
            self.receive_failed.get_or_insert(completion.status);
            return Ok(None);
        }
        rule(self.receive_failed.is_none(), || format!("receive {index} ended well after an error"))?;
        let returns = |posted: &PostedRequest| posted.returns && posted.receive == Some(index);
        let number = match completion.immediate {
            Some(data) => u32::from_be_bytes(data) as usize,
            None => posted.iter().position(returns).unwrap_or(usize::MAX),
        };
        let message = posted.get(number).copied();
        let message = message
            .ok_or_else(|| format!("receive {index}: there is no message {:?}", completion.immediate))?;
        if matches!(service, Service::Rc | Service::Xrc) {
            let mine = message.receive == Some(index);
            rule(mine, || format!("receive {index} was given message {number}: twice, or out of order"))?;
        }
        let expected = match message.kind {
            CompletionOpcode::Write => CompletionOpcode::RecvWithWrite,
            _ => CompletionOpcode::Recv,
        };
        // A datagram follows a global header of 40 bytes.
        let length = message.length + if service == Service::Ud { 40 } else { 0 };
        let told = (completion.opcode, completion.length);
        rule(told == (expected, length), || format!("receive {index}: {told:?} of {message:?}"))?;
        self.brought.push(number);
        Ok(Some(number))
    }
}
