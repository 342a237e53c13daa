//! Parses and formats rates, times and sizes with units.

use cc::Rate;
use std::time::Duration;

const RATES: [(&str, u64); 4] =
    [("T", 1_000_000_000_000), ("G", 1_000_000_000), ("M", 1_000_000), ("K", 1000)];

/// The lowest rate that a number without a unit may express, bit/s. A smaller number was probably meant in Gb/s or, like a link's speed in
/// sysfs, in Mb/s.
const MIN_WITHOUT_UNIT: f64 = 1e6;

/// Parses bits per second: `200M`, `1G`, `2.5G`; the suffixes are powers of 1000. A number without one is at least 1000000.
///
/// # Errors
/// Returns the remedy if the text is not a positive number, or is a number below the limit without a unit.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    let wrong = || format!("`{text}` is no rate; write bits per second, or 200M, 1G, 2.5G");
    let upper = text.to_ascii_uppercase();
    let found =
        RATES.iter().find_map(|(suffix, factor)| upper.strip_suffix(suffix).map(|digits| (digits, *factor)));
    let (digits, factor) = found.unwrap_or((&upper, 1));
    let bits = digits.parse::<f64>().map_err(|_| wrong())? * factor as f64;
    if !(1.0..=1e15).contains(&bits) {
        return Err(wrong());
    }
    if found.is_none() && bits < MIN_WITHOUT_UNIT {
        let likely = if bits < 1000.0 { "G" } else { "M" };
        return Err(format!(
            "`{text}`: a rate without a unit is in bit/s, and this is too slow; write \"{text}{likely}\""
        ));
    }
    Ok(Rate::from_bps(bits.round() as u64))
}

/// Formats a rate in the largest unit that divides it, as [`parse_rate`] parses it. Below 1000000 bit/s, the text always has a unit.
#[must_use]
pub fn rate_text(rate: Rate) -> String {
    let bits = rate.as_bps();
    let unit = RATES.iter().find(|(_, factor)| bits > 0 && bits.is_multiple_of(*factor));
    match unit {
        Some((suffix, factor)) => format!("{}{suffix}", bits / factor),
        None if (bits as f64) < MIN_WITHOUT_UNIT => format!("{}K", bits as f64 / 1e3),
        None => bits.to_string(),
    }
}

/// The longest accepted time. Sums and small multiples of it do not overflow.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// Parses a time with its unit: `500ns`, `20us`, `2ms`, `1.5s`. A plain number is in seconds. The maximum is 10^9 s.
///
/// # Errors
/// Returns the remedy if the text is not a number with one of the units or without a unit, or if the time is too long.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time; write 500ns, 20us, 2ms or 1.5s");
    let units = [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (unit, seconds) = units.iter().find(|(unit, _)| text.ends_with(unit)).unwrap_or(&("", 1.0));
    let number: f64 = text[..text.len() - unit.len()].trim_end().parse().map_err(|_| wrong())?;
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(time) if time <= LONGEST => Ok(time),
        Ok(_) => Err(format!("`{text}` is too long; write at most {}s", LONGEST.as_secs())),
        Err(_) => Err(wrong()),
    }
}

/// Formats a time in the largest unit that divides it.
pub fn duration_text(time: Duration) -> String {
    let nanos = time.as_nanos();
    let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000), ("ns", 1)];
    let unit = units.iter().find(|(_, each)| nanos.is_multiple_of(*each));
    unit.map_or_else(String::new, |(unit, each)| format!("{}{unit}", nanos / each))
}

/// Parses bytes: `64`, `4K`, `1M`, `1G`; the suffixes are powers of 1024.
///
/// # Errors
/// Returns the remedy if the text is not a number, or does not fit 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.trim_end_matches(['B', 'b']).to_ascii_uppercase() {
        t if t.ends_with('K') => (t, 1 << 10),
        t if t.ends_with('M') => (t, 1 << 20),
        t if t.ends_with('G') => (t, 1 << 30),
        t => (t, 1),
    };
    let number: u64 = digits
        .trim_end_matches(['K', 'M', 'G'])
        .parse()
        .map_err(|_| format!("`{text}` is no size; write bytes, or 4K, 1M, 1G"))?;
    number.checked_mul(factor).ok_or_else(|| format!("`{text}` is beyond 64 bits"))
}

/// Formats bytes in the largest unit that divides them, as [`parse_bytes`] parses them.
pub(crate) fn bytes_text(bytes: u64) -> String {
    let units = [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];
    let unit = units.iter().find(|(_, each)| bytes > 0 && bytes.is_multiple_of(*each));
    unit.map_or_else(|| bytes.to_string(), |(unit, each)| format!("{}{unit}", bytes / each))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formatted_value_parses_to_the_same() {
        for bits in [1, 999, 1000, 1500, 999_999, 1_000_001, 2_500_000_000, 10_000_000_000_000] {
            let rate = Rate::from_bps(bits);
            assert_eq!(parse_rate(&rate_text(rate)), Ok(rate));
        }
        assert_eq!(rate_text(Rate::from_bps(2_500_000_000)), "2500M");
        assert_eq!(rate_text(Rate::from_bps(1500)), "1.5K");
        for nanos in [0, 1, 999, 1000, 20_000, 1_500_000, 1_000_000_000, 999_999_999] {
            let time = Duration::from_nanos(nanos);
            assert_eq!(parse_duration(&duration_text(time)), Ok(time));
        }
        assert_eq!(duration_text(Duration::from_micros(20)), "20us");
        for bytes in [0, 1, 1023, 1 << 10, 1536 << 10, 64 << 20, 3 << 30, u64::MAX] {
            assert_eq!(parse_bytes(&bytes_text(bytes)), Ok(bytes));
        }
        assert_eq!(bytes_text(64 << 20), "64M");
    }

    #[test]
    fn a_small_rate_has_a_unit() {
        assert_eq!(parse_rate("1000000"), Ok(Rate::from_mbps(1)));
        assert_eq!(parse_rate("1000000000"), Ok(Rate::from_gbps(1)));
        for (text, remedy) in
            [("25", "write \"25G\""), ("25000", "write \"25000M\""), ("999999.9", "write \"999999.9M\"")]
        {
            let error = parse_rate(text).unwrap_err();
            assert!(error.ends_with(remedy), "{error}");
        }
    }
}
