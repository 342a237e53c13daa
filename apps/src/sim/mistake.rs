//! A mistake in a scenario: the key, and the reason why its value is wrong.

use crate::failure::Failure;

#[derive(Debug)]
pub(super) struct Mistake {
    /// The key. If it is in a table, the name of the table precedes it: `traffic.load`.
    key: &'static str,
    /// The number of the entry in a list of tables, from 1; 0 if the key is not such a list.
    entry: usize,
    why: String,
}

impl Mistake {
    pub(super) fn new(key: &'static str, why: impl Into<String>) -> Self {
        Self { key, entry: 0, why: why.into() }
    }

    /// Creates a mistake in entry `place`, from 0, of the list of tables `key`.
    pub(super) fn in_entry(key: &'static str, place: usize, why: impl Into<String>) -> Self {
        Self { key, entry: place + 1, why: why.into() }
    }

    /// Returns the failure for the scenario `name`, whose content is `text`.
    pub(super) fn refuse(self, name: &str, text: &str) -> Failure {
        let Self { key, entry, why } = &self;
        match self.line(text) {
            Some(line) if *entry > 0 => Failure::usage(format!("{name}: line {line}: {key} {entry}: {why}")),
            Some(line) => Failure::usage(format!("{name}: line {line}: {key}: {why}")),
            None => Failure::usage(format!("{name}: {key}: {why}")),
        }
    }

    /// Returns the number of the line with the key, or with the table or list that contains it.
    fn line(&self, text: &str) -> Option<usize> {
        let numbered = || (1..).zip(text.lines().map(str::trim_start));
        let is_set = |line: &str, key: &str| {
            line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
        };
        let (table, key) =
            self.key.split_once('.').map_or((self.key, None), |(table, key)| (table, Some(key)));
        let headers = [format!("[{table}]"), format!("[[{table}]]")];
        let begins =
            |line: &str| is_set(line, table) || headers.iter().any(|header| line.starts_with(header));
        let place = self.entry.saturating_sub(1);
        let mut found = numbered().filter(|(_, line)| begins(line));
        let (at, begin) = found.clone().nth(place).or_else(|| found.next())?;
        let own = key.filter(|_| begin.starts_with('['));
        let own = own.and_then(|key| numbered().skip(at).find(|(_, line)| is_set(line, key)));
        Some(own.map_or(at, |(line, _)| line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "rate = \"1G\"\necn = { min = 1, max = 2 }\n\n[traffic]\nload = 2\n[[flow]]\nsource = 1\n  [[flow]]\nsource = 2\nlink = []\n";

    #[test]
    fn a_mistake_has_the_line_of_its_key() {
        for (mistake, line) in [
            (Mistake::new("rate", ""), Some(1)),
            (Mistake::new("ecn.probability", ""), Some(2)),
            (Mistake::new("traffic", ""), Some(4)),
            (Mistake::new("traffic.load", ""), Some(5)),
            (Mistake::new("traffic.time", ""), Some(4)),
            (Mistake::in_entry("flow", 1, ""), Some(8)),
            (Mistake::in_entry("link", 4, ""), Some(10)),
            (Mistake::new("delay", ""), None),
        ] {
            assert_eq!(mistake.line(TEXT), line, "{mistake:?}");
        }
        let said = Mistake::in_entry("flow", 0, "no bytes; use 1").refuse("x.toml", TEXT).to_string();
        assert_eq!(said, "x.toml: line 6: flow 1: no bytes; use 1");
    }
}
