//! Sends and receives the probes of TCP flows on an interface. Received probes are dropped before the kernel's TCP.

use super::TcpError;
use crate::bpf::call::attach_at_ingress;
use crate::bpf::{Assembler, Instruction, R1, R6};
use crate::{socket_filter, socket_option};
use roce::wire::{Numbers, TCP_PROBE_LENGTH, TCP_PROBE_MARK, TcpArrival};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Verdicts: run the next program (`TCX_NEXT`), or drop the packet (`TCX_DROP`).
const NEXT: i32 = -1;
const DROP: i32 = 2;

/// `PACKET_IGNORE_OUTGOING` of `linux/if_packet.h`: the socket receives no copies of packets that this host sends.
const IGNORE_OUTGOING: libc::c_int = 23;

/// The sockets for probes on one interface. While they are open, the kernel's TCP does not receive probes or their answers.
#[derive(Debug)]
pub struct Probes {
    numbers: Numbers,
    /// A raw socket that sends complete IP packets.
    out: OwnedFd,
    /// A packet socket that receives a copy of each probe and answer.
    arrived: OwnedFd,
    _ingress: OwnedFd,
}

impl Probes {
    /// Opens the sockets on the interface with this index.
    ///
    /// # Errors
    /// Returns an error if the kernel lacks a feature or refuses permission.
    pub fn open(index: u32, numbers: Numbers) -> Result<Self, TcpError> {
        let out = out(index).map_err(TcpError::of("a raw socket", "IPv4 has it"))?;
        let arrived = arrived(index, numbers)
            .map_err(TcpError::of("a packet socket", "Linux 4.20 or newer with CONFIG_PACKET has it"))?;
        let _ingress = attach_at_ingress(&program(numbers), index).map_err(TcpError::of(
            "an eBPF program at an interface's ingress (tcx)",
            "Linux 6.6 or newer with CONFIG_NET_XGRESS has it",
        ))?;
        Ok(Self { numbers, out, arrived, _ingress })
    }

