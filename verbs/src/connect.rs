//! The data that two queue pairs exchange to connect, and the settings of a connection.

use crate::congestion::DEFAULT_CONGESTION;
use crate::{DeviceInfo, Error};
use roce::qp::{AckTimeout, Congestion, LossRecovery, RtrSettings, RtsSettings, udp_source_port};
use roce::wire::{Mtu, Path, RnrTimer};
use roce::{Psn, Qpn};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use thiserror::Error;

/// The data that a peer needs to connect to a queue pair. Programs exchange it by any means, as text (`Display`,
/// `FromStr`) or as data (`serde`).
///
/// ```
/// # use ferroce_verbs::QpEndpoint;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let peer: QpEndpoint = "ip=10.0.0.1,qpn=0x11,psn=5,mtu=1024,rd_atomic=16".parse()?;
/// assert_eq!(peer.qpn.get(), 0x11);
/// assert_eq!(peer.to_string().parse::<QpEndpoint>()?, peer);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct QpEndpoint {
    /// The device's address: its GID.
    pub ip: IpAddr,
    /// The queue pair's number.
    pub qpn: Qpn,
    /// The first PSN that the queue pair sends.
    pub psn: Psn,
    /// The largest path MTU that the queue pair's port carries.
    pub mtu: Mtu,
    /// The number of READs and atomics that the queue pair executes at a time.
    pub max_rd_atomic: u8,
    /// True if the queue pair offers selective repeat: after a loss, only lost packets are resent. It is used if both sides offer it, and
    /// otherwise once a peer accepts it after a loss.
    pub selective_repeat: bool,
}

/// The settings of a connection, as in `ConnectOptions::new().retry_count(2)`.
///
/// ```
/// # use ferroce_verbs::{ConnectOptions, congestion::parse_congestion};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // A queue pair that gives up early, with an algorithm of its own.
/// let options = ConnectOptions::new().retry_count(2).congestion(parse_congestion("dcqcn,line_rate=10G")?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "it changes nothing before it is passed to connect()"]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The ACK timeout, after which a request is resent. The default, code 14, is 67 ms. The timeout doubles after the first retry, and is
    /// four times as long after later ones (IBA 9.7.6.1.3). With 7 retries, a queue pair therefore fails after 27 timeouts, 1.8 s.
    pub ack_timeout: AckTimeout,
    /// The number of retries before the queue pair fails, 0 to 7. The default is 7.
    pub retry_count: u8,
    /// The number of retries after RNR NAKs, 0 to 6. The default, 7, retries without limit.
    pub rnr_retry: u8,
    /// RNR timer, which NAKs carry: how long the peer waits if no receive request is posted. The default, code 12, is 0.64 ms.
    pub min_rnr_timer: RnrTimer,
    /// Path MTU. The default is the largest that both ports carry.
    pub mtu: Option<Mtu>,
    /// The limit on READs and atomics outstanding at the peer, also bounded by the number that the peer executes at a time. The
    /// default is 16.
    pub max_rd_atomic: u8,
    /// Congestion control. The default is the device's first matching rule, or [`DEFAULT_CONGESTION`] if none matches.
    pub congestion: Option<Congestion>,
    /// DSCP (6 bits) and ECN (2 bits): IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit. 64 by default.
    pub hop_limit: u8,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            ack_timeout: AckTimeout::new(14),
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::new(12),
            mtu: None,
            max_rd_atomic: 16,
            congestion: None,
            traffic_class: 0,
            hop_limit: 64,
        }
    }
}

