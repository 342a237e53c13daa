//! Two queue pairs driven by any operations, beside a model that knows only this: messages arrive in order, exactly once
//! and with equal memory; each request completes once and in order; after an error all is flushed.
//!
//! The same [`Operation`]s serve the property test and the fuzzer. First anything may happen; then the faults stop and all
//! must come to its end.

mod ledger;
mod network;
mod world;

use arbitrary::Arbitrary;

pub use world::run;

/// Requests that one side may post in one run; each has its own place in memory.
pub const REQUESTS: usize = 32;
/// Bytes of the longest message.
pub const LONGEST: u32 = 3000;

/// An operation of the model. `host` is the side that it happens to, or that it comes from; `frame` counts the frames on the way.
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
        /// By the peer's memory window, if there is one.
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
    /// 8 bytes at once.
    AtomicWrite {
        host: bool,
        with: With,
    },
    /// All that was written so far becomes visible to everyone.
    Flush {
        host: bool,
        whole_region: bool,
        with: With,
    },
    /// `host` binds its memory window.
    Bind {
        host: bool,
        with: With,
    },
    /// `host` takes its memory window back.
    Invalidate {
        host: bool,
        with: With,
    },
    /// A message that takes the peer's memory window back.
    SendInvalidate {
        host: bool,
        length: u16,
        with: With,
    },
    /// So many receives are posted.
    Receive {
        host: bool,
        count: u8,
    },
    /// The next so many things happen: frames arrive, timers fire.
    Step {
        count: u8,
    },
    /// So many microseconds pass.
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
    /// An acknowledgement of all that `host` took, as it might have sent one.
    Acknowledge {
        host: bool,
    },
    /// A NAK for a gap at what `host` expects.
    Gap {
        host: bool,
    },
    /// An RNR NAK at what `host` expects.
    NotReady {
        host: bool,
    },
    /// A congestion notification to `host`.
    Notify {
        host: bool,
    },
    /// `host` takes its completions.
    Poll {
        host: bool,
    },
    /// `host`'s memory is deregistered.
    Deregister {
        host: bool,
    },
    /// `host`'s queue pair is taken to ERR.
    Fail {
        host: bool,
    },
    /// `host`'s queue pair is destroyed: the peer has died.
    Destroy {
        host: bool,
    },
}

/// The number of requests of the rare kinds that succeeded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    pub words: u64,
    pub flushes: u64,
    /// WRITEs that were posted by a window's key.
    pub by_window: u64,
    /// Windows that their own host took back.
    pub taken_back: u64,
    /// Windows that a message took back.
    pub returned: u64,
    /// Requests over an extended connection.
    pub extended: u64,
    /// Selective acknowledgements of packets behind one that is missing.
    pub holes: u64,
    /// Answers to telemetry.
    pub answers: u64,
    /// Packets that were sprayed over another path than the first.
    pub sprayed: u64,
}

impl Reached {
    #[allow(dead_code, reason = "the fuzz target counts nothing")]
    pub fn all(&self) -> [u64; 9] {
        let Self { words, flushes, by_window, taken_back, returned, extended, holes, answers, sprayed } =
            *self;
        [words, flushes, by_window, taken_back, returned, extended, holes, answers, sprayed]
    }
}

/// The options that a request is posted with.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
pub struct With {
    pub signalled: bool,
    pub fence: bool,
    pub solicited: bool,
}

/// The settings of the connection of the two.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// 256 or 1024.
    pub small_packets: bool,
    /// Packets, 0: one byte.
    pub window: u8,
    /// The distance of the first PSN from the end of the circle.
    pub psn: u8,
    /// READs and atomics outstanding, less one.
    pub reads: u8,
    /// The ACK timeout is shorter than the round trip: every packet is sent again before its answer can come.
    pub hasty: bool,
    pub selective_repeat: bool,
    /// An extended connection: host 0 has the initiator, host 1 the target; what host 1 would ask, host 0 asks.
    pub xrc: bool,
    /// The depth of a completion queue beyond a few; 255: all.
    pub completions: u8,
    /// Which algorithm, and which format of telemetry.
    pub algorithm: u8,
    pub format: u8,
    /// Telemetry rides with data too.
    pub in_band: bool,
    /// The share of the path's link that others take, in 256ths, and the packets in its queue.
    pub load: u8,
    pub queue: u8,
}
