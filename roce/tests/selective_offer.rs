//! Selective repeat that two peers negotiate after a loss: offers, acceptances, and packets that must not count as one.

use crate::harness::script::{PSN, Script, ack, nak};
use crate::harness::{BASE, Faults, Options, Pair};
use crate::selective_repeat::{ANSWERED, FULL, LATE, TICK, post, say, sends, write};
use core::time::Duration;
use roce::qp::{CompletionStatus, Modify, Remote, SendRequest};
use roce::wire::{Bth, Header, NakCode, Operation};
use roce::{Discard, Psn};

fn options() -> Options {
    Options { memory: 1 << 16, offered: true, ack_timeout: 14, ..Options::default() }
}

fn script() -> Script {
    Script::new(options())
}

/// Returns true if the next packet is an acceptance and false if it is an offer, and its PSN relative to the first.
fn offer(script: &mut Script) -> (bool, u32) {
    match script.next_header() {
        Some((Header::SelectiveOffer { bth, accepts, first_sent, first_received }, _)) => {
            assert_eq!([first_sent, first_received], [Psn::new(PSN); 2]);
            (accepts, bth.psn.get() - PSN)
        }
        other => panic!("{other:?}"),
    }
}

/// Delivers an offer or an acceptance of the peer.
fn say_offer(script: &mut Script, accepts: bool, psn: u32, firsts: [u32; 2]) -> Result<(), Discard> {
    let [first_sent, first_received] = firsts.map(Psn::new);
    let bth = Bth { ack_request: false, ..script.bth(psn) };
    script.send_header(&Header::SelectiveOffer { bth, accepts, first_sent, first_received }, &[])
}

fn accept(script: &mut Script, psn: u32) -> Result<(), Discard> {
    say_offer(script, true, PSN + psn, [PSN; 2])
}

fn refuse(script: &mut Script, psn: u32) {
    assert_eq!(script.send(PSN + psn, nak(NakCode::PsnSequenceError, 0), &[]), Ok(()));
}

/// Creates a script that has sent three packets; the first was lost, and an offer has followed.
fn offered() -> Script {
    let mut script = script();
    let request = write(&script, 0, 3000);
    post(&mut script, request);
    assert_eq!(sends(&mut script), [0, 1, 2]);
    refuse(&mut script, 0);
    assert_eq!(offer(&mut script), (false, 0));
    script
}

/// Returns the packets that are sent once the oldest missing packet counts as lost.
fn until_lost(script: &mut Script) -> Vec<u32> {
    let sent = sends(script);
    if sent.is_empty() {
        script.wait(LATE + TICK);
        return sends(script);
    }
    sent
}

/// Sends three more packets, the first of which is lost; the peer reports that it holds the others. Returns the retransmitted packets.
fn repeats_after_hole(script: &mut Script) -> Vec<u32> {
    assert_eq!(script.send(PSN + 2, ack(1), &[]), Ok(()));
    let request = write(script, 1, 3000);
    post(script, request);
    assert_eq!(sends(script), [3, 4, 5]);
    assert_eq!(say(script, 3, 0b110), Ok(()));
    until_lost(script)
}

#[test]
fn a_loss_starts_selective_repeat() {
    let mut script = offered();
    assert_eq!(sends(&mut script), [0, 1, 2], "until the peer accepts it is go-back-N");
    assert_eq!(accept(&mut script, 1), Ok(()));
    assert_eq!(accept(&mut script, 1), Ok(()), "doubled by the network");
    assert_eq!(repeats_after_hole(&mut script), [3]);
}

#[test]
fn without_a_loss_nothing_is_offered() {
    let mut script = script();
    for id in 0..100 {
        let request = write(&script, id, 1);
        post(&mut script, request);
        assert_eq!(sends(&mut script), [id as u32]);
        assert_eq!(script.send(PSN + id as u32, ack(id as u32 + 1), &[]), Ok(()));
    }
}

/// Selective repeat retransmits the packets that go-back-N has not retransmitted yet, unless the peer reports that it holds them.
#[test]
fn packets_that_go_back_n_would_retransmit_count_as_lost() {
    let mut script = offered();
    assert_eq!(accept(&mut script, 0), Ok(()));
    assert_eq!(say(&mut script, 0, 0b010), Ok(()));
    assert_eq!(sends(&mut script), [0, 2]);
    assert_eq!(script.send(PSN + 2, ack(1), &[]), Ok(()));
    assert_eq!(script.host.sent().len(), 1);
}

