//! Address handles: paths to other ports, for datagrams.

use crate::wire::{EmitError, Mac, Path, Template};
use crate::{AddressId, ControlError, PdId};
use alloc::vec::Vec;
use core::net::IpAddr;

#[derive(Clone, Copy, Debug)]
struct Handle {
    pd: PdId,
    path: Path,
    template: Template,
}

struct Slot {
    generation: u16,
    handle: Option<Handle>,
}

///
/// An id is a slot of the table and its generation, so that a destroyed handle is not confused with its successor.
pub(crate) struct AddressTable {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

impl AddressTable {
    /// Limit of the address handles of one endpoint.
    pub(crate) const LIMIT: u32 = 1 << 16;

    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn create(&mut self, pd: PdId, path: &Path) -> Result<AddressId, ControlError> {
        let template = Template::new(path).map_err(|error| match error {
            EmitError::Families { from, to } => ControlError::Families { from, to },
            // Creating a template has no other error.
            _ => ControlError::Limit { what: "address handles", limit: Self::LIMIT },
        })?;
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let limit = ControlError::Limit { what: "address handles", limit: Self::LIMIT };
                let index = u16::try_from(self.slots.len()).map_err(|_| limit)?;
                self.slots.push(Slot { generation: 0, handle: None });
                index
            }
        };
        let slot = &mut self.slots[usize::from(index)];
        slot.handle = Some(Handle { pd, path: *path, template });
        Ok(AddressId::new(index, slot.generation))
    }

    /// Changes the Ethernet address of packets with the handle in this slot, whose destination is `peer`.
    pub(crate) fn redirect(&mut self, slot: u16, peer: IpAddr, mac: Mac) {
        let slot = self.slots.get_mut(usize::from(slot));
        if let Some(handle) = slot.and_then(|slot| slot.handle.as_mut()) {
            handle.path.destination_mac = mac;
            handle.template.redirect(peer, mac);
        }
    }

    /// Destroys a handle. Returns the destination of its packets; `None` if the handle does not exist.
    pub(crate) fn destroy(&mut self, id: AddressId) -> Option<(IpAddr, Mac)> {
        let (index, generation) = (id.slot(), id.generation());
        let slot = self.slots.get_mut(usize::from(index)).filter(|slot| slot.generation == generation)?;
        let Handle { path, .. } = slot.handle.take()?;
        slot.generation = generation.wrapping_add(1);
        self.free.push(index);
        Some((path.destination, path.destination_mac))
    }

    /// Returns the headers of packets with the handle, if it is of `pd`.
    pub(crate) fn get(&self, id: AddressId, pd: PdId) -> Option<&Template> {
        self.path_and_headers(id, pd).map(|(_, template)| template)
    }

    /// Returns the path and the headers of packets with the handle, if it is of `pd`.
    pub(crate) fn path_and_headers(&self, id: AddressId, pd: PdId) -> Option<(&Path, &Template)> {
        let (index, generation) = (id.slot(), id.generation());
        let slot = self.slots.get(usize::from(index)).filter(|slot| slot.generation == generation)?;
        slot.handle.as_ref().filter(|handle| handle.pd == pd).map(|handle| (&handle.path, &handle.template))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(to: u8) -> Path {
        Path::new((Mac([2; 6]), IpAddr::from([10, 0, 0, 1])), (Mac([4; 6]), IpAddr::from([10, 0, 0, to])))
    }

    #[test]
    fn a_destroyed_handle_does_not_refer_to_its_successor() {
        let mut table = AddressTable::new();
        let first = table.create(PdId(1), &path(2)).unwrap();
        assert!(table.get(first, PdId(1)).is_some());
        assert!(table.get(first, PdId(2)).is_none(), "of another domain");
        assert!(table.destroy(first).is_some() && table.destroy(first).is_none());
        let second = table.create(PdId(1), &path(3)).unwrap();
        assert!(table.get(first, PdId(1)).is_none());
        assert_eq!(table.get(second, PdId(1)), Template::new(&path(3)).ok().as_ref());
    }
}
