//! Local requests, which no packet carries: they use no PSN, and run once, when they are next to be sent (IBA 10.8.3.3).

use super::Requester;
use crate::qp::local::run;
use crate::qp::wqe::Wqe;
use crate::qp::{CompletionStatus, Context, Identity};

impl Requester {
    #[inline]
    pub(in crate::qp) fn is_at_local(&self) -> bool {
        self.queue.next().is_some_and(Wqe::is_local)
    }

    /// Runs the local requests that are next; none starts unless `begin`. A request that fails stays until all before it have completed. It
    /// is then the oldest, and fails the queue pair.
    pub(in crate::qp) fn run_local(
        &mut self,
        begin: bool,
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Result<(), CompletionStatus> {
        while let Some(wqe) = self.queue.next_mut()
            && wqe.is_local()
        {
            if !wqe.is_done {
                let fenced = wqe.request.fence && !self.reads.is_empty();
                if !begin || fenced {
                    return Ok(());
                }
                match run(&wqe.request.operation, context, identity) {
                    Ok(()) => wqe.is_done = true,
                    Err(status) if self.queue.next_index() == 0 => return Err(status),
                    Err(_) => return Ok(()),
                }
            }
            self.queue.step();
            self.retire_front(context, identity);
        }
        Ok(())
    }
}
