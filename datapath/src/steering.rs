//! Determines the core of a received frame, and builds the filters by which the kernel passes each core's socket only that core's frames.

use crate::socket_filter::{self, NONE, WHOLE, limit_others};
use roce::wire::{self, Mac, Numbers, Opcode};
use roce::{CoreIndex, GROUP_QPN, Qpn};
use std::io;
use std::os::fd::AsRawFd;

/// The values that determine the core of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Steering {
    /// The port's Ethernet address.
    pub mac: Mac,
    /// The top bits of this process's QPNs.
    pub process: u8,
    /// The index of core 0.
    pub core: CoreIndex,
    /// The number of cores.
    pub cores: u8,
    /// The port numbers and identifiers of the wire format.
    pub numbers: Numbers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoreTarget {
    Main,
    /// The worker core with this index. One byte, because an array of 32 of these accompanies a burst.
    Worker(u8),
    /// All cores, because the QPN is not one of this process's.
    All,
}

/// Bytes of the shortest packet over IPv4 and over IPv6: Ethernet, IP, UDP and BTH.
const V4_LENGTH: u32 = 14 + 20 + 8 + 12;
const V6_LENGTH: u32 = 14 + 40 + 8 + 12;

impl Steering {
    /// Returns the core of a frame. Frames that are not packets to this port's address belong to core 0.
    #[inline(always)]
    pub(crate) fn target(&self, frame: &[u8]) -> CoreTarget {
        if !frame.starts_with(&self.mac.0) {
            return CoreTarget::Main;
        }
        let Some((opcode, qpn)) = wire::opcode_and_destination(frame, self.numbers) else {
            return CoreTarget::Main;
        };
        // A direct response has the QPN of the packet that the switch answers, which is the peer's.
        if opcode == Opcode::DIRECT_RESPONSE {
            return CoreTarget::All;
        }
        match self.core.place_of(self.process, qpn) {
            core if (1..u32::from(self.cores)).contains(&core) && qpn != GROUP_QPN => {
                CoreTarget::Worker(core as u8 - 1)
            }
            // Core 0 counts frames whose QPN belongs to no core.
            _ => CoreTarget::Main,
        }
    }

    /// Returns the core that receives a frame if each core has a queue. Core 0 receives frames for all cores, and copies them.
    #[must_use]
    pub fn core_of(&self, frame: &[u8]) -> u8 {
        match self.target(frame) {
            CoreTarget::Main | CoreTarget::All => 0,
            CoreTarget::Worker(worker) => worker + 1,
        }
    }

    /// Makes the kernel pass `socket` only the frames of one core, 0 to `cores - 1`. Each frame passes the filter of exactly one core. For
    /// a RoCEv2 packet without IP options or extension headers, that is the core that [`core_of`](Self::core_of) returns. For other frames
    /// it is core 0, which forwards them. Core 0 receives at most `others` bytes of a frame that is not UDP.
    ///
    /// # Errors
    /// Returns the kernel's error if it rejects the filter.
    pub fn attach(&self, socket: &impl AsRawFd, core: u8, others: u32) -> io::Result<()> {
        socket_filter::attach(socket, &mut self.filter(core, others))
    }

    fn filter(&self, core: u8, others: u32) -> Vec<libc::sock_filter> {
        let [a, b, c, d, e, f] = self.mac.0;
        let mut filter = FilterProgram::default();
        filter.load_length();
        filter.jump_to_core_0_unless(libc::BPF_JGE, V4_LENGTH);
        filter.load(libc::BPF_W, 0);
        filter.jump_to_core_0_unless(libc::BPF_JEQ, u32::from_be_bytes([a, b, c, d]));
        filter.load(libc::BPF_H, 4);
        filter.jump_to_core_0_unless(libc::BPF_JEQ, u16::from_be_bytes([e, f]).into());
        filter.load(libc::BPF_H, 12);
        let begin_of_v6 = filter.skip_unless(0x0800);
        filter.load(libc::BPF_B, 14);
        filter.jump_to_core_0_unless(libc::BPF_JEQ, 0x45);
        // Fragment offset and more-fragments flag.
        filter.load(libc::BPF_H, 14 + 6);
        filter.jump_to_core_0_if(libc::BPF_JSET, 0x3fff);
        filter.qpn_behind(14 + 9, 14 + 20);
        let end_of_v4 = filter.skip();
        filter.land(begin_of_v6);
        filter.jump_to_core_0_unless(libc::BPF_JEQ, 0x86dd);
        filter.load_length();
        filter.jump_to_core_0_unless(libc::BPF_JGE, V6_LENGTH);
        filter.qpn_behind(14 + 6, 14 + 40);
        filter.land(end_of_v4);
        // Computes the core as `CoreIndex::place_of` does.
        filter.line(libc::BPF_ALU | libc::BPF_AND, 0xff_ffff);
        filter.jump_to_core_0_if(libc::BPF_JEQ, GROUP_QPN.get());
        filter.line(libc::BPF_ALU | libc::BPF_RSH, self.core.low_bits());
        filter.line(libc::BPF_ALU | libc::BPF_ADD, self.core.place_of(self.process, Qpn::new(0)));
        filter.jump_to_core_0_if(libc::BPF_JGE, self.cores.into());
        let other = filter.skip_unless(core.into());
        filter.line(libc::BPF_RET, WHOLE);
        filter.land(other);
        filter.line(libc::BPF_RET, NONE);
        let none = [libc::sock_filter { code: libc::BPF_RET as u16, jt: 0, jf: 0, k: NONE }];
        let own = limit_others(others);
        filter.end(if core == 0 { &own } else { &none })
    }
}

