//! Faults on demand: a port that goes down, a GID that disappears, a device that ends, a verb that fails.
//!
//! An observer injects them into a running process ([`observe::inject`](crate::observe::inject), `ferroce fault`), and a program into
//! itself ([`Device::inject`](crate::Device::inject)). `FERROCE_FAULTS` lists faults with which a program starts: faults of a port apply to
//! each device when it is opened, and the others to the process.
//!
//! ```
//! use ferroce_verbs::fault::Fault;
//!
//! let fault: Fault = "fail reg_mr ENOMEM after 3".parse()?;
//! assert_eq!(fault.to_string(), "fail reg_mr ENOMEM after 3");
//! assert!("fail reg_mr ENOMEN".parse::<Fault>().unwrap_err().to_string().ends_with("write ENOMEM"));
//! # Ok::<_, ferroce_verbs::fault::FaultError>(())
//! ```

mod errno;
mod failing;
mod verb;

pub use datapath::engine::{PortFault, PortFaultError};
pub use errno::Errno;
pub use failing::{MAX_FAILING, check, count_at_c_entry_points};
pub(crate) use failing::{arm, check_call};
pub use verb::Verb;

use crate::toml_error::nearest;
use datapath::environment;
use std::fmt;
use std::str::FromStr;
use std::sync::Once;
use thiserror::Error;

/// The variable with the faults of a program's start.
const VARIABLE: &str = "FERROCE_FAULTS";

/// The words with which a fault begins.
const WORDS: [&str; 5] = ["port-down", "port-up", "gid-remove", "device-fatal", "fail"];

/// A fault on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A fault of a port. Its text is `port-down`, `port-up`, `gid-remove N` or `device-fatal`.
    Port(PortFault),
    /// A call of a verb that fails.
    Fail(FailingCall),
}

/// A call of a verb that fails once without any effect. Its text is `fail VERB ERRNO` or `fail VERB ERRNO after N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailingCall {
    /// The verb.
    pub verb: Verb,
    /// The error number with which the call fails.
    pub errno: Errno,
    /// The number of calls of the verb before it, which are not affected.
    pub after: u32,
}

/// An error in the text of a fault, or a fault that a process refuses.
#[derive(Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum FaultError {
    #[error("fault `{text}`: {}", unknown("word", word, "port-down", WORDS.iter().copied()))]
    Word { text: String, word: String },
    #[error("fault `{text}`: `{word}` is not needed; remove it")]
    Rest { text: String, word: String },
    #[error("fault `{text}`: no GID index; write gid-remove 1")]
    Gid { text: String },
    #[error("fault `{text}`: {}", unknown("verb", word, "reg_mr", Verb::ALL.iter().map(|verb| verb.name())))]
    Verb { text: String, word: String },
    #[error("fault `{text}`: {}", unknown("error number", word, "ENOMEM", Errno::names()))]
    Errno { text: String, word: String },
    #[error("fault `{text}`: not a number of calls; write `after N` with N from 0 to {}", u32::MAX)]
    After { text: String },
    #[error("{MAX_FAILING} calls that fail are armed already; let the program make some of these calls")]
    TooMany,
    #[error(transparent)]
    Port(#[from] PortFaultError),
}

roce::debug_as_display!(FaultError);

/// Returns what is wrong with a word, and a word that is right: the most similar one, or a list and an `example`.
fn unknown<'a>(
    what: &str,
    word: &str,
    example: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> String {
    match nearest(word, known.clone()) {
        _ if word.is_empty() => format!("no {what}; write one such as {example}"),
        Some(nearest) => format!("no {what} `{word}`; write {nearest}"),
        None => format!("no {what} `{word}`; write one of {}", known.collect::<Vec<_>>().join(", ")),
    }
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let mut words = text.split_whitespace();
        let mut next = || words.next().unwrap_or_default();
        let (text, word) = (text.trim().to_owned(), next());
        let fault = match word {
            "port-down" => Self::Port(PortFault::PortDown),
            "port-up" => Self::Port(PortFault::PortUp),
            "device-fatal" => Self::Port(PortFault::DeviceFatal),
            "gid-remove" => match next().parse() {
                Ok(index) => Self::Port(PortFault::GidRemove(index)),
                Err(_) => return Err(FaultError::Gid { text }),
            },
            "fail" => {
                let (verb, errno) = (next(), next());
                let wrong = |word: &str| (text.clone(), word.to_owned());
                let verb = Verb::named(verb).ok_or_else(|| wrong(verb));
                let verb = verb.map_err(|(text, word)| FaultError::Verb { text, word })?;
                let errno = Errno::named(errno).ok_or_else(|| wrong(errno));
                let errno = errno.map_err(|(text, word)| FaultError::Errno { text, word })?;
                let after = match (next(), next()) {
                    ("", _) => Ok(0),
                    ("after", calls) => calls.parse().map_err(|_| FaultError::After { text: text.clone() }),
                    (word, _) => Err(FaultError::Rest { text: text.clone(), word: word.into() }),
                };
                Self::Fail(FailingCall { verb, errno, after: after? })
            }
            word => return Err(FaultError::Word { text, word: word.into() }),
        };
        match next() {
            "" => Ok(fault),
            word => Err(FaultError::Rest { text, word: word.into() }),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(PortFault::PortDown) => f.write_str("port-down"),
            Self::Port(PortFault::PortUp) => f.write_str("port-up"),
            Self::Port(PortFault::GidRemove(index)) => write!(f, "gid-remove {index}"),
            Self::Port(PortFault::DeviceFatal) => f.write_str("device-fatal"),
            Self::Fail(call) => call.fmt(f),
        }
    }
}

