//! Parses and formats numbers with units.

use cc::Rate;
use roce::wire::telemetry::Speed;
use std::collections::BTreeSet;
use std::time::Duration;

pub use verbs::congestion::{
    parse_bytes as bytes, parse_duration as duration, parse_rate as rate, rate_text,
};

/// Returns the elements of `rates` for which HPCC INT and IFA have no code (rtgwg-00 figure 4), each once, in ascending order.
pub fn without_code(rates: impl IntoIterator<Item = Rate>) -> BTreeSet<Rate> {
    rates.into_iter().filter(|rate| Speed::from_rate(*rate).is_none()).collect()
}

/// Returns the rates for which HPCC INT and IFA have codes, in the syntax of settings and in ascending order.
pub fn codes() -> String {
    let rates: BTreeSet<Rate> = Speed::all().map(Speed::rate).collect();
    rates.into_iter().map(rate_text).collect::<Vec<_>>().join(", ")
}

/// Parses a time above 0, in seconds or with a unit: `5`, `0.5`, `500ms`.
///
/// # Errors
/// Returns an error if the text is not a time, or the time is 0.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time.is_zero() {
        Err(format!("`{text}`: a run needs a time above 0; write seconds, or 500ms"))
    } else {
        Ok(time)
    }
}

/// Returns a number with its noun: `1 process`, `2 processes`.
pub fn counted(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_suffixes() {
        assert_eq!(bytes("0"), Ok(0));
        assert_eq!(bytes("65536"), Ok(65536));
        assert_eq!(bytes("4k"), Ok(4096));
        assert_eq!(bytes("1G"), Ok(1 << 30));
        assert_eq!(bytes("2MB"), Ok(2 << 20));
        for wrong in ["", "K", "-1", "1T", "1.5K", "99999999999999G", "0x10"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_take_decimal_suffixes() {
        assert_eq!(rate("200M"), Ok(Rate::from_mbps(200)));
        assert_eq!(rate("2.5g"), Ok(Rate::from_mbps(2500)));
        assert_eq!(rate("1000000"), Ok(Rate::from_mbps(1)));
        for wrong in ["", "25", "G", "0", "-1G", "nan", "inf", "1GG", "é"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_parsed_with_their_unit() {
        assert_eq!(duration("2ms"), Ok(Duration::from_millis(2)));
        assert_eq!(duration("20us"), Ok(Duration::from_micros(20)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("5"), Ok(Duration::from_secs(5)));
        for wrong in ["", "s", "-5", "-1s", "1m", "nan", "nans", "inf", "1e99s", "1.1e9s", "1e19s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(seconds("2"), Ok(Duration::from_secs(2)));
        assert_eq!(seconds("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(
            (duration("1e9s"), seconds("1e9")),
            (Ok(Duration::from_secs(1_000_000_000)), seconds("1e9s"))
        );
        for wrong in ["0", "-1", "nan", "inf", "1e19", "1e99"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
