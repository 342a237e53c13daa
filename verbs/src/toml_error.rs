//! Rewrites messages of the TOML parser.

/// Returns the line number, from 1, of the byte `offset` of `text`.
#[must_use]
pub fn line_of(text: &str, offset: usize) -> usize {
    text.get(..offset).unwrap_or_default().matches('\n').count() + 1
}

/// Returns the parser's `message` in one line, with a remedy for frequent mistakes.
#[must_use]
pub fn with_remedy(message: &str) -> String {
    let message = message.replace('\n', "; ");
    if let Some((key, keys)) = unknown("field", &message) {
        return match nearest(key, keys.iter().copied()) {
            Some(nearest) => format!("no key `{key}`; write `{nearest}`"),
            None if keys.is_empty() => format!("no key `{key}`; remove it"),
            None => format!("no key `{key}`; use one of {}", keys.join(", ")),
        };
    }
    if message.starts_with("string values must be quoted") {
        return "a value is missing, or is text without quotes; write it in quotes".into();
    }
    if let Some((value, values)) = unknown("variant", &message) {
        return format!("no value `{value}`; use one of {}", values.join(", "));
    }
    if let Some(key) = message.strip_prefix("missing field ") {
        return format!("no key {key}; add it");
    }
    let remedy = match message.rsplit_once(", expected ") {
        Some((wrong, "a string")) if wrong.starts_with("invalid type") => {
            "; write it in quotes, a rate or a time with its unit"
        }
        Some((_, "usize" | "u64" | "u32" | "u16" | "u8")) => "; write a whole number",
        Some((wrong, "a sequence")) if wrong.starts_with("invalid type") => "; write a list in brackets",
        _ => "",
    };
    message + remedy
}

/// Returns the unknown `what` from the parser's message, and the accepted ones.
fn unknown<'a>(what: &str, message: &'a str) -> Option<(&'a str, Vec<&'a str>)> {
    let named = message.strip_prefix("unknown ")?.strip_prefix(what)?.strip_prefix(" `")?;
    let (word, rest) = named.split_once('`')?;
    Some((word, rest.split('`').skip(1).step_by(2).collect()))
}

/// Returns the known word that is most similar to `word`, if it is similar enough to be what was meant.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = known.map(|known| (strsim::jaro_winkler(word, known), known));
    let nearest = likeness.max_by(|(a, _), (b, _)| a.total_cmp(b));
    nearest.filter(|(likeness, _)| *likeness > 0.8).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Verb {
        Write,
        Read,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "the parser only looks for the keys")]
    struct Keys {
        verb: Option<Verb>,
        congestion: Option<String>,
        hosts: Option<Vec<String>>,
        count: u32,
    }

    #[test]
    fn a_parser_error_has_a_remedy() {
        for (text, said) in [
            ("conjestion = ''", "no key `conjestion`; write `congestion`"),
            ("zzz = 1", "no key `zzz`; use one of verb, congestion, hosts, count"),
            (
                "congestion = 1",
                "invalid type: integer `1`, expected a string; write it in quotes, a rate or a time with its unit",
            ),
            ("congestion = auto", "a value is missing, or is text without quotes; write it in quotes"),
            ("", "no key `count`; add it"),
            ("verb = 'send'", "no value `send`; use one of write, read"),
            ("count = 'many'", "invalid type: string \"many\", expected u32; write a whole number"),
            ("[hosts]", "invalid type: map, expected a sequence; write a list in brackets"),
        ] {
            let error = toml::from_str::<Keys>(text).unwrap_err();
            assert_eq!(with_remedy(error.message()), said);
        }
        assert_eq!([line_of("a\nb\n", 0), line_of("a\nb\n", 2), line_of("a\nb\n", 99)], [1, 2, 1]);
    }
}
