//! The GID table of a port: its addresses by index, in the order that Linux uses (`drivers/infiniband/core/cache.c`).

use super::link_local;
use roce::wire::Mac;
use std::net::IpAddr;

/// The kind of an address, in the order of a new table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum GidKind {
    LinkLocal,
    V4,
    V6,
}

fn kind(ip: IpAddr) -> GidKind {
    match ip {
        IpAddr::V4(_) => GidKind::V4,
        IpAddr::V6(ip) if ip.is_unicast_link_local() => GidKind::LinkLocal,
        IpAddr::V6(_) => GidKind::V6,
    }
}

/// The GIDs of a port. An address keeps its index until it is removed. A new address gets the first free index.
///
/// Index 0 has the default GID, the link-local address derived from the MAC. It stays even if the interface does not have that address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GidTable(Vec<Option<IpAddr>>);

impl GidTable {
    /// The number of indices: as many as the source GID index of an address handle can express.
    pub const LIMIT: usize = 256;

    /// Creates a table in Linux's order: the default GID, other link-local addresses, IPv4, other IPv6. Omits addresses beyond the
    /// [limit](Self::LIMIT).
    #[must_use]
    pub fn new(mac: Mac, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let first = IpAddr::from(link_local(mac));
        let mut others: Vec<_> = addresses.into_iter().filter(|address| *address != first).collect();
        others.sort_by_key(|address| kind(*address));
        Self([first].into_iter().chain(others).take(Self::LIMIT).map(Some).collect())
    }

    /// Adds an address at the first free index. Returns false if the table has it already, or is full.
    pub fn add(&mut self, address: IpAddr) -> bool {
        if self.contains(address) {
            return false;
        }
        let index = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        match self.0.get_mut(index) {
            Some(hole) => *hole = Some(address),
            None if index < Self::LIMIT => self.0.push(Some(address)),
            None => return false,
        }
        true
    }

    /// Removes an address. Returns false if the table does not have it, or it is the default GID.
    pub fn remove(&mut self, address: IpAddr) -> bool {
        match self.position(address) {
            Some(index @ 1..) => self.0[index] = None,
            Some(0) | None => return false,
        }
        true
    }

    /// Returns the address at `index`, if any.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<IpAddr> {
        self.0.get(index).copied().flatten()
    }

    /// Returns the index of an address.
    #[must_use]
    pub fn position(&self, address: IpAddr) -> Option<usize> {
        self.0.iter().position(|entry| *entry == Some(address))
    }

    /// Returns true if the table has this address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.position(address).is_some()
    }

    /// Returns the addresses with their indices, in order.
    pub fn entries(&self) -> impl Iterator<Item = (usize, IpAddr)> + '_ {
        self.0.iter().enumerate().filter_map(|(index, entry)| Some((index, (*entry)?)))
    }

    /// Returns the addresses in the order of their indices.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.iter().copied().flatten()
    }

    /// Returns the default GID index, chosen as perftest does: IPv4, else an IPv6 address that is not link-local, else the first.
    #[must_use]
    pub fn preferred(&self) -> usize {
        self.of_kind(GidKind::V4).or_else(|| self.of_kind(GidKind::V6)).unwrap_or(0)
    }

    /// Returns the default GID index for `peer`: the first address of the peer's kind (IPv4, IPv6, link-local), else of its family.
    #[must_use]
    pub fn towards(&self, peer: IpAddr) -> usize {
        let of_family = || self.find(|gid| gid.is_ipv4() == peer.is_ipv4());
        self.of_kind(kind(peer)).or_else(of_family).unwrap_or(0)
    }

    fn of_kind(&self, wanted: GidKind) -> Option<usize> {
        self.find(|gid| kind(gid) == wanted)
    }

    fn find(&self, wanted: impl Fn(IpAddr) -> bool) -> Option<usize> {
        self.entries().find(|(_, gid)| wanted(*gid)).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn shown(table: &GidTable) -> Vec<(usize, String)> {
        table.entries().map(|(index, address)| (index, address.to_string())).collect()
    }

    #[test]
    fn gids_have_the_order_of_linux() {
        let given = ["fd77::1", "10.0.0.1", "fe80::7", "10.0.0.2", "fe80::ff:fe00:1", "2001:db8::1"].map(ip);
        let table = GidTable::new(MAC, given);
        let table: Vec<_> = table.addresses().map(|address| address.to_string()).collect();
        let expected = ["fe80::ff:fe00:1", "fe80::7", "10.0.0.1", "10.0.0.2", "fd77::1", "2001:db8::1"];
        assert_eq!(table, expected);
    }

    #[test]
    fn a_removed_address_leaves_a_hole_that_the_next_one_fills() {
        let mut table = GidTable::new(MAC, ["10.0.0.1", "10.0.0.2", "fd00::1"].map(ip));
        assert!(table.remove(ip("10.0.0.1")) && !table.remove(ip("10.0.0.1")));
        assert_eq!((table.get(1), table.position(ip("10.0.0.2"))), (None, Some(2)));
        assert_eq!((table.preferred(), table.towards(ip("10.0.0.9"))), (2, 2));
        assert!(table.add(ip("fd00::2")) && !table.add(ip("fd00::2")));
        assert!(table.add(ip("10.0.0.3")));
        let expected =
            [(0, "fe80::ff:fe00:1"), (1, "fd00::2"), (2, "10.0.0.2"), (3, "fd00::1"), (4, "10.0.0.3")];
        assert_eq!(shown(&table), expected.map(|(index, address)| (index, address.to_owned())));
    }

    #[test]
    fn the_default_gid_cannot_be_added_or_removed() {
        let default = ip("fe80::ff:fe00:1");
        let mut table = GidTable::new(MAC, []);
        assert!(!table.add(default) && !table.remove(default));
        assert_eq!(shown(&table), [(0, default.to_string())]);
    }

    #[test]
    fn a_full_table_refuses_addresses_until_one_is_removed() {
        let many = (0..300_u32).map(|n| IpAddr::from(n.to_be_bytes()));
        let mut table = GidTable::new(MAC, many);
        assert_eq!(table.addresses().count(), GidTable::LIMIT);
        assert!(!table.add(ip("fd00::1")));
        assert!(table.remove(table.get(255).unwrap()) && table.add(ip("fd00::1")));
        assert_eq!(table.position(ip("fd00::1")), Some(255));
    }
}
