//! Every wrong claim, offer and acceptance of selective repeat that a peer can send changes nothing but a counter.

use crate::harness::Options;
use crate::harness::script::{PSN, Script, ack};
use crate::selective_repeat::{post, sends, write};
use roce::Discard::{Opcode, StaleAcknowledge, StaleOffer};
use roce::qp::LossRecovery::{GoBackN, Offered, SelectiveRepeat};
use roce::qp::{LossRecovery, State};
use roce::wire::Header;
use roce::{Discard, Psn};

struct Row {
    name: &'static str,
    recovery: LossRecovery,
    packet: Packet,
    discard: Discard,
}

/// A packet whose PSNs are relative to the first of the connection.
#[derive(Clone, Copy)]
enum Packet {
    Claim { psn: u32, ahead: u8, held: u128 },
    Offer { accepts: bool, psn: u32, firsts: [u32; 2] },
}

impl Packet {
    fn header(self, script: &Script) -> Header {
        let at = |psn: u32| PSN.wrapping_add(psn) & 0xff_ffff;
        match self {
            Self::Claim { psn, ahead, held } => {
                Header::SelectiveAcknowledge { bth: script.bth(at(psn)), msn: 0, ahead, held }
            }
            Self::Offer { accepts, psn, firsts } => {
                let [first_sent, first_received] = firsts.map(|first| Psn::new(at(first)));
                Header::SelectiveOffer { bth: script.bth(at(psn)), accepts, first_sent, first_received }
            }
        }
    }
}

const fn claim(psn: u32, ahead: u8, held: u128) -> Packet {
    Packet::Claim { psn, ahead, held }
}

const fn offer(psn: u32, firsts: [u32; 2]) -> Packet {
    Packet::Offer { accepts: false, psn, firsts }
}

const fn acceptance(psn: u32) -> Packet {
    Packet::Offer { accepts: true, psn, firsts: [0; 2] }
}

/// Returns the rows. Packets 1 to 3 are outstanding, and nothing was received.
fn rows() -> Vec<Row> {
    let row = |name, recovery, packet, discard| Row { name, recovery, packet, discard };
    let agreed = |name, packet| row(name, SelectiveRepeat, packet, StaleAcknowledge);
    let stale = |name, packet| row(name, Offered, packet, StaleOffer);
    vec![
        agreed("claim of what was never sent", claim(1, 0, 0b1000)),
        agreed("claim of what was sent and what was not", claim(1, 0, 0b1110)),
        agreed("claim of the last bit", claim(1, 0, 1 << 127)),
        agreed("claim of the missing packet", claim(1, 0, 0b11)),
        agreed("claim behind what was acknowledged", claim(0, 0, 0b10)),
        agreed("claim behind what was never sent", claim(4, 0, 0b10)),
        agreed("claim beyond the window", claim(1, 64, 1)),
        agreed("claim at the end of what can be said", claim(1, 255, u128::MAX)),
        agreed("claim half a circle ahead", claim(1 << 23, 0, 0b10)),
        row("claim before an offer", Offered, claim(1, 0, 0b10), StaleAcknowledge),
        row("claim to go-back-N", GoBackN, claim(1, 0, 0b10), Opcode),
        stale("acceptance before an offer", acceptance(1)),
        row("acceptance to go-back-N", GoBackN, acceptance(1), StaleOffer),
        row("offer to go-back-N", GoBackN, offer(0, [0; 2]), Opcode),
        stale("offer from another first PSN", offer(0, [1, 0])),
        stale("offer to another first PSN", offer(0, [0, 1])),
        stale("offer of what was never received", offer(1, [0; 2])),
        stale("offer of what is long received", offer(4096_u32.wrapping_neg(), [0; 2])),
        stale("offer half a circle ahead", offer(1 << 23, [0; 2])),
    ]
}

#[test]
fn wrong_claims_and_offers_change_nothing_but_a_counter() {
    for Row { name, recovery, packet, discard } in rows() {
        let mut script = Script::new(Options {
            memory: 1 << 16,
            selective_repeat: recovery == SelectiveRepeat,
            offered: recovery == Offered,
            ack_timeout: 14,
            ..Options::default()
        });
        for id in 0..4 {
            let request = write(&script, id, 1);
            post(&mut script, request);
        }
        assert_eq!(sends(&mut script), [0, 1, 2, 3]);
        script.send(PSN, ack(1), &[]).unwrap();
        assert_eq!(script.host.sent().len(), 1);
        let before = (script.host.endpoint.report(script.host.qpn), script.host.ram.0.clone());
        let header = packet.header(&script);
        assert_eq!(script.send_header(&header, &[]), Err(discard), "{name}");
        assert_eq!(script.discarded(discard), 1, "{name}");
        assert_eq!(script.next_header(), None, "{name}");
        assert!(script.host.sent().is_empty() && script.host.received().is_empty(), "{name}");
        assert_eq!(script.state(), State::ReadyToSend, "{name}");
        let after = (script.host.endpoint.report(script.host.qpn), script.host.ram.0.clone());
        assert!(before == after, "{name}");
    }
}
