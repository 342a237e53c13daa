//! The functions of the congestion control algorithm as eBPF programs: CUBIC's own, and those that apply a lease.

use crate::bpf::btf::Btf;
use crate::bpf::{Assembler, Instruction, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, STACK};

const UPDATE: i32 = 2;
const DELETE: i32 = 3;
const LOOKUP: i32 = 1;
const TIME: i32 = 5;
const SET_OPTION: i32 = 49;

/// Offsets on a program's stack: a flow's key, the value of a socket option, a report.
const KEY: i16 = -16;
const OPTION: i16 = -24;
const REPORT: i16 = -48;

/// Bytes of a socket for its congestion control (`icsk_ca_priv`), and bytes of a flow's key, which is stored at their end.
const PRIVATE: usize = 104;
const KEY_SIZE: usize = 16;

/// Offsets of the fields that the programs access, and BTF ids of the functions that they call, in this kernel.
#[derive(Clone, Copy)]
pub(super) struct KernelLayout {
    /// In `struct sock_common`: both addresses, both ports.
    addresses: i16,
    ports: i16,
    /// In `struct tcp_sock`.
    window: i16,
    acknowledged: i16,
    next: i16,
    segment: i16,
    /// In `struct inet_connection_sock`: the end of `icsk_ca_priv`, after CUBIC's state. Before the kernel calls `release`, it clears a
    /// socket's local port, and after connect(2) to `AF_UNSPEC` also its address.
    kept_key: i16,
    cubic: [u32; 6],
    undo: u32,
}

/// CUBIC's functions that eBPF programs may call.
const CUBIC: [&str; 6] = [
    "cubictcp_init",
    "cubictcp_cong_avoid",
    "cubictcp_recalc_ssthresh",
    "cubictcp_state",
    "cubictcp_cwnd_event",
    "cubictcp_acked",
];