impl fmt::Display for FailingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, errno, after } = self;
        write!(f, "fail {verb} {errno}")?;
        if *after > 0 { write!(f, " after {after}") } else { Ok(()) }
    }
}

/// Parses a list of faults, separated by semicolons. Returns those of a port, and the calls that fail.
fn parse_list(text: &str) -> Result<(Vec<PortFault>, Vec<FailingCall>), FaultError> {
    let (mut of_port, mut calls) = (Vec::new(), Vec::new());
    for text in text.split(';').filter(|text| !text.trim().is_empty()) {
        match text.parse()? {
            Fault::Port(fault) => of_port.push(fault),
            Fault::Fail(call) => calls.push(call),
        }
    }
    if calls.len() > MAX_FAILING { Err(FaultError::TooMany) } else { Ok((of_port, calls)) }
}

/// Reads `FERROCE_FAULTS`. Arms the calls that fail the first time, and returns the faults of a port.
///
/// # Errors
/// Returns [`FaultError`] if a fault is wrong; none is then armed.
pub(crate) fn from_env() -> Result<Vec<PortFault>, FaultError> {
    static ONCE: Once = Once::new();
    let Some(text) = environment::text(VARIABLE) else { return Ok(Vec::new()) };
    let (of_port, calls) = parse_list(&text)?;
    let mut armed = Ok(());
    ONCE.call_once(|| armed = calls.into_iter().try_for_each(arm));
    armed.map(|()| of_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_written_as_it_is_read() {
        for text in [
            "port-down",
            "port-up",
            "gid-remove 3",
            "device-fatal",
            "fail poll_cq EIO",
            "fail rdma_connect ECONNREFUSED after 4294967295",
        ] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        let prefixed: Fault = "  fail  ibv_reg_mr 12 after 0 ".parse().unwrap();
        assert_eq!(prefixed.to_string(), "fail reg_mr ENOMEM");
    }

    #[test]
    fn an_error_contains_the_word_its_limits_and_a_remedy() {
        for (text, said) in [
            ("", "fault ``: no word; write one such as port-down"),
            ("port-dwn", "fault `port-dwn`: no word `port-dwn`; write port-down"),
            (
                "zzz",
                "fault `zzz`: no word `zzz`; write one of port-down, port-up, gid-remove, device-fatal, fail",
            ),
            ("port-down now", "fault `port-down now`: `now` is not needed; remove it"),
            ("gid-remove", "fault `gid-remove`: no GID index; write gid-remove 1"),
            ("gid-remove -1", "fault `gid-remove -1`: no GID index; write gid-remove 1"),
            ("fail", "fault `fail`: no verb; write one such as reg_mr"),
            ("fail regmr EIO", "fault `fail regmr EIO`: no verb `regmr`; write reg_mr"),
            ("fail reg_mr", "fault `fail reg_mr`: no error number; write one such as ENOMEM"),
            ("fail reg_mr ENOMEN", "fault `fail reg_mr ENOMEN`: no error number `ENOMEN`; write ENOMEM"),
            ("fail reg_mr EIO in 3", "fault `fail reg_mr EIO in 3`: `in` is not needed; remove it"),
            (
                "fail reg_mr EIO after many",
                "fault `fail reg_mr EIO after many`: not a number of calls; write `after N` with N from 0 to 4294967295",
            ),
        ] {
            assert_eq!(text.parse::<Fault>().unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn a_list_is_separated_by_semicolons_and_refused_as_a_whole() {
        let (of_port, calls) = parse_list("gid-remove 1; fail reg_mr EIO after 2;port-down;").unwrap();
        assert_eq!(of_port, [PortFault::GidRemove(1), PortFault::PortDown]);
        assert_eq!(calls.iter().map(ToString::to_string).collect::<Vec<_>>(), ["fail reg_mr EIO after 2"]);
        assert!(parse_list("port-down; sparks").is_err());
        assert_eq!(parse_list(&"fail reg_mr EIO;".repeat(MAX_FAILING + 1)), Err(FaultError::TooMany));
    }
}
