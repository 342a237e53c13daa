//! Numbers with units, as people type them.

use cc::Rate;
use std::time::Duration;

/// Bytes: `64`, `4K`, `1M`, `1G`; the suffixes are powers of 1024.
///
/// # Errors
/// What is not a number, or does not fit 64 bits.
pub fn bytes(text: &str) -> Result<u64, String> {
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

/// Bits per second: `200M`, `1G`, `2.5G`; the suffixes are powers of 1000.
///
/// # Errors
/// What is not a positive number.
pub fn rate(text: &str) -> Result<Rate, String> {
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

/// A time with its unit: `500ns`, `20us`, `2ms`, `1.5s`.
///
/// # Errors
/// What is not a number followed by one of the units.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time; write 500ns, 20us, 2ms or 1.5s");
    let units = [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (unit, seconds) = units.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(wrong)?;
    let number: f64 = text[..text.len() - unit.len()].trim_end().parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

/// A time in seconds, or with a unit: `5`, `0.5`, `500ms`.
///
/// # Errors
/// As [`duration`]; zero.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let time = match text.parse::<f64>() {
        Ok(number) => {
            Duration::try_from_secs_f64(number).map_err(|_| format!("`{text}` is no time in seconds"))?
        }
        Err(_) => duration(text)?,
    };
    if time.is_zero() {
        Err(format!("`{text}`: a run needs some time; write seconds, or 500ms"))
    } else {
        Ok(time)
    }
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
        assert_eq!(rate("1000"), Ok(Rate::from_bps(1000)));
        for wrong in ["", "G", "0", "-1G", "nan", "inf", "1GG", "é"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_name_their_unit() {
        assert_eq!(duration("2ms"), Ok(Duration::from_millis(2)));
        assert_eq!(duration("20us"), Ok(Duration::from_micros(20)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        for wrong in ["", "s", "5", "-1s", "1m", "nans", "1e99s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(seconds("2"), Ok(Duration::from_secs(2)));
        assert_eq!(seconds("250ms"), Ok(Duration::from_millis(250)));
        assert!(seconds("0").is_err());
    }
}