#[test]
fn a_selective_acknowledgement_replaces_a_lost_acceptance() {
    let mut script = offered();
    assert_eq!(sends(&mut script), [0, 1, 2]);
    assert_eq!(repeats_after_hole(&mut script), [3]);
}

#[test]
fn a_lost_offer_is_made_again_at_the_next_loss() {
    let mut script = offered();
    assert_eq!(sends(&mut script), [0, 1, 2]);
    refuse(&mut script, 1);
    assert_eq!(offer(&mut script), (false, 1));
    assert_eq!(sends(&mut script), [1, 2]);
    script.wait(Duration::from_millis(70));
    assert_eq!(offer(&mut script), (false, 1));
}

#[test]
fn a_peer_without_selective_repeat_gets_twenty_offers() {
    let mut script = script();
    let mut offers = 0;
    for id in 0..60 {
        let request = write(&script, id, 1);
        post(&mut script, request);
        let _ = sends(&mut script);
        refuse(&mut script, id as u32);
        let mut packet = script.next_header();
        if let Some((Header::SelectiveOffer { .. }, _)) = packet {
            offers += 1;
            packet = script.next_header();
        }
        assert!(
            matches!(packet, Some((Header::Connected { bth, .. }, _)) if bth.psn.get() == PSN + id as u32)
        );
        assert_eq!(script.send(PSN + id as u32, ack(id as u32 + 1), &[]), Ok(()));
    }
    assert_eq!(offers, 20);
    assert_eq!(script.host.sent().len(), 60);
}

#[test]
fn a_selective_acknowledgement_of_unsent_packets_accepts_no_offer() {
    let mut script = offered();
    assert_eq!(sends(&mut script), [0, 1, 2]);
    for held in [0b1000, 1 << 127, 0b0111, 0] {
        assert_eq!(say(&mut script, 0, held), Err(Discard::StaleAcknowledge), "{held:b}");
    }
    assert_eq!(say(&mut script, 3, 0b10), Err(Discard::StaleAcknowledge));
    refuse(&mut script, 0);
    assert_eq!(offer(&mut script), (false, 0));
    assert_eq!(sends(&mut script), [0, 1, 2], "still go-back-N");
}

#[test]
fn a_selective_acknowledgement_without_an_offer_accepts_nothing() {
    for options in [options(), Options { offered: false, ..options() }] {
        let mut script = Script::new(options);
        let request = write(&script, 0, 3000);
        post(&mut script, request);
        assert_eq!(sends(&mut script), [0, 1, 2]);
        let reason = if options.offered { Discard::StaleAcknowledge } else { Discard::Opcode };
        assert_eq!(say(&mut script, 0, 0b110), Err(reason));
        assert_eq!(accept(&mut script, 0), Err(Discard::StaleOffer));
        refuse(&mut script, 0);
        if options.offered {
            assert_eq!(offer(&mut script), (false, 0));
        }
        assert_eq!(sends(&mut script), [0, 1, 2]);
    }
}

#[test]
fn an_acceptance_of_another_connection_is_dropped() {
    let mut script = offered();
    assert_eq!(sends(&mut script), [0, 1, 2]);
    for (psn, firsts) in [
        (PSN, [PSN + 1, PSN]),
        (PSN, [PSN, PSN + 1]),
        (PSN + 4, [PSN; 2]),
        (PSN.wrapping_sub(4096) & 0xff_ffff, [PSN; 2]),
    ] {
        let taken = say_offer(&mut script, true, psn, firsts);
        assert_eq!(taken, Err(Discard::StaleOffer), "{psn} {firsts:?}");
    }
    assert_eq!(script.discarded(Discard::StaleOffer), 4);
    refuse(&mut script, 0);
    assert_eq!(offer(&mut script), (false, 0));
    assert_eq!(sends(&mut script), [0, 1, 2]);
}

fn early(script: &mut Script, ahead: u32) -> Result<(), Discard> {
    let write = Operation::WriteOnly(script.reth(0, 1), None);
    script.send(PSN + ahead, write, &[7])
}

