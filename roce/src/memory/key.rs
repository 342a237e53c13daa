//! The numbers of queue pairs, shared receive queues and memory regions on the wire.

use core::fmt;
use core::str::FromStr;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $width:literal, $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(u32);

        impl $name {
            /// Creates the number from its value on the wire; bits beyond the field's width are dropped.
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(value & (u32::MAX >> (32 - $width)))
            }

            /// Returns the value on the wire.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

number!(
    /// Number of a queue pair, 24 bits (IBA 9.2). Its text is hexadecimal, as in Wireshark: `0x000012`.
    Qpn, 24, "{:#08x}"
);
number!(
    /// Number of a shared receive queue of an XRC domain in a peer's requests, 24 bits (IBA annex A14).
    SrqNumber, 24, "{:#08x}"
);
number!(
    /// Key of a memory region in local work requests.
    Lkey, 32, "{:#x}"
);
number!(
    /// Key of a memory region in a remote peer's requests (IBA 10.6.3).
    Rkey, 32, "{:#x}"
);

/// Error for a text that is not a [`Qpn`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ParseQpnError;

crate::debug_as_display!(ParseQpnError);

impl fmt::Display for ParseQpnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a queue pair number of 24 bits; write 0x000012, or 18")
    }
}

impl core::error::Error for ParseQpnError {}

/// Parses `0x000012` or `18`.
impl FromStr for Qpn {
    type Err = ParseQpnError;

    fn from_str(text: &str) -> Result<Self, ParseQpnError> {
        let number = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => text.parse(),
        };
        let number = number.ok().filter(|&number| Self::new(number).0 == number);
        number.map(Self).ok_or(ParseQpnError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_queue_pair_number_is_read_in_both_bases_and_written_in_six_digits() {
        assert_eq!(Qpn::new(18).to_string(), "0x000012");
        for text in ["0x000012", "0x12", "18"] {
            assert_eq!(text.parse(), Ok(Qpn::new(18)), "{text}");
        }
        assert_eq!("0xffffff".parse(), Ok(Qpn::new(0xff_ffff)));
        for text in ["", "0x", "12a", "0x1000000", "16777216", "-1"] {
            assert_eq!(text.parse::<Qpn>(), Err(ParseQpnError), "{text}");
        }
    }
}