impl KernelLayout {
    /// Looks up the offsets and ids in the kernel's BTF. Returns the missing name as the error.
    pub(super) fn find(btf: &Btf) -> Result<Self, &'static str> {
        let place = |structure: &'static str, member: &'static str| {
            let (id, _) = btf.structure(structure).ok_or(structure)?;
            let (_, offset) = btf.member(id, member).ok_or(member)?;
            i16::try_from(offset).map_err(|_| member)
        };
        let private = place("inet_connection_sock", "icsk_ca_priv")?;
        let (_, cubic_size) = btf.structure("bictcp").ok_or("bictcp")?;
        if cubic_size > PRIVATE - KEY_SIZE {
            return Err("room behind bictcp");
        }
        let mut cubic = [0; 6];
        for (number, name) in cubic.iter_mut().zip(CUBIC) {
            *number = btf.function(name).ok_or(name)?;
        }
        Ok(Self {
            addresses: place("sock_common", "skc_addrpair")?,
            ports: place("sock_common", "skc_portpair")?,
            window: place("tcp_sock", "snd_cwnd")?,
            acknowledged: place("tcp_sock", "snd_una")?,
            next: place("tcp_sock", "snd_nxt")?,
            segment: place("tcp_sock", "mss_cache")?,
            kept_key: private + (PRIVATE - KEY_SIZE) as i16,
            cubic,
            undo: btf.function("tcp_reno_undo_cwnd").ok_or("tcp_reno_undo_cwnd")?,
        })
    }

    /// Returns the name and program of each function of `tcp_congestion_ops`. `flows` and `leases` are descriptors of maps.
    pub(super) fn programs(&self, flows: i32, leases: i32) -> [(&'static str, Vec<Instruction>); 8] {
        let [_, _, ssthresh, state, event, acked] = self.cubic;
        [
            ("init", self.init(flows)),
            ("cong_avoid", self.avoid(flows, leases)),
            ("release", self.release([flows, leases])),
            ("ssthresh", passed_on(ssthresh, 1, true)),
            ("undo_cwnd", passed_on(self.undo, 1, true)),
            ("set_state", passed_on(state, 2, false)),
            ("cwnd_event", passed_on(event, 2, false)),
            ("pkts_acked", passed_on(acked, 2, false)),
        ]
    }

    /// Initialises a flow, and reports it to user space before it sends anything.
    fn init(&self, flows: i32) -> Vec<Instruction> {
        let mut asm = Assembler::default();
        asm.load_double(R6, R1, 0);
        self.report(&mut asm, flows);
        for half in [0, 8] {
            asm.load_double(R2, STACK, KEY + half);
            asm.store_double(R6, self.kept_key + half, R2);
        }
        asm.copy(R1, R6);
        asm.call_kernel(self.cubic[0]);
        asm.verdict(0);
        asm.finish()
    }

    /// Handles an acknowledgement: reports the flow, and applies its lease, or calls CUBIC.
    fn avoid(&self, flows: i32, leases: i32) -> Vec<Instruction> {
        let mut asm = Assembler::default();
        let [over, cubic] = std::array::from_fn(|_| asm.label());
        for (to, argument) in [(R6, 0), (R7, 1), (R8, 2)] {
            asm.load_double(to, R1, 8 * argument);
        }
        self.report(&mut asm, flows);
        entry(&mut asm, leases, LOOKUP);
        asm.if_null(cubic);
        asm.load_double(R1, R0, 8);
        asm.unless_above(R1, R9, over);
        asm.load_word(R2, R0, 4);
        asm.store_word(R6, self.window, R2);
        asm.load_word(R2, R0, 0);
        set_rate(&mut asm);
        asm.verdict(0);
        // Removes the rate of the expired lease.
        asm.place(over);
        asm.set(R2, -1);
        set_rate(&mut asm);
        asm.place(cubic);
        for (to, from) in [(R1, R6), (R2, R7), (R3, R8)] {
            asm.copy(to, from);
        }
        asm.call_kernel(self.cubic[1]);
        asm.verdict(0);
        asm.finish()
    }

    /// Ends a flow: deletes its entries by the key that was stored at its start.
    fn release(&self, maps: [i32; 2]) -> Vec<Instruction> {
        let mut asm = Assembler::default();
        asm.load_double(R6, R1, 0);
        for half in [0, 8] {
            asm.load_double(R2, R6, self.kept_key + half);
            asm.store_double(STACK, KEY + half, R2);
        }
        for map in maps {
            entry(&mut asm, map, DELETE);
        }
        asm.verdict(0);
        asm.finish()
    }

    fn key(&self, asm: &mut Assembler) {
        asm.load_double(R2, R6, self.addresses);
        asm.store_double(STACK, KEY, R2);
        asm.load_word(R2, R6, self.ports);
        asm.store_double(STACK, KEY + 8, R2);
    }

    /// Reports the socket in R6 to user space. Leaves the time in R9.
    fn report(&self, asm: &mut Assembler, flows: i32) {
        self.key(asm);
        asm.call(TIME);
        asm.copy(R9, R0);
        asm.store_double(STACK, REPORT, R9);
        for (place, field) in [(8, self.acknowledged), (12, self.next), (16, self.segment)] {
            asm.load_word(R2, R6, field);
            asm.store_word(STACK, REPORT + place, R2);
        }
        asm.set(R2, 0);
        asm.store_word(STACK, REPORT + 20, R2);
        asm.copy(R3, STACK);
        asm.add(R3, REPORT.into());
        asm.set(R4, 0);
        entry(asm, flows, UPDATE);
    }
}

/// Calls a map helper with the key on the stack.
fn entry(asm: &mut Assembler, map: i32, helper: i32) {
    asm.load_map(R1, map);
    asm.copy(R2, STACK);
    asm.add(R2, KEY.into());
    asm.call(helper);
}

/// Sets the maximum pacing rate of the socket in R6 to R2, in bytes per second. All ones means unlimited.
fn set_rate(asm: &mut Assembler) {
    asm.store_word(STACK, OPTION, R2);
    asm.copy(R1, R6);
    asm.set(R2, libc::SOL_SOCKET);
    asm.set(R3, libc::SO_MAX_PACING_RATE);
    asm.copy(R4, STACK);
    asm.add(R4, OPTION.into());
    asm.set(R5, 4);
    asm.call(SET_OPTION);
}

/// Returns a program that calls a kernel function with its own arguments.
fn passed_on(function: u32, arguments: u8, returns: bool) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    // Loads the first argument last, because it overwrites the register of the argument pointer.
    for argument in (0..arguments).rev() {
        asm.load_double(R1 + argument, R1, i16::from(argument) * 8);
    }
    asm.call_kernel(function);
    if !returns {
        asm.set(R0, 0);
    }
    asm.end();
    asm.finish()
}