#[test]
fn a_responder_holds_early_packets_once_it_has_accepted() {
    let mut script = script();
    assert_eq!(early(&mut script, 1), Err(Discard::PsnGap));
    assert_eq!(script.drain(), [(PSN, nak(NakCode::PsnSequenceError, 0))]);
    assert_eq!(say_offer(&mut script, false, PSN, [PSN; 2]), Ok(()));
    assert_eq!(offer(&mut script), (true, 0));
    assert_eq!(script.next_header(), None, "there is nothing to acknowledge");
    assert_eq!(early(&mut script, 1), Ok(()));
    assert!(matches!(
        script.next_header(),
        Some((Header::SelectiveAcknowledge { bth, held: 0b10, .. }, _)) if bth.psn.get() == PSN
    ));
    // The acceptance was lost: it is repeated, and the held packets are reported again.
    assert_eq!(say_offer(&mut script, false, PSN, [PSN; 2]), Ok(()));
    assert_eq!(offer(&mut script), (true, 0));
    assert!(matches!(script.next_header(), Some((Header::SelectiveAcknowledge { held: 0b10, .. }, _))));
    assert_eq!(early(&mut script, 0), Ok(()));
    assert_eq!(script.drain(), [(PSN + 1, ack(2))]);
}

#[test]
fn an_offer_of_another_connection_is_dropped() {
    let mut script = script();
    for psn in 0..3 {
        assert_eq!(early(&mut script, psn), Ok(()));
    }
    assert_eq!(script.drain(), [(PSN + 2, ack(3))]);
    for (psn, firsts) in [
        (PSN, [PSN + 1, PSN]),
        (PSN, [PSN, PSN + 1]),
        (PSN + 4, [PSN; 2]),
        ((PSN + 3).wrapping_sub(4096) & 0xff_ffff, [PSN; 2]),
    ] {
        let taken = say_offer(&mut script, false, psn, firsts);
        assert_eq!(taken, Err(Discard::StaleOffer), "{psn} {firsts:?}");
    }
    assert_eq!(script.next_header(), None);
    assert_eq!(early(&mut script, 4), Err(Discard::PsnGap), "nothing is held");
}

#[test]
fn go_back_n_does_not_offer_or_accept_selective_repeat() {
    let mut script = Script::new(Options { offered: false, ..options() });
    assert_eq!(say_offer(&mut script, false, PSN, [PSN; 2]), Err(Discard::Opcode));
    assert_eq!(script.next_header(), None);
    assert_eq!(early(&mut script, 1), Err(Discard::PsnGap));
}

#[test]
fn a_responder_in_rtr_accepts_an_offer() {
    let mut script = Script::receiving(options());
    assert_eq!(say_offer(&mut script, false, PSN, [PSN; 2]), Ok(()));
    assert_eq!(offer(&mut script), (true, 0));
}

/// A new connection of the same queue pair keeps no state of the previous agreement.
#[test]
fn a_reset_clears_the_agreement() {
    let mut script = offered();
    assert_eq!(accept(&mut script, 0), Ok(()));
    assert_eq!(say_offer(&mut script, false, PSN, [PSN; 2]), Ok(()));
    let qpn = script.host.qpn;
    script.host.endpoint.modify_qp(script.now, qpn, Modify::Reset).unwrap();
    let path = crate::harness::path(2, 1);
    let options = Options { send_psn: PSN, ..options() };
    script.host.ready_to_receive(path, roce::Qpn::new(crate::harness::script::PEER), PSN, &options);
    script.host.ready_to_send(&options);
    assert_eq!(accept(&mut script, 0), Err(Discard::StaleOffer));
    assert_eq!(early(&mut script, 1), Err(Discard::PsnGap));
    assert_eq!(script.drain(), [(PSN, nak(NakCode::PsnSequenceError, 0))]);
}

fn read(script: &Script, length: u32) -> SendRequest {
    SendRequest::read(0, script.host.sge(0, length), Remote { address: BASE, rkey: script.rkey() })
}

/// The peer has accepted, and sends partial responses; its acceptance was lost.
#[test]
fn parts_of_a_read_are_accepted_before_the_acceptance_arrives() {
    let mut script = script();
    let request = read(&script, 4096);
    post(&mut script, request);
    assert_eq!(sends(&mut script), [0]);
    let only = Operation::ReadResponseOnly(ANSWERED);
    assert_eq!(script.send(PSN + 1, Operation::ReadResponseMiddle, &FULL), Ok(()));
    assert_eq!(offer(&mut script), (false, 0));
    assert_eq!(sends(&mut script), [0]);
    assert_eq!(script.send(PSN, only, &FULL), Ok(()));
    assert_eq!(script.send(PSN + 1, Operation::ReadResponseFirst(ANSWERED), &FULL), Ok(()));
    assert_eq!(script.send(PSN + 2, Operation::ReadResponseLast(ANSWERED), &FULL), Ok(()));
    // The acceptance arrives, and the remaining responses are requested as missing.
    assert_eq!(accept(&mut script, 4), Ok(()));
    assert_eq!(script.send(PSN + 3, only, &FULL), Ok(()));
    let sent = script.host.sent();
    assert_eq!(sent.iter().map(|c| c.status).collect::<Vec<_>>(), [CompletionStatus::Success]);
    assert_eq!(script.host.bytes(0, 4096), [0xa5; 4096]);
}