impl ConnectOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [the ACK timeout](Self::ack_timeout).
    pub fn ack_timeout(self, ack_timeout: AckTimeout) -> Self {
        Self { ack_timeout, ..self }
    }

    /// Sets [the number of retries](Self::retry_count).
    pub fn retry_count(self, retry_count: u8) -> Self {
        Self { retry_count, ..self }
    }

    /// Sets [the number of retries after RNR NAKs](Self::rnr_retry).
    pub fn rnr_retry(self, rnr_retry: u8) -> Self {
        Self { rnr_retry, ..self }
    }

    /// Sets [the time that the peer waits after an RNR NAK](Self::min_rnr_timer).
    pub fn min_rnr_timer(self, min_rnr_timer: RnrTimer) -> Self {
        Self { min_rnr_timer, ..self }
    }

    /// Sets [the path MTU](Self::mtu).
    pub fn mtu(self, mtu: impl Into<Option<Mtu>>) -> Self {
        Self { mtu: mtu.into(), ..self }
    }

    /// Sets [the limit on outstanding READs and atomics](Self::max_rd_atomic).
    pub fn max_rd_atomic(self, max_rd_atomic: u8) -> Self {
        Self { max_rd_atomic, ..self }
    }

    /// Sets [congestion control](Self::congestion).
    pub fn congestion(self, congestion: impl Into<Option<Congestion>>) -> Self {
        Self { congestion: congestion.into(), ..self }
    }

    /// Sets [the traffic class](Self::traffic_class).
    pub fn traffic_class(self, traffic_class: u8) -> Self {
        Self { traffic_class, ..self }
    }

    /// Sets [the hop limit](Self::hop_limit).
    pub fn hop_limit(self, hop_limit: u8) -> Self {
        Self { hop_limit, ..self }
    }
}

/// The settings of both transitions. They do not contain the peer's Ethernet address yet.
pub(crate) struct Plan {
    pub(crate) receive: RtrSettings,
    pub(crate) send: RtsSettings,
}

impl ConnectOptions {
    pub(crate) fn plan(
        &self,
        device: &DeviceInfo,
        ours: &QpEndpoint,
        remote: &QpEndpoint,
    ) -> Result<Plan, Error> {
        self.check(device)?;
        if ours.ip.is_ipv4() != remote.ip.is_ipv4() {
            let family = if remote.ip.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(Error::Family { port: device.port.clone(), family, peer: remote.ip });
        }
        let mtu = self.path_mtu(ours.mtu.min(remote.mtu))?;
        let path = Path {
            udp_source: udp_source_port(ours.ip, ours.qpn, remote.qpn),
            hop_limit: self.hop_limit,
            ..device.path(ours.ip, remote.ip, self.traffic_class)
        };
        let receive = RtrSettings {
            path,
            destination: remote.qpn,
            mtu,
            receive_psn: remote.psn,
            max_dest_rd_atomic: ours.max_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            loss_recovery: match (ours.selective_repeat, remote.selective_repeat) {
                (true, true) => LossRecovery::SelectiveRepeat,
                (true, false) => LossRecovery::Offered,
                (false, _) => LossRecovery::GoBackN,
            },
            feedback_key: self.congestion.and_then(|congestion| congestion.feedback_key),
        };
        let send = RtsSettings {
            send_psn: ours.psn,
            ack_timeout: self.ack_timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.max_rd_atomic.min(remote.max_rd_atomic),
            congestion: self.congestion.unwrap_or(DEFAULT_CONGESTION),
        };
        Ok(Plan { receive, send })
    }

    /// Returns the path MTU, by default `most`, the largest that both ports carry.
    pub(crate) fn path_mtu(&self, most: Mtu) -> Result<Mtu, Error> {
        match self.mtu {
            Some(mtu) if mtu > most => {
                let limit = format!("at most {}, as both ports carry", most.bytes());
                Err(Error::value("path MTU", mtu.bytes(), limit))
            }
            wanted => Ok(wanted.unwrap_or(most)),
        }
    }

    pub(crate) fn check(&self, device: &DeviceInfo) -> Result<(), Error> {
        let most = device.limits.max_rd_atomic;
        for (what, value, most) in [
            ("retry_count", self.retry_count, 7),
            ("rnr_retry", self.rnr_retry, 7),
            ("max_rd_atomic", self.max_rd_atomic, most),
        ] {
            if value > most {
                return Err(Error::value(what, value, format!("0 to {most}")));
            }
        }
        if self.hop_limit == 0 {
            return Err(Error::value("hop_limit", 0, "1 to 255".into()));
        }
        Ok(())
    }
}

/// The error of a text that is not a [`QpEndpoint`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a queue pair endpoint; expected ip=10.0.0.1,qpn=0x11,psn=5,mtu=1024,rd_atomic=16")]
pub struct ParseEndpointError(String);

