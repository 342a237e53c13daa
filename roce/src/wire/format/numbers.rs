//! Numbers of telemetry formats that no registry has assigned. A network has one of each, which all its switches and hosts use. Two devices
//! of one process may be in different networks, so the numbers are part of a device's configuration.

use crate::wire::constants::ROCE_PORT;

/// Numbers that a network uses for INT-MD, AECN, CSIG and TCP probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    int_port: u16,
    aecn_option: u8,
    csig_tpid: u16,
    tcp_dscp: u8,
}

/// Reason why a number cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum NumbersError {
    #[error("INT port {0}: out of range; use a UDP port above 0 other than RoCEv2's 4791")]
    IntPort(u16),
    #[error(
        "AECN option {0:#04x}: out of range; use 0x20 to 0x3f, whose top bits make hosts skip an unknown option, except 0x31, which is IOAM's"
    )]
    AecnOption(u8),
    #[error(
        "CSIG TPID {0:#06x}: it or the next number is below 0x0600, or the EtherType of ARP, IPv4, IPv6 or a VLAN tag; use another"
    )]
    CsigTpid(u16),
    #[error("TCP probe DSCP {0}: out of range; use 0 to 63")]
    TcpDscp(u8),
}

impl Default for Numbers {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Numbers {
    /// UDP port 1021, the first of those for experiments (RFC 4727 6); option 0x3E, for experiments (RFC 4727 3.6); TPID 0x9900, as in
    /// public switch code; DSCP 3, one for experiments and local use.
    pub const DEFAULT: Self = Self { int_port: 1021, aecn_option: 0x3e, csig_tpid: 0x9900, tcp_dscp: 3 };

    /// Creates the numbers: the UDP destination port of packets with an INT shim, and the type of AECN's hop-by-hop option. The others are
    /// the defaults.
    ///
    /// # Errors
    /// Returns [`NumbersError::IntPort`] or [`NumbersError::AecnOption`] if one of them has another meaning.
    pub const fn new(int_port: u16, aecn_option: u8) -> Result<Self, NumbersError> {
        if int_port == 0 || int_port == ROCE_PORT {
            return Err(NumbersError::IntPort(int_port));
        }
        if aecn_option >> 5 != 1 || aecn_option == super::ioam::OPTION {
            return Err(NumbersError::AecnOption(aecn_option));
        }
        Ok(Self { int_port, aecn_option, ..Self::DEFAULT })
    }

    /// Sets the EtherType of CSIG's compact tag; the wide tag has the next one.
    ///
    /// # Errors
    /// Returns [`NumbersError::CsigTpid`] if one of the two has another meaning.
    pub const fn with_csig_tpid(self, csig_tpid: u16) -> Result<Self, NumbersError> {
        // ARP, IPv4, 802.1Q, IPv6 and 802.1ad, and the number before each.
        let is_taken = matches!(
            csig_tpid,
            0x0800 | 0x0805 | 0x0806 | 0x07ff | 0x8100 | 0x80ff | 0x86dd | 0x86dc | 0x88a8 | 0x88a7
        );
        if csig_tpid < 0x0600 || csig_tpid == u16::MAX || is_taken {
            return Err(NumbersError::CsigTpid(csig_tpid));
        }
        Ok(Self { csig_tpid, ..self })
    }

    /// Sets the DSCP of TCP probes and their answers.
    ///
    /// # Errors
    /// Returns [`NumbersError::TcpDscp`] if it is above 63.
    pub const fn with_tcp_dscp(self, tcp_dscp: u8) -> Result<Self, NumbersError> {
        if tcp_dscp > 63 {
            return Err(NumbersError::TcpDscp(tcp_dscp));
        }
        Ok(Self { tcp_dscp, ..self })
    }

    /// Returns the DSCP of TCP probes and their answers.
    #[must_use]
    pub const fn tcp_dscp(self) -> u8 {
        self.tcp_dscp
    }

    /// Returns the EtherType of CSIG's compact tag.
    #[must_use]
    pub const fn csig_tpid(self) -> u16 {
        self.csig_tpid
    }

    /// Returns the UDP destination port of packets with an INT shim.
    #[must_use]
    pub const fn int_port(self) -> u16 {
        self.int_port
    }

    /// Returns the type of AECN's hop-by-hop option.
    #[must_use]
    pub const fn aecn_option(self) -> u8 {
        self.aecn_option
    }
}