/// A partial READ is answered whether or not this side has accepted selective repeat.
#[test]
fn part_of_a_read_is_answered_before_the_offer_arrives() {
    let mut script = script();
    let reth = |offset, length| Operation::ReadRequest(script.reth(offset, length));
    let (whole, stretch) = (reth(0, 4096), reth(1024, 1024));
    assert_eq!(script.send(PSN, whole, &[]), Ok(()));
    assert_eq!(sends(&mut script), [0, 1, 2, 3]);
    assert_eq!(script.send(PSN + 1, stretch, &[]), Err(Discard::Duplicate));
    assert_eq!(sends(&mut script), [1]);
}

/// If more packets are outstanding than a bitmap covers, the switch is postponed; a report of held packets counts as a gap, once.
#[test]
fn the_switch_is_postponed_while_too_many_packets_are_outstanding() {
    let options = Options { congestion: crate::harness::open_window(), memory: 1 << 23, ..options() };
    let mut script = Script::new(options);
    let request = write(&script, 0, 5000 << 10);
    post(&mut script, request);
    assert_eq!(sends(&mut script).len(), 5000);
    refuse(&mut script, 0);
    assert_eq!(offer(&mut script), (false, 0));
    let again = sends(&mut script).len();
    assert_eq!(accept(&mut script, 0), Ok(()));
    assert_eq!(say(&mut script, 8, 0b10), Ok(()));
    assert_eq!(say(&mut script, 8, 0b10), Ok(()));
    assert!(sends(&mut script).len() <= again + 8, "no storm");
    // 4,095 packets remain outstanding.
    assert_eq!(script.send(PSN + 904, ack(0), &[]), Ok(()));
    let _ = sends(&mut script);
    assert_eq!(say(&mut script, 905, 0b10), Ok(()));
    assert_eq!(script.send(PSN + 4999, ack(1), &[]), Ok(()));
    let request = write(&script, 1, 3000);
    post(&mut script, request);
    assert_eq!(sends(&mut script), [5000, 5001, 5002]);
    assert_eq!(say(&mut script, 5000, 0b110), Ok(()));
    assert_eq!(until_lost(&mut script), [5000]);
}

/// Returns how many packets two peers retransmit over a lossy link.
fn retransmitted(offered: bool, keep: fn(&Header) -> bool) -> u64 {
    let mut pair = Pair::connect(Options { offered, ..options() });
    pair.faults = Faults { loss: 10, ..Faults::default() };
    pair.filter = Some(Box::new(move |_, frame| keep(&roce::wire::parse(frame).unwrap().header)));
    for id in 0..64 {
        let [here, there] = [0, 1].map(|host: usize| pair.hosts[host].sge(0, 16 << 10));
        let remote = Remote { address: there.address, rkey: pair.hosts[1].region.rkey };
        let request = if id % 4 == 0 {
            SendRequest::read(id, here, remote)
        } else {
            SendRequest::write(id, here, remote)
        };
        pair.post(0, request);
    }
    pair.run(Duration::from_secs(10));
    assert!(pair.hosts[0].sent().iter().all(|c| c.status == CompletionStatus::Success));
    pair.hosts[0].endpoint.counters().retransmitted
}

#[test]
fn two_peers_agree_over_a_lossy_wire() {
    let all = |_: &Header| true;
    let no_acceptance = |header: &Header| !matches!(header, Header::SelectiveOffer { accepts: true, .. });
    let no_offer = |header: &Header| !matches!(header, Header::SelectiveOffer { accepts: false, .. });
    let never = retransmitted(false, all);
    assert_eq!(retransmitted(true, no_offer), never);
    for keep in [all as fn(&Header) -> bool, no_acceptance] {
        let agreed = retransmitted(true, keep);
        assert!(2 * agreed < never, "{agreed} of {never}");
    }
}
