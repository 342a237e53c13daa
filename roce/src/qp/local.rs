//! Work requests that no packet carries: binding a memory window and invalidating a key (IBA 10.8.3.3).

use super::{CompletionStatus, Context, Identity, SendOperation};

pub(super) fn run(
    operation: &SendOperation,
    context: &mut Context<'_>,
    identity: &Identity,
) -> Result<(), CompletionStatus> {
    let Identity { pd, qpn, .. } = *identity;
    match operation {
        SendOperation::Bind(binding) => {
            context.regions.bind(pd, qpn, binding).map_err(|_| CompletionStatus::Bind)
        }
        SendOperation::LocalInvalidate { rkey } => {
            context.regions.invalidate(*rkey, pd, qpn).map_err(|_| CompletionStatus::LocalQpOperation)
        }
        SendOperation::Send { .. }
        | SendOperation::SendInvalidate { .. }
        | SendOperation::SendTo { .. }
        | SendOperation::Write { .. }
        | SendOperation::Read { .. }
        | SendOperation::FetchAdd { .. }
        | SendOperation::CompareSwap { .. }
        | SendOperation::AtomicWrite { .. }
        | SendOperation::Flush { .. } => Ok(()),
    }
}