#[derive(Default)]
struct FilterProgram {
    lines: Vec<libc::sock_filter>,
    /// Instructions that jump to the end, and whether they do so if the test is true.
    jumps_to_core_0: Vec<(usize, bool)>,
}

impl FilterProgram {
    fn line(&mut self, code: u32, k: u32) {
        self.lines.push(libc::sock_filter { code: code as u16, jt: 0, jf: 0, k });
    }

    fn load(&mut self, size: u32, at: u32) {
        self.line(libc::BPF_LD | libc::BPF_ABS | size, at);
    }

    fn load_length(&mut self) {
        self.line(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0);
    }

    fn jump_to_core_0_if(&mut self, test: u32, k: u32) {
        self.jumps_to_core_0.push((self.lines.len(), true));
        self.line(libc::BPF_JMP | test, k);
    }

    fn jump_to_core_0_unless(&mut self, test: u32, k: u32) {
        self.jumps_to_core_0.push((self.lines.len(), false));
        self.line(libc::BPF_JMP | test, k);
    }

    /// Loads the word that ends with the destination QPN of a UDP packet. `protocol` is the offset of the IP protocol number. Core 0
    /// receives direct responses, which are for all cores.
    fn qpn_behind(&mut self, protocol: u32, udp: u32) {
        self.load(libc::BPF_B, protocol);
        self.jump_to_core_0_unless(libc::BPF_JEQ, 17);
        self.load(libc::BPF_H, udp + 2);
        self.jump_to_core_0_unless(libc::BPF_JEQ, wire::ROCE_PORT.into());
        self.load(libc::BPF_B, udp + 8);
        self.jump_to_core_0_if(libc::BPF_JEQ, Opcode::DIRECT_RESPONSE.0.into());
        self.load(libc::BPF_W, udp + 8 + 4);
    }

    /// Jumps to [`land`](Self::land) unless the value is `k`.
    fn skip_unless(&mut self, k: u32) -> usize {
        self.line(libc::BPF_JMP | libc::BPF_JEQ, k);
        self.lines.len() - 1
    }

    fn skip(&mut self) -> usize {
        self.line(libc::BPF_JMP | libc::BPF_JA, 0);
        self.lines.len() - 1
    }

    fn land(&mut self, skip: usize) {
        let distance = self.lines.len() - skip - 1;
        let line = &mut self.lines[skip];
        (line.k, line.jf) = match u32::from(line.code) {
            code if code == libc::BPF_JMP | libc::BPF_JA => (distance as u32, 0),
            _ => (line.k, distance as u8),
        };
    }

