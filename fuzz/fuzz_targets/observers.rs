//! Status reports of processes of any user. Whatever they contain, observers print no control characters, and `ferroce metrics` prints a
//! valid exposition.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use verbs::observe::ProcessStatus;

#[path = "../../apps/src/metrics/text.rs"]
mod text;

#[derive(Arbitrary, Debug)]
enum Edit {
    Text(String),
    Number(u64),
    Field(String, u64),
    Nothing,
}

/// Applies `edit` to value number `place` in depth-first order. Returns the remaining count, or `None` once applied.
fn apply(value: &mut Value, place: usize, edit: &Edit) -> Option<usize> {
    if place == 0 {
        match (edit, value) {
            (Edit::Field(name, number), Value::Object(fields)) => _ = fields.insert(name.clone(), (*number).into()),
            (Edit::Text(text), value) => *value = text.clone().into(),
            (Edit::Number(number), value) => *value = (*number).into(),
            (Edit::Field(..) | Edit::Nothing, value) => *value = Value::Null,
        }
        return None;
    }
    let place = place - 1;
    match value {
        Value::Array(values) => values.iter_mut().try_fold(place, |place, value| apply(value, place, edit)),
        Value::Object(fields) => fields.values_mut().try_fold(place, |place, value| apply(value, place, edit)),
        _ => Some(place),
    }
}

/// Checks that a line is a metric: a name, labels with quoted values, and a number.
fn check_line(line: &str) {
    let (name, rest) = line.split_once('{').expect("labels");
    assert!(name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()), "{line:?}");
    let (labels, value) = rest.rsplit_once("} ").expect("a value");
    assert!(value.parse::<f64>().is_ok(), "{line:?}");
    let (mut is_quoted, mut is_escaped) = (false, false);
    for character in labels.chars() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ => assert!(is_quoted || matches!(character, 'a'..='z' | '=' | ',' | '_'), "{line:?}"),
        }
    }
    assert!(!is_quoted && !is_escaped, "{line:?}");
}

fuzz_target!(|edits: Vec<(u8, Edit)>| {
    let mut report = serde_json::from_str(include_str!("../../verbs/src/observe/report.json")).expect("it is JSON");
    for (place, edit) in &edits {
        apply(&mut report, (*place).into(), edit);
    }
    let Ok(process) = serde_json::from_value::<ProcessStatus>(report) else { return };
    let exposition = text::exposition(&[process.clone(), process.clone()]);
    let metrics = exposition.strip_suffix("# EOF\n").expect("an end");
    metrics.lines().filter(|line| !line.starts_with("# HELP ") && !line.starts_with("# TYPE ")).for_each(check_line);
    let printed = serde_json::to_value(&process).expect("it has a form in JSON");
    check_text(&printed);
});

/// Checks that no string contains a control character.
fn check_text(value: &Value) {
    match value {
        Value::String(text) => assert!(!text.contains(char::is_control), "{text:?}"),
        Value::Array(values) => values.iter().for_each(check_text),
        Value::Object(fields) => {
            assert!(fields.keys().all(|key| !key.contains(char::is_control)), "{fields:?}");
            fields.values().for_each(check_text);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
