//! Shell completion: the script that asks `ferroce` for each word, and the values that only a running `ferroce` knows.
//!
//! bash splits words at `=` and `:`, so it completes the algorithm and the first key only, and no port after a colon.

use crate::failure::Failure;
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use verbs::congestion::{CcName, CongestionChoice};

/// The variable by which the script of a shell asks for completions.
const VARIABLE: &str = "FERROCE_COMPLETE";

/// The program's name, for which the script completes and which it calls.
const NAME: &str = "ferroce";

/// Answers a shell that asks for completions of `command`, and then ends the process. Returns if no shell asks.
pub fn answer(command: fn() -> clap::Command) {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Prints the script with which `shell` asks for completions.
///
/// # Errors
/// Returns a failure if standard output cannot be written.
pub fn script(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    let written = Shells::builtins()
        .completer(&shell.to_string())
        .map(|completer| completer.write_registration(VARIABLE, NAME, NAME, NAME, &mut script));
    if !matches!(written, Some(Ok(()))) {
        return Err(Failure::usage(format!("{shell}: no completions; choose bash, zsh or fish")));
    }
    out!("{}", String::from_utf8_lossy(&script))?;
    if shell == Shell::Zsh {
        // zsh runs the file of a folder in $fpath as the function `_ferroce` when the first word is completed.
        outln!("if [ \"$funcstack[1]\" = _ferroce ]; then _clap_dynamic_completer_ferroce \"$@\"; fi")?;
    }
    Ok(())
}

/// Completes the name of a Linux interface.
pub fn interface() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| candidates("", &current.to_string_lossy(), interfaces()))
}

/// Completes a port: a Linux interface, or the beginning of another form.
pub fn port() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| candidates("", &current.to_string_lossy(), port_words(&[])))
}

/// Completes each port of a list.
pub fn ports() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| after_comma(current, port_words))
}

/// Returns the words that may follow `before`, the ports of a list so far. In a list with commas no port has a colon
/// ([`port_list`](verbs::port::port_list)).
fn port_words(before: &[&str]) -> Vec<String> {
    if before.iter().any(|port| port.contains(':')) {
        return Vec::new();
    }
    let words = interfaces().into_iter().chain(forms().map(str::to_owned));
    words
        .filter(|word| before.is_empty() || !word.contains(':') && !before.contains(&word.as_str()))
        .collect()
}

/// Returns the names of the Linux interfaces.
fn interfaces() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns the beginning of each form of a port's name: up to its colon, or the word.
fn forms() -> impl Iterator<Item = &'static str> {
    let mut seen = BTreeSet::new();
    let words = datapath::port_spec::FORMS.lines().filter_map(|line| {
        let word = line.split(' ').next()?;
        let form = word.find(':').map_or(word, |colon| &word[..=colon]);
        form.starts_with(|first: char| first.is_ascii_lowercase()).then_some(form)
    });
    words.filter(move |form| seen.insert(*form))
}

/// Completes congestion control: the name of an algorithm, and then the keys that it uses and that the line does not have yet.
pub fn congestion() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| after_comma(current, congestion_words))
}

/// Completes congestion control where only `name` can be chosen, with only these of its keys.
pub fn congestion_of(name: CcName, keys: &'static [&'static str]) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        after_comma(current, |before| {
            let mut words = congestion_words(before);
            words.retain(|word| match before {
                [] => word == name.as_str(),
                [first, ..] => *first == name.as_str() && keys.contains(&word.trim_end_matches('=')),
            });
            words
        })
    })
}

/// Returns the words that may follow `before`, the complete words of a line such as `hpcc,line_rate=1G`.
fn congestion_words(before: &[&str]) -> Vec<String> {
    let Some((name, given)) = before.split_first() else {
        return CcName::all().map(|name| name.as_str().to_owned()).collect();
    };
    let Ok(name) = name.parse::<CcName>() else { return Vec::new() };
    let is_given = |key: &str| given.iter().any(|word| word.split('=').next() == Some(key));
    let keys =
        CongestionChoice::SETTINGS.iter().filter(|it| it.key != "cc" && name.uses(it) && !is_given(it.key));
    keys.map(|setting| format!("{}=", setting.key)).collect()
}

/// Completes the last word of a comma-separated value. `words` returns the words that may follow those before the last.
fn after_comma(current: &OsStr, words: impl FnOnce(&[&str]) -> Vec<String>) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let (before, last) =
        current.rsplit_once(',').map_or((None, &*current), |(before, last)| (Some(before), last));
    let head = before.map_or_else(String::new, |before| format!("{before},"));
    let before: Vec<&str> = before.into_iter().flat_map(|before| before.split(',')).collect();
    candidates(&head, last, words(&before))
}

/// Returns `head` with each of the `words` that begins with `last`.
fn candidates(head: &str, last: &str, words: Vec<String>) -> Vec<CompletionCandidate> {
    let fitting = words.into_iter().filter(|word| word.starts_with(last));
    fitting.map(|word| CompletionCandidate::new(format!("{head}{word}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_a_port_are_completed_up_to_their_colon() {
        let forms: Vec<_> = forms().collect();
        assert!(["null", "memif:", "pcap:", "udp:"].iter().all(|form| forms.contains(form)), "{forms:?}");
        assert!(!forms.iter().any(|form| form.contains('/') || form.contains("IFACE")), "{forms:?}");
    }

    #[test]
    fn keys_follow_the_algorithm_that_uses_them() {
        assert!(congestion_words(&[]).contains(&"hpcc-rx".to_owned()));
        let words = congestion_words(&["fixed", "line_rate=1G"]);
        assert!(words.contains(&"window=".to_owned()), "{words:?}");
        assert!(!words.iter().any(|word| word == "line_rate=" || word == "eta="), "{words:?}");
        assert!(congestion_words(&["cubic"]).is_empty());
    }
}
