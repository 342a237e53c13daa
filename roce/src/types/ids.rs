//! The numbers of an endpoint's objects.

/// A protection domain: queue pairs and regions of different domains don't meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// A completion queue of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// A shared receive queue of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub u32);

/// An XRC domain of one endpoint: its targets and its shared receive queues meet, others don't.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XrcdId(pub u32);

/// An address handle of one endpoint: a place in the table, and the generation of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressId(u32);

impl AddressId {
    pub(crate) const fn new(place: u16, generation: u16) -> Self {
        Self((generation as u32) << 16 | place as u32)
    }

    /// Returns its place in the table.
    pub(crate) const fn place(self) -> u16 {
        self.0 as u16
    }

    /// Returns the generation of the place's content that it is for.
    pub(crate) const fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}