    /// Appends the instructions for frames of core 0, and resolves the jumps to them.
    fn end(mut self, answer: &[libc::sock_filter]) -> Vec<libc::sock_filter> {
        let end = self.lines.len();
        for (at, if_true) in self.jumps_to_core_0 {
            let line = &mut self.lines[at];
            *(if if_true { &mut line.jt } else { &mut line.jf }) = (end - at - 1) as u8;
        }
        self.lines.extend(answer);
        self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce::Psn;
    use roce::wire::{Bth, Header, Path};
    use std::net::IpAddr;
    use std::os::unix::net::UnixDatagram;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn steering(process: u8, cores: u8) -> Steering {
        Steering { mac: MAC, process, core: CoreIndex::new(0, cores), cores, numbers: Numbers::DEFAULT }
    }

    fn packet(qpn: u32, to: Mac, [from_ip, to_ip]: [IpAddr; 2]) -> Vec<u8> {
        let bth = Bth::new(Qpn::new(qpn), Psn::new(0));
        let header = Header::Datagram { bth, queue_key: 1, source: Qpn::new(1), immediate: None };
        let mut frame = [0; 256];
        let path = Path::new((MAC, from_ip), (to, to_ip));
        let length = wire::emit(&path, 0, &header, 0, &mut frame).unwrap().seal();
        frame[..length].to_vec()
    }

    fn v4() -> [IpAddr; 2] {
        [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()]
    }

    /// Returns the cores whose filters accept the frame in the kernel.
    fn passes(steering: &Steering, frame: &[u8]) -> Vec<u8> {
        let passes = |&core: &u8| {
            let (from, to) = UnixDatagram::pair().unwrap();
            to.set_nonblocking(true).unwrap();
            steering.attach(&to, core, WHOLE).unwrap();
            // The kernel either drops a filtered frame or reports an error to the sender.
            let _ = from.send(frame);
            to.recv(&mut [0; 512]).is_ok()
        };
        (0..steering.cores).filter(passes).collect()
    }

    #[test]
    fn a_frame_belongs_to_the_core_of_its_qpn() {
        for (process, cores, qpn, is) in [
            (0, 4, 5, CoreTarget::Main),
            (0, 4, 1 << 16 | 5, CoreTarget::Worker(0)),
            (0, 4, 3 << 16 | 5, CoreTarget::Worker(2)),
            (0, 3, 3 << 16 | 5, CoreTarget::Main),
            (0, 16, 15 << 14 | 5, CoreTarget::Worker(14)),
            (9, 2, 9 << 18 | 1 << 16, CoreTarget::Worker(0)),
            // A QPN of another process, queue pair 1, and the multicast QPN.
            (9, 2, 8 << 18 | 1 << 16, CoreTarget::Main),
            (9, 2, 1, CoreTarget::Main),
            (63, 16, 0xff_ffff, CoreTarget::Main),
        ] {
            let steering = steering(process, cores);
            for addresses in [v4(), ["fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()]] {
                let frame = packet(qpn, MAC, addresses);
                assert_eq!(steering.target(&frame), is, "process {process}, {cores} cores, QPN {qpn:#x}");
                assert_eq!(
                    passes(&steering, &frame),
                    [steering.core_of(&frame)],
                    "{cores} cores, QPN {qpn:#x}"
                );
            }
        }
    }

    #[test]
    fn other_addresses_fragments_and_direct_responses_belong_to_core_0() {
        let steering = steering(0, 4);
        let group = packet(1 << 16, Mac([1, 0, 0x5e, 0, 0, 1]), v4());
        assert_eq!(steering.target(&group), CoreTarget::Main, "a group's address");
        assert_eq!(passes(&steering, &group), [0], "a group's address");
        for (at, byte, what) in [
            (3, 9, "another address"),
            (13, 6, "ARP"),
            (14, 0x46, "options"),
            (20, 0x20, "a first fragment"),
            (21, 1, "a later one"),
            (23, 6, "TCP"),
            (37, 1, "another port"),
            (42, Opcode::DIRECT_RESPONSE.0, "a direct response"),
        ] {
            let mut frame = packet(1 << 16, MAC, v4());
            assert_eq!(passes(&steering, &frame), [1]);
            frame[at] = byte;
            assert_eq!(passes(&steering, &frame), [0], "{what}");
        }
    }

    #[test]
    fn a_malformed_packet_belongs_to_core_0() {
        let steering = steering(0, 4);
        let whole = packet(1 << 16, MAC, v4());
        for length in 0..80 {
            let mut frame = vec![0x45; length];
            frame.iter_mut().zip(MAC.0).for_each(|(byte, mac)| *byte = mac);
            assert_eq!(steering.target(&frame), CoreTarget::Main);
        }
        for length in 6..54 {
            assert_eq!(passes(&steering, &whole[..length]), [0], "{length} bytes");
        }
    }

    #[test]
    fn core_0_receives_udp_whole_and_other_frames_up_to_the_limit() {
        let received = |frame: &[u8]| {
            let (from, to) = UnixDatagram::pair().unwrap();
            steering(0, 2).attach(&to, 0, 100).unwrap();
            from.send(frame).unwrap();
            to.recv(&mut [0; 512]).unwrap()
        };
        for addresses in [v4(), ["fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()]] {
            let protocol = if addresses[0].is_ipv4() { 23 } else { 20 };
            for to in [MAC, Mac([1, 0, 0x5e, 0, 0, 1])] {
                let mut frame = [packet(5, to, addresses), vec![0; 200]].concat();
                assert_eq!(received(&frame), frame.len(), "UDP to {to}");
                frame[protocol] = 6;
                assert_eq!(received(&frame), 100, "TCP to {to}");
            }
        }
    }
}
