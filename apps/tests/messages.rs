//! The messages that the troubleshooting pages of the book quote exist in the code.

use std::fs;
use std::path::{Path, PathBuf};

/// Quotes of messages that the code composes, and the format strings.
const COMPOSED: [(&str, &str); 5] = [
    ("no libibverbs.so.1 in", "no {LIBRARY} in"),
    ("needs CAP_NET_RAW", "{what} needs {needs}"),
    ("no answer from ... by ARP", "no answer from {address} by {protocol}"),
    ("is not IPv4, so it cannot reach", "is not {family}, so it cannot reach"),
    ("the peer's packet had an error, unknown rkey", "the peer's packet had an error, {discard}"),
];
/// Quotes of messages of other programs.
const OTHERS: [(&str, &str); 4] = [
    ("Too many open files", "the C library"),
    ("mmap failed on AF_PACKET socket", "DPDK"),
    ("Cannot allocate memory", "the C library"),
    ("Killed", "the shell"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Collects the lines with string literals of all Rust files below `folder`, without comments and tests.
fn code(folder: &Path, into: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && entry.file_name().is_some_and(|name| name != "tests") {
            code(&entry, into);
        } else if entry.extension().is_some_and(|extension| extension == "rs")
            && !entry.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests"))
        {
            let text = fs::read_to_string(&entry).unwrap();
            let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
            into.extend(
                text.lines()
                    .map(str::trim)
                    .filter(|line| line.contains('"') && !line.starts_with("//"))
                    .map(str::to_owned),
            );
        }
    }
}

/// Returns the quotes in the first column of the page's tables of messages, log lines, symptoms and likely reasons.
fn quotes(page: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut quotes = false;
    for line in page.lines() {
        let Some(first) = line.strip_prefix("| ").and_then(|row| row.split(" |").next()) else {
            quotes &= line.starts_with('|');
            continue;
        };
        quotes |= ["message", "log", "symptom", "likely reason"].contains(&first);
        if quotes && first.starts_with('`') {
            found.push(first.split('`').nth(1).unwrap());
        }
    }
    found
}

/// Returns a text without its values: each word with a digit or a placeholder becomes `#`.
fn shape(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        let is_value = word.contains('{') || word.contains(|letter: char| letter.is_ascii_digit());
        if is_value { "#" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn quoted_messages_are_those_of_the_code() {
    let pages = ["troubleshooting", "errors"]
        .map(|page| fs::read_to_string(root().join(format!("docs/guide/{page}.md"))).unwrap());
    let quotes: Vec<_> = pages.iter().flat_map(|page| quotes(page)).collect();
    assert!(quotes.len() > 35, "{quotes:?}");
    let mut lines = Vec::new();
    for folder in ["roce/src", "datapath/src", "verbs/src", "verbs/c/src", "apps/src"] {
        code(&root().join(folder), &mut lines);
    }
    let shapes: Vec<String> = lines.iter().map(|line| shape(line)).collect();
    let of_the_code = quotes.iter().filter(|quote| !OTHERS.iter().any(|(text, _)| text == *quote));
    let unknown: Vec<_> = of_the_code
        .filter(|quote| {
            let composed = COMPOSED.iter().find(|(text, _)| text == *quote);
            let wanted = shape(composed.map_or(quote, |(_, format)| format));
            !shapes.iter().any(|line| line.contains(&wanted))
        })
        .collect();
    assert!(unknown.is_empty(), "no messages of the code: {unknown:#?}");
    // The lists above contain only quotes that the pages contain.
    for quote in COMPOSED.iter().chain(&OTHERS).map(|(quote, _)| quote) {
        assert!(quotes.contains(quote), "`{quote}` is not quoted any more");
    }
}