    /// Sends a packet that begins with its IP header.
    ///
    /// # Errors
    /// Returns the kernel's error, for example if there is no route.
    pub fn send(&self, packet: &[u8; TCP_PROBE_LENGTH]) -> io::Result<()> {
        let [.., a, b, c, d] = *packet.first_chunk::<20>().unwrap_or(&[0; 20]);
        let to = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([a, b, c, d]) },
            sin_zero: [0; 8],
        };
        // SAFETY: packet and address are readable for the lengths passed, and outlive the call.
        let sent = unsafe {
            libc::sendto(
                self.out.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                libc::MSG_DONTWAIT,
                (&raw const to).cast(),
                size_of_val(&to) as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits up to `time` for a packet. A signal ends the wait.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn wait(&self, time: Duration) -> io::Result<()> {
        let mut asked = libc::pollfd { fd: self.arrived.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time =
            libc::timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos().into() };
        // SAFETY: passes one pollfd and one timespec, and no signal mask.
        let ready = unsafe { libc::ppoll(&raw mut asked, 1, &raw const time, std::ptr::null()) };
        let error = io::Error::last_os_error();
        if ready < 0 && error.kind() != io::ErrorKind::Interrupted { Err(error) } else { Ok(()) }
    }

    /// Returns the next received packet, or `None` if it is malformed.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::WouldBlock`] if no packet is queued, otherwise the kernel's error, for example if the interface is down.
    pub fn receive(&self) -> io::Result<Option<TcpArrival>> {
        let mut packet = [0; TCP_PROBE_LENGTH];
        // SAFETY: all-zero bytes are a valid sockaddr_ll.
        let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut size = size_of_val(&from) as libc::socklen_t;
        // SAFETY: both buffers have the lengths passed.
        let length = unsafe {
            libc::recvfrom(
                self.arrived.as_raw_fd(),
                packet.as_mut_ptr().cast(),
                packet.len(),
                libc::MSG_DONTWAIT,
                (&raw mut from).cast(),
                &raw mut size,
            )
        };
        if length < 0 {
            return Err(io::Error::last_os_error());
        }
        let bytes = packet.get(..length as usize).unwrap_or_default();
        Ok(TcpArrival::read(bytes, from.sll_pkttype, self.numbers))
    }
}

fn socket(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket takes integers.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn out(index: u32) -> io::Result<OwnedFd> {
    let out = socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
    socket_option::set(&out, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &(index as libc::c_int))?;
    Ok(out)
}

/// Opens a packet socket whose packets begin with the IP header. Attaches the filter before binding, so that the socket receives nothing
/// else.
fn arrived(index: u32, numbers: Numbers) -> io::Result<OwnedFd> {
    let arrived = socket(libc::AF_PACKET, libc::SOCK_DGRAM, 0)?;
    socket_option::set(&arrived, libc::SOL_PACKET, IGNORE_OUTGOING, &1_i32)?;
    socket_filter::attach(&arrived, &mut filter(numbers))?;
    // SAFETY: all-zero bytes are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as i32;
    // SAFETY: the address is readable for its length.
    let bound = unsafe {
        libc::bind(arrived.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
    };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(arrived) }
}

/// Returns the fields that identify a probe or an answer: offset from the IP header, length in bytes, mask and value.
fn signs(numbers: Numbers) -> [(i32, u8, u32, u32); 4] {
    [
        (0, 1, 0xff, 0x45),
        (1, 1, 0xfc, u32::from(numbers.tcp_dscp()) << 2),
        (9, 1, 0xff, 6),
        (36, 2, 0xffff, 0),
    ]
}

/// Offset of the TCP payload from the IP header.
const MARK: i32 = 40;

/// Returns a classic BPF program that receives only probes and answers.
fn filter(numbers: Numbers) -> Vec<libc::sock_filter> {
    let code = |parts: u32| parts as u16;
    let load = |length: u8| match length {
        1 => code(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS),
        2 => code(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS),
        _ => code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS),
    };
    let equal = code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    let end = code(libc::BPF_RET | libc::BPF_K);
    let line = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = Vec::new();
    for (at, length, mask, value) in signs(numbers) {
        program.push(line(load(length), 0, 0, at as u32));
        program.push(line(code(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K), 0, 0, mask));
        program.push(line(equal, 1, 0, value));
        program.push(line(end, 0, 0, 0));
    }
    program.push(line(load(4), 0, 0, MARK as u32));
    program.push(line(equal, 2, 0, TCP_PROBE_MARK[0]));
    program.push(line(equal, 1, 0, TCP_PROBE_MARK[1]));
    program.push(line(end, 0, 0, 0));
    program.push(line(end, 0, 0, u32::MAX));
    program
}

/// Returns an eBPF program for the interface's ingress that drops probes and answers.
fn program(numbers: Numbers) -> Vec<Instruction> {
    const ETHERNET: i32 = 14;
    let mut asm = Assembler::default();
    let [next, drop] = std::array::from_fn(|_| asm.label());
    // Packet loads (BPF_LD_ABS) need the context in R6.
    asm.copy(R6, R1);
    asm.half(ETHERNET - 2);
    asm.unless_equal(0x0800, next);
    for (at, length, mask, value) in signs(numbers) {
        if length == 1 {
            asm.byte(ETHERNET + at)
        } else {
            asm.half(ETHERNET + at)
        }
        asm.emit(0x57, 0, 0, 0, mask as i32);
        asm.unless_equal(value, next);
    }
    asm.word(ETHERNET + MARK);
    for mark in TCP_PROBE_MARK {
        asm.if_equal(mark, drop);
    }
    asm.place(next);
    asm.verdict(NEXT);
    asm.place(drop);
    asm.verdict(DROP);
    asm.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::processor;
    use roce::wire::TcpProbe;

    fn verdict(packet: &[u8]) -> i32 {
        processor::run(&program(Numbers::DEFAULT), &[&[2; 12][..], &[8, 0], packet].concat(), |_| 0)
    }

    /// rtgwg-00 7.2: probes have a separate DSCP, which distinguishes them from data.
    #[test]
    fn probes_and_answers_are_dropped_and_other_packets_pass() {
        let address = |text: &str| text.parse().unwrap();
        let probe = TcpProbe {
            source: address("10.0.0.1:40000"),
            destination: address("10.0.0.2:5201"),
            sequence: 1,
            number: 1,
            sent: 1,
        };
        let probe = probe.packet(Numbers::DEFAULT);
        let mut answer = probe;
        answer[40..44].copy_from_slice(&TCP_PROBE_MARK[1].to_be_bytes());
        assert_eq!([verdict(&probe), verdict(&answer)], [DROP; 2]);
        for at in [0, 1, 9, 36, 37, 40, 43] {
            let mut other = probe;
            other[at] ^= 0x0c;
            assert_eq!(verdict(&other), NEXT, "byte {at}");
        }
        // A short segment with that DSCP ends the program with 0 (TCX_PASS).
        assert_eq!(verdict(&probe[..40]), 0);
    }
}
