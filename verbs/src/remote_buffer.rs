//! The data that a peer needs to access a memory region, as a value and as text.

use roce::Rkey;
use roce::qp::Remote;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The address, length and key of a peer's memory region. Programs exchange it as text (`Display`, `FromStr`) or as data (`serde`), like a
/// [`QpEndpoint`](crate::QpEndpoint).
///
/// ```
/// use ferroce_verbs::RemoteBuffer;
///
/// let told = RemoteBuffer { address: 0x7f00_0000_1000, length: 4096, rkey: 0x1a2b }.to_string();
/// assert_eq!(told, "address=0x7f0000001000,length=4096,rkey=0x1a2b");
/// assert_eq!(told.parse::<RemoteBuffer>()?.length, 4096);
/// # Ok::<_, ferroce_verbs::errors::ParseRemoteBufferError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteBuffer {
    /// The address of the first byte in requests.
    pub address: u64,
    /// The length in bytes.
    pub length: u64,
    /// The remote key.
    pub rkey: u32,
}

/// The error of a text that is not a [`RemoteBuffer`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a remote buffer; expected address=0x7f0000001000,length=4096,rkey=0x1a2b")]
pub struct ParseRemoteBufferError(String);

impl RemoteBuffer {
    /// Returns the remote side of a work request, at byte `offset`. The peer checks that it is in the region.
    #[must_use]
    pub fn at(&self, offset: u64) -> Remote {
        Remote { address: self.address.wrapping_add(offset), rkey: Rkey::new(self.rkey) }
    }
}

/// `address=0x7f0000001000,length=4096,rkey=0x1a2b`.
impl fmt::Display for RemoteBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, length, rkey } = self;
        write!(f, "address={address:#x},length={length},rkey={rkey:#x}")
    }
}

impl FromStr for RemoteBuffer {
    type Err = ParseRemoteBufferError;

    fn from_str(text: &str) -> Result<Self, ParseRemoteBufferError> {
        parse(text).ok_or_else(|| ParseRemoteBufferError(text.chars().take(200).collect()))
    }
}

fn parse(text: &str) -> Option<RemoteBuffer> {
    let mut fields = text.trim().split(',');
    let mut field = |name: &str| fields.next()?.trim().strip_prefix(name)?.strip_prefix('=');
    let address = u64::from_str_radix(field("address")?.strip_prefix("0x")?, 16).ok()?;
    let length = field("length")?.parse().ok()?;
    let rkey = u32::from_str_radix(field("rkey")?.strip_prefix("0x")?, 16).ok()?;
    fields.next().is_none().then_some(RemoteBuffer { address, length, rkey })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_buffer_survives_text(address: u64, length: u64, rkey: u32) {
            let buffer = RemoteBuffer { address, length, rkey };
            prop_assert_eq!(buffer.to_string().parse(), Ok(buffer));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text: String) {
            if let Ok(buffer) = text.parse::<RemoteBuffer>() {
                prop_assert_eq!(buffer.to_string().parse(), Ok(buffer));
            }
        }
    }

    #[test]
    fn a_malformed_buffer_is_refused() {
        for text in [
            "",
            "address=1,length=1,rkey=0x1",
            "address=0x1,length=1,rkey=0x100000000",
            "address=0x1,length=1,rkey=0x1,x=2",
        ] {
            assert_eq!(text.parse::<RemoteBuffer>(), Err(ParseRemoteBufferError(text.into())));
        }
    }
}
