//! The ids of an endpoint's objects.

/// Protection domain: queue pairs can use only regions of their own domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// Completion queue of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// Shared receive queue of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub u32);

/// XRC domain of one endpoint: its targets receive only for its own shared receive queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XrcdId(pub u32);

/// Address handle of one endpoint: a slot of the table, and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressId(u32);

impl AddressId {
    pub(crate) const fn new(slot: u16, generation: u16) -> Self {
        Self((generation as u32) << 16 | slot as u32)
    }

    pub(crate) const fn slot(self) -> u16 {
        self.0 as u16
    }

    pub(crate) const fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}