/// `ip=10.0.0.1,qpn=0x000011,psn=5,mtu=1024,rd_atomic=16`, and `,selective_repeat` if it is offered.
impl fmt::Display for QpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ip, qpn, psn, mtu, max_rd_atomic, selective_repeat } = self;
        write!(f, "ip={ip},qpn={qpn},psn={psn},mtu={},rd_atomic={max_rd_atomic}", mtu.bytes())?;
        if *selective_repeat { f.write_str(",selective_repeat") } else { Ok(()) }
    }
}

impl FromStr for QpEndpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, ParseEndpointError> {
        parse(text).ok_or_else(|| ParseEndpointError(text.chars().take(200).collect()))
    }
}

fn parse(text: &str) -> Option<QpEndpoint> {
    let mut fields = text.trim().split(',');
    let mut field = |name: &str| fields.next()?.trim().strip_prefix(name)?.strip_prefix('=');
    let ip = field("ip")?.parse().ok()?;
    let qpn = field("qpn")?.parse::<Qpn>().ok()?.get();
    let psn = field("psn")?.parse().ok()?;
    let mtu = field("mtu")?.parse().ok()?;
    let max_rd_atomic = field("rd_atomic")?.parse().ok()?;
    let selective_repeat = match fields.next().map(str::trim) {
        None => false,
        Some("selective_repeat") => true,
        Some(_) => return None,
    };
    if fields.next().is_some() {
        return None;
    }
    Fields { ip, qpn, psn, mtu, max_rd_atomic, selective_repeat }.try_into().ok()
}

/// A [`QpEndpoint`] in plain numbers.
#[derive(Serialize, Deserialize)]
struct Fields {
    ip: IpAddr,
    qpn: u32,
    psn: u32,
    mtu: u32,
    max_rd_atomic: u8,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    selective_repeat: bool,
}

impl From<QpEndpoint> for Fields {
    fn from(from: QpEndpoint) -> Self {
        let QpEndpoint { ip, qpn, psn, mtu, max_rd_atomic, selective_repeat } = from;
        Self { ip, qpn: qpn.get(), psn: psn.get(), mtu: mtu.bytes(), max_rd_atomic, selective_repeat }
    }
}

impl TryFrom<Fields> for QpEndpoint {
    type Error = String;

    fn try_from(from: Fields) -> Result<Self, String> {
        let Fields { ip, qpn, psn, mtu, max_rd_atomic, selective_repeat } = from;
        if qpn >= 1 << 24 {
            return Err(format!("qpn {qpn} has more than 24 bits"));
        }
        if psn >= Psn::CIRCLE {
            return Err(format!("psn {psn} has more than 24 bits"));
        }
        let mtu =
            Mtu::ALL.into_iter().find(|m| m.bytes() == mtu).ok_or(format!("{mtu} is not a path MTU"))?;
        Ok(Self { ip, qpn: Qpn::new(qpn), psn: Psn::new(psn), mtu, max_rd_atomic, selective_repeat })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_endpoint_survives_text(
            ip: IpAddr, qpn in 0..1u32 << 24, psn in 0..1u32 << 24, mtu in 0..5usize, rd: u8, selective_repeat: bool,
        ) {
            let endpoint = QpEndpoint {
                ip, qpn: Qpn::new(qpn), psn: Psn::new(psn), mtu: Mtu::ALL[mtu], max_rd_atomic: rd,
                selective_repeat,
            };
            prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text: String) {
            if let Ok(endpoint) = text.parse::<QpEndpoint>() {
                prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
            }
        }
    }

    #[test]
    fn an_option_out_of_range_is_refused() {
        for text in [
            "",
            "ip=10.0.0.1,qpn=0x1000000,psn=5,mtu=1024,rd_atomic=16",
            "ip=10.0.0.1,qpn=0x11,psn=16777216,mtu=1024,rd_atomic=16",
            "ip=10.0.0.1,qpn=0x11,psn=5,mtu=1500,rd_atomic=16",
            "ip=10.0.0.1,qpn=0x11,psn=5,mtu=1024,rd_atomic=16,more=1",
        ] {
            assert_eq!(text.parse::<QpEndpoint>(), Err(ParseEndpointError(text.into())));
        }
    }
}
