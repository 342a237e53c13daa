//! Address handles: the destinations of datagrams.

use crate::device::{Inner, gid_at};
use crate::fault::{self, Verb};
use crate::{Error, ProtectionDomain};
use roce::qp::{Datagram, udp_source_port_of_datagrams};
use roce::wire::Path;
use roce::{AddressId, PdId, Qpn};
use std::net::IpAddr;
use std::sync::Arc;

/// An address handle: the complete headers of datagrams to another port, for the queue pairs of one protection
/// domain.
///
/// ```
/// # use ferroce_verbs::{AddressOptions, MemoryRegion, ProtectionDomain, Qpn, QueuePair};
/// # use ferroce_verbs::{service::{Request, Ud}, wire::DEFAULT_QUEUE_KEY};
/// # type Outcome = Result<(), Box<dyn std::error::Error>>;
/// fn send(domain: &ProtectionDomain, qp: &mut QueuePair<Ud>, data: &MemoryRegion, peer: Qpn) -> Outcome {
///     let address = domain.address("10.0.0.2".parse()?, &AddressOptions::new().hop_limit(1))?;
///     qp.post_send(Request::send_to(1, data.sge(0, 64)?, address.to(peer, DEFAULT_QUEUE_KEY)))?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct AddressHandle {
    device: Arc<Inner>,
    pd: PdId,
    id: AddressId,
    path: Path,
}

/// The settings of an address handle, as in `AddressOptions::new().hop_limit(1)`.
///
/// ```
/// # use ferroce_verbs::AddressOptions;
/// let within_the_subnet = AddressOptions::new().hop_limit(1).traffic_class(26 << 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it changes nothing before it is passed to address()"]
#[non_exhaustive]
pub struct AddressOptions {
    /// GID index of the source address. With `None`, [`gid_towards`](crate::DeviceInfo::gid_towards) chooses it.
    pub gid_index: Option<usize>,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits. It selects the UDP source port, over IPv4 as well. If it is 0, the two addresses select the port.
    pub flow_label: u32,
}

impl Default for AddressOptions {
    fn default() -> Self {
        Self { gid_index: None, traffic_class: 0, hop_limit: 64, flow_label: 0 }
    }
}

impl AddressOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [the GID index](Self::gid_index).
    pub fn gid_index(self, gid_index: impl Into<Option<usize>>) -> Self {
        Self { gid_index: gid_index.into(), ..self }
    }

    /// Sets [the traffic class](Self::traffic_class).
    pub fn traffic_class(self, traffic_class: u8) -> Self {
        Self { traffic_class, ..self }
    }

    /// Sets [the hop limit](Self::hop_limit).
    pub fn hop_limit(self, hop_limit: u8) -> Self {
        Self { hop_limit, ..self }
    }

    /// Sets [the flow label](Self::flow_label).
    pub fn flow_label(self, flow_label: u32) -> Self {
        Self { flow_label, ..self }
    }
}

impl ProtectionDomain {
    /// Creates an address handle for `destination`. Waits up to 3 s for the neighbour's answer.
    ///
    /// # Errors
    /// Returns an error if the destination cannot be reached, the device has no such GID or too many handles, or the core has stopped.
    pub fn address(&self, destination: IpAddr, options: &AddressOptions) -> Result<AddressHandle, Error> {
        fault::check_call::<Error>(Verb::CreateAh)?;
        let info = self.device.current();
        let index = options.gid_index.unwrap_or_else(|| info.gid_towards(destination));
        let source = gid_at(&info.gids, index)?;
        if source.is_ipv4() != destination.is_ipv4() {
            let family = if destination.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(Error::Family { port: info.port.clone(), family, peer: destination });
        }
        let path = Path {
            destination_mac: self.device.engine.resolve(destination)?,
            udp_source: udp_source_port_of_datagrams(options.flow_label, source, destination),
            hop_limit: options.hop_limit,
            flow_label: options.flow_label & 0xf_ffff,
            ..info.path(source, destination, options.traffic_class)
        };
        let pd = self.pd;
        let id = self.device.engine.call(move |state, _| state.endpoint.create_address(pd, &path))??;
        Ok(AddressHandle { device: self.device.clone(), pd, id, path })
    }
}

impl AddressHandle {
    /// Returns the destination of datagrams to a queue pair at this address. If the top bit of `queue_key` is set, datagrams carry the
    /// sender's own key.
    #[must_use]
    pub fn to(&self, qpn: Qpn, queue_key: u32) -> Datagram {
        Datagram { address: self.id, qpn, queue_key }
    }

    /// Returns the headers of packets to this address.
    #[must_use]
    pub fn path(&self) -> Path {
        self.path
    }

    /// Returns whether queue pairs of `pd` may send to this address.
    #[must_use]
    pub fn is_of(&self, pd: &ProtectionDomain) -> bool {
        self.pd == pd.pd && Arc::ptr_eq(&self.device, &pd.device)
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        let id = self.id;
        // A stopped core has no handles left.
        let _ = self.device.engine.call(move |state, _| state.endpoint.destroy_address(id));
    }
}
