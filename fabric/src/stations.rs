//! The forwarding table of a switch: the port of each station.

use crate::PortId;
use cc::Instant;
use roce::wire::Mac;
use std::time::Duration;

/// Associativity: the number of places for one address.
const WAYS: usize = 8;

#[derive(Clone, Copy)]
struct Station {
    mac: Mac,
    port: PortId,
    seen: Instant,
}

/// The port of each station: a table of fixed size, without stations that have been silent for `age`.
///
/// An address has [`WAYS`] possible places. If all are in use, the table accepts the station only after one of them has aged out. A flood
/// of forged addresses therefore cannot displace active stations.
pub(crate) struct Stations {
    places: Box<[Option<Station>]>,
    age: Duration,
    refused: u64,
}

impl Stations {
    /// Creates a table for `limit` stations, rounded up to a power of two, at least 8.
    pub(crate) fn new(limit: usize, age: Duration) -> Self {
        let places = limit.max(WAYS).next_power_of_two();
        Self { places: vec![None; places].into_boxed_slice(), age, refused: 0 }
    }

    /// Records that a frame from `mac` arrived at `port`. The port of a station that moved is replaced.
    pub(crate) fn learn(&mut self, now: Instant, mac: Mac, port: PortId) {
        let age = self.age;
        let ways = self.ways(mac);
        let mut free = None;
        for (index, way) in ways.iter_mut().enumerate() {
            match way {
                Some(station) if station.mac == mac => {
                    *station = Station { mac, port, seen: now };
                    return;
                }
                Some(station) if now.saturating_since(station.seen) < age => {}
                Some(_) | None => free = free.or(Some(index)),
            }
        }
        match free {
            Some(index) => ways[index] = Some(Station { mac, port, seen: now }),
            None => self.refused += 1,
        }
    }

    pub(crate) fn find(&mut self, now: Instant, mac: Mac) -> Option<PortId> {
        let age = self.age;
        self.ways(mac)
            .iter()
            .flatten()
            .find(|station| station.mac == mac && now.saturating_since(station.seen) < age)
            .map(|station| station.port)
    }

    pub(crate) fn len(&self, now: Instant) -> usize {
        self.places.iter().flatten().filter(|station| now.saturating_since(station.seen) < self.age).count()
    }

    /// Returns the number of times that no place was free for a new station.
    pub(crate) const fn refused(&self) -> u64 {
        self.refused
    }

    fn ways(&mut self, mac: Mac) -> &mut [Option<Station>] {
        let [a, b, c, d, e, f] = mac.0;
        let hash = u64::from_be_bytes([0, 0, a, b, c, d, e, f]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let sets = self.places.len() / WAYS;
        let set = (hash >> 32) as usize & (sets - 1);
        &mut self.places[set * WAYS..][..WAYS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(number: u32) -> Mac {
        let [a, b, c, d] = number.to_be_bytes();
        Mac([2, 0, a, b, c, d])
    }

    #[test]
    fn a_full_table_keeps_its_stations_until_they_age() {
        let mut stations = Stations::new(64, Duration::from_secs(300));
        let begin = Instant::ZERO;
        for number in 0..10_000 {
            stations.learn(begin, mac(number), PortId(1));
        }
        assert_eq!(stations.len(begin), 64);
        assert_eq!(stations.refused(), 10_000 - 64);

        let known: Vec<_> = (0..10_000).filter(|&n| stations.find(begin, mac(n)).is_some()).collect();
        assert_eq!(known.len(), 64);
        stations.learn(begin, mac(known[0]), PortId(2));
        assert_eq!(stations.find(begin, mac(known[0])), Some(PortId(2)), "it moved");

        let later = begin + Duration::from_secs(300);
        assert_eq!(stations.find(later, mac(known[0])), None);
        stations.learn(later, mac(20_000), PortId(0));
        assert_eq!(stations.find(later, mac(20_000)), Some(PortId(0)));
        assert_eq!(stations.len(later), 1);
    }
}
