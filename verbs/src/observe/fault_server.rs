//! The process's side of faults on demand: parses the request of an observer, and answers it.

use super::sanitize::sanitized;
use crate::fault::{self, Fault, FaultError, PortFault, PortFaultError};
use serde::{Deserialize, Serialize};

/// Start of a request. The text of the fault follows.
const REQUEST: &str = "fault ";

/// The answer to a request.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FaultReply {
    format: u32,
    version: String,
    /// The number of devices that accepted the fault. `None` in the report of a process that knows no faults.
    #[serde(default)]
    pub(super) accepted: Option<usize>,
    /// The reason why the fault is refused.
    #[serde(default, deserialize_with = "sanitized")]
    pub(super) refused: Option<String>,
}

pub(super) fn request(fault: &Fault) -> String {
    format!("{REQUEST}{fault}\n")
}

/// Parses a request. Returns the text of the fault, or `None` if the request is not for a fault.
pub(super) fn requested(request: &[u8]) -> Option<&str> {
    std::str::from_utf8(request).ok()?.strip_prefix(REQUEST)?.strip_suffix('\n')
}

/// Injects the fault `text`, and returns the answer, in the `format` of reports. `inject` injects a fault of a port into each device, and
/// returns the results.
pub(super) fn answer(
    format: u32,
    text: &str,
    inject: impl FnOnce(PortFault) -> Vec<Result<(), PortFaultError>>,
) -> FaultReply {
    let injected = text.parse().and_then(|fault| match fault {
        Fault::Port(fault) => accepted(inject(fault)),
        Fault::Fail(call) => fault::arm(call).map(|()| 0),
    });
    let version = env!("CARGO_PKG_VERSION").into();
    match injected {
        Ok(accepted) => FaultReply { format, version, accepted: Some(accepted), refused: None },
        Err(error) => FaultReply { format, version, accepted: None, refused: Some(error.to_string()) },
    }
}

/// Returns the number of devices that accepted a fault.
///
/// # Errors
/// Returns the first error if no device accepted it.
fn accepted(results: Vec<Result<(), PortFaultError>>) -> Result<usize, FaultError> {
    let count = results.iter().filter(|result| result.is_ok()).count();
    match results.into_iter().find_map(Result::err) {
        Some(error) if count == 0 => Err(error.into()),
        _ => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_a_fault_is_recognized() {
        let request = request(&Fault::Port(PortFault::GidRemove(3)));
        assert_eq!(requested(request.as_bytes()), Some("gid-remove 3"));
        for other in ["", "capture 96\n", "fault", "faults port-down\n", "fault fail reg_mr ENOMEM after 1"] {
            assert_eq!(requested(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_fault_is_refused_if_no_device_accepts_it() {
        let refusal = || PortFaultError::Gid { port: "eth0".into(), index: 7, present: vec![1] };
        let reply = |results: &dyn Fn() -> Vec<Result<(), PortFaultError>>| {
            let reply = answer(2, "gid-remove 7\n", |fault| {
                assert_eq!(fault, PortFault::GidRemove(7));
                results()
            });
            (reply.accepted, reply.refused)
        };
        assert_eq!(reply(&|| vec![Err(refusal()), Ok(())]), (Some(1), None));
        assert_eq!(reply(&|| vec![Err(refusal())]), (None, Some(refusal().to_string())));
        let unknown = answer(2, "sparks", |_| unreachable!("it is no fault of a port"));
        assert!(unknown.refused.unwrap().contains("write one of port-down"));
    }

    /// The process at the other end may send anything.
    #[test]
    fn a_refusal_is_one_line_without_control_characters() {
        let line = br#"{"format":2,"version":"0.1.0","refused":"a\nb"}"#;
        let reply: FaultReply = serde_json::from_slice(line).unwrap();
        assert_eq!((reply.refused.as_deref(), reply.accepted), (Some("a b"), None));
    }
}
