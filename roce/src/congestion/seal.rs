//! Feedback authentication: a keyed hash over header, content and an increasing counter (rtgwg-00 9.1).

use crate::wire::{Bth, MAX_FEEDBACK, Opcode, SETUP_LENGTH, Seal};
use crate::{Discard, Psn, Qpn};
use siphasher::sip128::{Hasher128, SipHasher24};

/// Key that two queue pairs share, 128 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FeedbackKey(pub [u8; 16]);

impl FeedbackKey {
    /// Authenticates a switch's direct response with this BTH and content. `counter` must be above all earlier ones to the same queue pair,
    /// by any switch: use the time in ns since 1970.
    #[must_use]
    pub fn seal_direct(self, bth: &Bth, content: &[u8], counter: u64) -> Seal {
        Seal { counter, tag: SealedFields::direct(bth).hash(self, counter, content) }
    }

    /// Returns the 128-bit SipHash-2-4 of `bytes` under this key.
    #[must_use]
    pub fn tag(self, bytes: &[u8]) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        core::hash::Hasher::write(&mut hasher, bytes);
        hasher.finish128().as_bytes()
    }
}

/// Does not print the key.
impl core::fmt::Debug for FeedbackKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FeedbackKey(..)")
    }
}

/// Length of opcode, both queue pair numbers, PSN, the data sender's first PSN, and counter, bytes.
const PREFIX: usize = 1 + 4 + 4 + 4 + 4 + 8;
const CONTENT: usize = if SETUP_LENGTH > MAX_FEEDBACK { SETUP_LENGTH } else { MAX_FEEDBACK };

/// Authentication state of a connection: accepts each packet of the peer once, and in order.
#[derive(Debug, Default)]
pub(crate) struct FeedbackAuth {
    key: Option<FeedbackKey>,
    sent: u64,
    received: u64,
    /// Counter of switches, which is independent of that of the peer.
    received_direct: u64,
}

/// Header fields that the hash covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct SealedFields {
    pub(super) opcode: Opcode,
    pub(super) from: Qpn,
    pub(super) to: Qpn,
    pub(super) psn: Psn,
    /// First PSN of the data that the packet is about, which distinguishes connections of the same two queue pairs.
    pub(super) first: Psn,
}

impl SealedFields {
    pub(super) const fn new(opcode: Opcode, from: Qpn, bth: &Bth, first: Psn) -> Self {
        Self { opcode, from, to: bth.destination, psn: bth.psn, first }
    }

    /// Creates the fields of a direct response, which no queue pair sends.
    pub(super) const fn direct(bth: &Bth) -> Self {
        Self::new(Opcode::DIRECT_RESPONSE, Qpn::new(0), bth, Psn::new(0))
    }

    fn hash(&self, key: FeedbackKey, counter: u64, content: &[u8]) -> [u8; 16] {
        // The hash is fastest on one contiguous buffer.
        let mut bytes = [0; PREFIX + CONTENT];
        bytes[0] = self.opcode.0;
        bytes[1..5].copy_from_slice(&self.from.get().to_be_bytes());
        bytes[5..9].copy_from_slice(&self.to.get().to_be_bytes());
        bytes[9..13].copy_from_slice(&self.psn.get().to_be_bytes());
        bytes[13..17].copy_from_slice(&self.first.get().to_be_bytes());
        bytes[17..25].copy_from_slice(&counter.to_be_bytes());
        let length = content.len().min(CONTENT);
        bytes[PREFIX..PREFIX + length].copy_from_slice(&content[..length]);
        key.tag(&bytes[..PREFIX + length])
    }
}

impl FeedbackAuth {
    pub(crate) const fn new(key: Option<FeedbackKey>) -> Self {
        Self { key, sent: 0, received: 0, received_direct: 0 }
    }

    /// Returns the state for `key`. If the key is unchanged, its counters continue, so that the peer does not reject answers as replays.
    pub(super) fn with_key(self, key: Option<FeedbackKey>) -> Self {
        if self.key == key { self } else { Self::new(key) }
    }

    pub(super) const fn is_used(&self) -> bool {
        self.key.is_some()
    }

    /// Resets the counter, because another queue pair with its own counter sends from now on. Its answers match outstanding probes, so they
    /// are no replays.
    pub(super) const fn restart(&mut self) {
        self.received = 0;
    }

