//! Two queue pairs driven by arbitrary operations, and a model with only three rules. Messages arrive in order, exactly once and with equal
//! memory; each request completes once and in order; after an error everything is flushed.
//!
//! The property test and the fuzzer run the same [`Operation`]s. In the first part any fault may occur. Then the faults stop, and every
//! request must end.

mod network;
mod request_log;
mod simulation;

use arbitrary::Arbitrary;

pub use simulation::run;

/// Requests that one side may post in one run; each has its own area of memory.
pub const REQUESTS: usize = 32;
/// Bytes of the longest message.
pub const LONGEST: u32 = 3000;

/// An operation of the model. `host` is the side that performs it or is affected; `frame` selects one of the frames in flight.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Send {
        host: bool,
        length: u16,
        with: With,
    },
    Write {
        host: bool,
        length: u16,
        immediate: bool,
        /// Whether the request uses the key of the peer's memory window, if there is one.
        by_window: bool,
        with: With,
    },
    Read {
        host: bool,
        length: u16,
        with: With,
    },
    FetchAdd {
        host: bool,
        add: u8,
        with: With,
    },
    AtomicWrite {
        host: bool,
        with: With,
    },
    /// All bytes written so far become globally visible.
    Flush {
        host: bool,
        whole_region: bool,
        with: With,
    },
    Bind {
        host: bool,
        with: With,
    },
    Invalidate {
        host: bool,
        with: With,
    },
    SendInvalidate {
        host: bool,
        length: u16,
        with: With,
    },
    Receive {
        host: bool,
        count: u8,
    },
    /// The next `count` events occur: frames arrive, timers fire.
    Step {
        count: u8,
    },
    Pass {
        micros: u16,
    },
    Lose {
        frame: u8,
    },
    Duplicate {
        frame: u8,
        micros: u8,
    },
    Delay {
        frame: u8,
        micros: u8,
    },
    Flip {
        frame: u8,
        bit: u16,
    },
    /// A superfluous acknowledgement of everything that `host` received.
    Acknowledge {
        host: bool,
    },
    /// A NAK for a gap at the PSN that `host` expects.
    Gap {
        host: bool,
    },
    /// An RNR NAK at the PSN that `host` expects.
    NotReady {
        host: bool,
    },
    /// A congestion notification to `host`.
    Notify {
        host: bool,
    },
    /// The completions of `host` are polled.
    Poll {
        host: bool,
    },
    Deregister {
        host: bool,
    },
    /// `host`'s queue pair is moved to ERR.
    Fail {
        host: bool,
    },
    /// `host`'s queue pair is destroyed, as after the end of its process.
    Destroy {
        host: bool,
    },
}

/// The number of requests of the rare kinds that succeeded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    pub words: u64,
    pub flushes: u64,
    /// WRITEs with a window's key.
    pub by_window: u64,
    /// Windows that their own host invalidated.
    pub taken_back: u64,
    /// Windows that a message invalidated.
    pub returned: u64,
    /// Requests of an XRC connection.
    pub extended: u64,
    /// Selective acknowledgements of packets after a missing one.
    pub holes: u64,
    pub answers: u64,
    /// Packets that were sprayed over another path than the first.
    pub sprayed: u64,
}

impl Reached {
    pub fn all(&self) -> [u64; 9] {
        let Self { words, flushes, by_window, taken_back, returned, extended, holes, answers, sprayed } =
            *self;
        [words, flushes, by_window, taken_back, returned, extended, holes, answers, sprayed]
    }
}

#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
pub struct With {
    pub signalled: bool,
    pub fence: bool,
    pub solicited: bool,
}

#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Whether the MTU is 256 bytes; otherwise 1024.
    pub small_packets: bool,
    /// Window in packets; 0 means one byte.
    pub window: u8,
    /// The distance of the first PSN from 2^24.
    pub psn: u8,
    /// READs and atomics outstanding, minus 1.
    pub reads: u8,
    /// Whether the ACK timeout is shorter than the round trip: every packet is retransmitted before its answer can arrive.
    pub hasty: bool,
    pub selective_repeat: bool,
    /// Whether the connection is XRC: host 0 has the initiator, host 1 the target, and host 0 posts the requests of host 1.
    pub xrc: bool,
    /// The depth of a completion queue beyond a minimum of 4, modulo 8; 255 means room for all.
    pub completions: u8,
    pub algorithm: u8,
    pub format: u8,
    /// Whether data packets also carry telemetry.
    pub in_band: bool,
    /// The share of the path's link that other flows use, in 256ths, and the packets in its queue.
    pub load: u8,
    pub queue: u8,
}
