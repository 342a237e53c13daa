//! Rates and times as people write them.

use cc::Rate;
use std::time::Duration;

/// Bits per second: `200M`, `1G`, `2.5G`; the suffixes are powers of 1000.
///
/// # Errors
/// What is not a positive number.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    let wrong = || format!("`{text}` is no rate; write bits per second, or 200M, 1G, 2.5G");
    let (digits, factor) = match text.as_bytes().last().map(u8::to_ascii_uppercase) {
        Some(b'K') => (&text[..text.len() - 1], 1e3),
        Some(b'M') => (&text[..text.len() - 1], 1e6),
        Some(b'G') => (&text[..text.len() - 1], 1e9),
        Some(b'T') => (&text[..text.len() - 1], 1e12),
        _ => (text, 1.0),
    };
    let bits = digits.parse::<f64>().map_err(|_| wrong())? * factor;
    if (1.0..=1e15).contains(&bits) { Ok(Rate::from_bps(bits.round() as u64)) } else { Err(wrong()) }
}

/// Longer than any run: sums and multiples of a few such times still are times.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// A time with its unit: `500ns`, `20us`, `2ms`, `1.5s`. At most 10^9 s.
///
/// # Errors
/// What is not a number followed by one of the units, or longer.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time; write 500ns, 20us, 2ms or 1.5s");
    let units = [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (unit, seconds) = units.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(wrong)?;
    let number: f64 = text[..text.len() - unit.len()].trim_end().parse().map_err(|_| wrong())?;
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(time) if time <= LONGEST => Ok(time),
        Ok(_) => Err(format!("`{text}` is too long: at most {}s", LONGEST.as_secs())),
        Err(_) => Err(wrong()),
    }
}