    /// Authenticates a packet with this content; `None` without a key.
    pub(super) fn seal(&mut self, sealed: &SealedFields, content: &[u8]) -> Option<Seal> {
        let key = self.key?;
        self.sent += 1;
        Some(Seal { counter: self.sent, tag: sealed.hash(key, self.sent, content) })
    }

    /// Checks that the peer sent the packet, and that its counter is above all earlier ones. Without a key every packet passes.
    pub(super) fn verify(
        &mut self,
        sealed: &SealedFields,
        content: &[u8],
        seal: Option<Seal>,
    ) -> Result<(), Discard> {
        let Some(key) = self.key else { return Ok(()) };
        let seal = seal.ok_or(Discard::ForgedFeedback)?;
        let tag = sealed.hash(key, seal.counter, content);
        // Constant time: no branch depends on the position of a difference.
        let difference = tag.iter().zip(seal.tag).fold(0, |all, (ours, theirs)| all | (ours ^ theirs));
        if difference != 0 {
            return Err(Discard::ForgedFeedback);
        }
        let is_direct = sealed.opcode == Opcode::DIRECT_RESPONSE;
        let received = if is_direct { &mut self.received_direct } else { &mut self.received };
        if seal.counter <= *received {
            return Err(Discard::StaleFeedback);
        }
        *received = seal.counter;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: FeedbackKey = FeedbackKey([7; 16]);

    fn sealed() -> SealedFields {
        SealedFields {
            opcode: Opcode::TELEMETRY_RESPONSE,
            from: Qpn::new(1),
            to: Qpn::new(2),
            psn: Psn::new(3),
            first: Psn::new(4),
        }
    }

    #[test]
    fn a_seal_authenticates_one_packet_once() {
        let (mut ours, mut theirs) = (FeedbackAuth::new(Some(KEY)), FeedbackAuth::new(Some(KEY)));
        let seal = ours.seal(&sealed(), b"content");
        for other in [
            SealedFields { opcode: Opcode::TELEMETRY_NOTIFICATION, ..sealed() },
            SealedFields { from: Qpn::new(9), ..sealed() },
            SealedFields { to: Qpn::new(9), ..sealed() },
            SealedFields { psn: Psn::new(9), ..sealed() },
            SealedFields { first: Psn::new(9), ..sealed() },
        ] {
            assert_eq!(theirs.verify(&other, b"content", seal), Err(Discard::ForgedFeedback), "{other:?}");
        }
        assert_eq!(theirs.verify(&sealed(), b"c0ntent", seal), Err(Discard::ForgedFeedback));
        let later = seal.map(|seal| Seal { counter: seal.counter + 1, ..seal });
        assert_eq!(theirs.verify(&sealed(), b"content", later), Err(Discard::ForgedFeedback));
        assert_eq!(theirs.verify(&sealed(), b"content", None), Err(Discard::ForgedFeedback));
        assert_eq!(theirs.verify(&sealed(), b"content", seal), Ok(()));
        assert_eq!(theirs.verify(&sealed(), b"content", seal), Err(Discard::StaleFeedback), "a replay");
        let next = ours.seal(&sealed(), b"content");
        assert_eq!(theirs.verify(&sealed(), b"content", next), Ok(()));
    }

    /// The first vectors of SipHash's authors (vectors.h, 128 bits): key 00 01 .. 0f, input 00 01 .. of 0 and 1 bytes.
    #[test]
    fn the_hash_is_siphash_2_4_with_128_bits() {
        let key = FeedbackKey(core::array::from_fn(|index| index as u8));
        let hex = |tag: [u8; 16]| u128::from_be_bytes(tag);
        assert_eq!(hex(key.tag(&[])), 0xa381_7f04_ba25_a8e6_6df6_7214_c755_0293);
        assert_eq!(hex(key.tag(&[0])), 0xda87_c1d8_6b99_af44_3476_5911_9b22_fc45);
    }

    #[test]
    fn a_seal_of_another_key_is_refused_and_without_a_key_there_is_none() {
        let mut other = FeedbackAuth::new(Some(FeedbackKey([8; 16])));
        let seal = other.seal(&sealed(), b"content");
        assert_eq!(
            FeedbackAuth::new(Some(KEY)).verify(&sealed(), b"content", seal),
            Err(Discard::ForgedFeedback)
        );
        assert_eq!(FeedbackAuth::new(None).seal(&sealed(), b"content"), None);
        assert_eq!(FeedbackAuth::new(None).verify(&sealed(), b"content", None), Ok(()));
    }
}
