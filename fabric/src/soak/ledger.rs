//! The requests of one side, and the completions that it may get for them.

use roce::qp::{Completion, CompletionOpcode, CompletionStatus};
use roce::wire::Service;

/// A send request as the model knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) kind: CompletionOpcode,
    pub(super) length: u32,
    pub(super) signalled: bool,
    /// The peer's receive that it takes, by number; of reliable connections only.
    pub(super) receive: Option<usize>,
    /// The value that an atomic must find.
    pub(super) finds: u64,
    /// It takes the peer's window back, and brings no number.
    pub(super) returns: bool,
}

/// One side's requests and how they ended.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) asked: Vec<Asked>,
    /// Requests that are known to have ended, in order.
    pub(super) ended: usize,
    /// Requests that ended well; all of them before the first that did not.
    pub(super) done: usize,
    /// The end of the first request that failed.
    pub(super) failed: Option<CompletionStatus>,
    /// Receives posted, and those of them that ended.
    pub(super) receives: usize,
    pub(super) received: usize,
    /// By receive, the message that it brought.
    pub(super) brought: Vec<usize>,
    pub(super) receive_failed: Option<CompletionStatus>,
    /// Messages posted to the peer that take a receive there.
    pub(super) consuming: usize,
    /// The sum of all FETCH_ADDs, and the word that COMPARE_SWAPs change.
    pub(super) added: u64,
    pub(super) swapped: u64,
}

/// `Err` if a rule is broken.
pub(super) fn rule(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

impl Ledger {
    /// A send completion: of the next request, or of a later one if those between ended well and were not signalled.
    pub(super) fn on_sent(&mut self, completion: &Completion) -> Result<(), String> {
        let (index, status) = (completion.id as usize, completion.status);
        rule(index >= self.ended, || format!("request {index} completed twice, or out of order"))?;
        rule(index < self.asked.len(), || format!("request {index} was never posted"))?;
        let silent = self.asked[self.ended..index].iter().all(|asked| !asked.signalled);
        rule(silent, || format!("a signalled request before {index} said nothing"))?;
        match (status, self.failed) {
            (CompletionStatus::Success, None) => {
                let asked = self.asked[index];
                rule(asked.signalled, || format!("request {index} was not signalled"))?;
                rule(completion.opcode == asked.kind, || format!("request {index}: {completion:?}"))?;
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

    /// A receive completion: always the next one's. `asked` has the peer's requests. Returns the message's number.
    pub(super) fn on_received(
        &mut self,
        completion: &Completion,
        asked: &[Asked],
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
        let returns = |asked: &Asked| asked.returns && asked.receive == Some(index);
        let number = match completion.immediate {
            Some(data) => u32::from_be_bytes(data) as usize,
            None => asked.iter().position(returns).unwrap_or(usize::MAX),
        };
        let message = asked.get(number).copied();
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
        // A datagram comes behind its global header.
        let length = message.length + if service == Service::Ud { 40 } else { 0 };
        let told = (completion.opcode, completion.length);
        rule(told == (expected, length), || format!("receive {index}: {told:?} of {message:?}"))?;
        self.brought.push(number);
        Ok(Some(number))
    }
}
