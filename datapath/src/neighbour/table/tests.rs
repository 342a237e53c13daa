//! Tests of the neighbour table.

use super::*;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const EVIL: Mac = Mac([2, 0, 0, 0, 0, 0xe]);

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn host(mac: Mac, addresses: &[&str]) -> Neighbours {
    let addresses: Vec<Address> = addresses.iter().map(|a| a.parse().unwrap()).collect();
    let mut host = Neighbours::standalone(mac, &addresses, None);
    host.tx_queue.clear();
    host
}

fn frames(host: &mut Neighbours) -> Vec<Vec<u8>> {
    let mut frame = [0; 256];
    std::iter::from_fn(|| host.poll_transmit(&mut frame).map(|length| frame[..length].to_vec())).collect()
}

fn carry(now: Instant, from: &mut Neighbours, to: &mut Neighbours) {
    for frame in frames(from) {
        assert!(super::super::is_resolution(&frame));
        to.on_frame(now, &frame).unwrap();
    }
}

/// RFC 826, RFC 4861: a request is answered with the Ethernet address.
#[test]
fn two_hosts_find_each_other_by_arp_and_by_neighbour_discovery() {
    for (ours, theirs) in [("10.0.0.1/24", "10.0.0.2/24"), ("fd00::1/64", "fd00::2/64")] {
        let (mut a, mut b) = (host(A, &[ours]), host(B, &[theirs]));
        let peer = theirs.parse::<Address>().unwrap().ip;
        assert_eq!(a.resolve(at(0), peer), Ok(Resolution::Pending));
        carry(at(0), &mut a, &mut b);
        carry(at(0), &mut b, &mut a);
        assert_eq!(a.resolve(at(0), peer), Ok(Resolution::Resolved(B)), "{peer}");
        assert_eq!(a.resolve(at(31), peer), Ok(Resolution::Pending), "an old entry is solicited again");
    }
}

/// RFC 4861 10: MAX_MULTICAST_SOLICIT is 3, RETRANS_TIMER 1 s.
#[test]
fn a_silent_neighbour_is_solicited_three_times() {
    let mut a = host(A, &["10.0.0.1/24"]);
    let peer = "10.0.0.2".parse().unwrap();
    assert_eq!(a.resolve(at(0), peer), Ok(Resolution::Pending));
    let mut asked = frames(&mut a).len();
    for second in 1..=3 {
        assert_eq!(a.poll_timeout(), Some(at(second)));
        assert_eq!(a.resolve(at(second), peer), Ok(Resolution::Pending));
        a.on_timeout(at(second));
        asked += frames(&mut a).len();
    }
    assert_eq!(asked, 3);
    assert_eq!(a.poll_timeout(), None);
    assert_eq!(a.resolve(at(3), peer), Err(Unresolved::NoAnswer { hop: peer, tries: 3 }));
    assert_eq!(a.resolve(at(3), peer), Ok(Resolution::Pending), "a later call starts again");
}

#[test]
fn a_peer_on_another_network_resolves_to_the_gateway() {
    let addresses = ["10.0.0.1/24".parse().unwrap()];
    let gateway = "10.0.0.254".parse().unwrap();
    let mut a = Neighbours::standalone(A, &addresses, Some(gateway));
    a.tx_queue.clear();
    assert_eq!(a.resolve(at(0), "192.168.7.7".parse().unwrap()), Ok(Resolution::Pending));
    assert_eq!(
        Arp::parse(&frames(&mut a)[0]).unwrap().target,
        gateway.to_string().parse::<std::net::Ipv4Addr>().unwrap()
    );
    assert!(matches!(a.resolve(at(0), "fd00::1".parse().unwrap()), Err(Unresolved::NoRoute(_))));
}

#[test]
fn requests_are_answered_without_an_entry() {
    let mut a = host(A, &["10.0.0.1/24"]);
    for n in 0..100_u8 {
        let mut stranger = host(B, &[&format!("10.0.0.{}/24", n + 2)]);
        stranger.resolve(at(0), "10.0.0.1".parse().unwrap()).unwrap();
        carry(at(0), &mut stranger, &mut a);
    }
    assert!(a.entries.is_empty());
    assert_eq!(frames(&mut a).len(), MAX_QUEUED, "and no more than fit are answered");
}

/// RFC 5227 3: an announcement is an ARP request whose sender and target are the announced address.
#[test]
fn an_announcement_changes_a_neighbour_once_a_second() {
    let peer: IpAddr = "10.0.0.2".parse().unwrap();
    let (mut a, mut b) = (host(A, &["10.0.0.1/24"]), host(B, &["10.0.0.2/24"]));
    a.resolve(at(0), peer).unwrap();
    carry(at(0), &mut a, &mut b);
    carry(at(0), &mut b, &mut a);
    let announce = |mac| Neighbours::standalone(mac, &["10.0.0.2/24".parse().unwrap()], None);
    carry(at(0), &mut announce(EVIL), &mut a);
    assert_eq!(a.resolve(at(0), peer), Ok(Resolution::Resolved(B)), "too soon");
    carry(at(2), &mut announce(EVIL), &mut a);
    assert_eq!(a.resolve(at(2), peer), Ok(Resolution::Resolved(EVIL)), "a failover");
}

#[test]
fn a_neighbour_that_is_resolved_again_may_have_moved() {
    for passive in [false, true] {
        for (ours, theirs) in [("10.0.0.1/24", "10.0.0.2/24"), ("fd00::1/64", "fd00::2/64")] {
            let mut a = host(A, &[ours]);
            a.passive = passive;
            let mut theirs = [B, EVIL].map(|mac| host(mac, &[theirs]));
            let peer = theirs[0].addresses[0].ip;
            let mut ask = |a: &mut Neighbours, now, of: usize| {
                assert_eq!(a.resolve(now, peer), Ok(Resolution::Pending));
                let before = a.answers();
                carry(now, a, &mut theirs[of]);
                carry(now, &mut theirs[of], a);
                assert_eq!(a.answers(), before + 1);
            };
            ask(&mut a, at(0), 0);
            a.resolve_again(at(0), peer);
            assert_eq!(a.resolve(at(0), peer), Ok(Resolution::Resolved(B)), "it has just answered");
            a.resolve_again(at(1), peer);
            ask(&mut a, at(1), 1);
            assert_eq!(a.resolve(at(1), peer), Ok(Resolution::Resolved(EVIL)));
            a.resolve_again(at(2), "192.0.2.1".parse().unwrap());
            assert_eq!(a.resolve(at(2), peer), Ok(Resolution::Resolved(EVIL)));
        }
    }
}

/// RFC 5227 2.1.1 and 2.4, RFC 4862 5.4.2 and 5.4.4: a starting host probes for its addresses, the host that has one of them answers, and
/// both detect the conflict.
#[test]
fn a_duplicate_address_is_reported_by_both_hosts_once() {
    for ours in ["10.0.0.1/24", "fd00::1/64"] {
        let address = ours.parse::<Address>().unwrap();
        let mut a = host(A, &[ours]);
        let mut b = Neighbours::standalone(B, &[address], None);
        let [probe, announcement] = frames(&mut b).try_into().unwrap();
        a.on_frame(at(0), &probe).unwrap();
        assert_eq!(a.poll_conflict(), None, "it may yet give the address up");
        carry(at(0), &mut a, &mut b);
        assert_eq!(b.poll_conflict(), Some((address.ip, A)), "{ours}");
        a.on_frame(at(0), &announcement).unwrap();
        assert_eq!(a.poll_conflict(), Some((address.ip, B)), "{ours}");
        for _ in 0..2 {
            a.on_frame(at(1), &announcement).unwrap();
            assert_eq!((a.poll_conflict(), b.poll_conflict()), (None, None), "once is enough");
        }
        // The host's own frames, which a switch may return, and frames of other hosts are no conflict.
        let (mut c, mut other) =
            (host(A, &[ours]), Neighbours::standalone(B, &["10.0.0.9/24".parse().unwrap()], None));
        let mut again = Neighbours::standalone(A, &[address], None);
        carry(at(0), &mut again, &mut c);
        carry(at(0), &mut other, &mut c);
        assert_eq!(c.poll_conflict(), None);
        // On a Linux interface, the kernel has the addresses, and may answer on another interface.
        let mut passive = Neighbours::with_kernel(A, &[address]);
        passive.on_frame(at(0), &announcement).unwrap();
        assert_eq!(passive.poll_conflict(), None);
    }
}

#[test]
fn a_passive_table_answers_no_request_and_accepts_no_unsolicited_packet() {
    for (ours, theirs) in [("10.0.0.1/24", "10.0.0.2/24"), ("fd00::1/64", "fd00::2/64")] {
        let ours = ours.parse::<Address>().unwrap();
        let (mut a, mut b) = (Neighbours::with_kernel(A, &[ours]), host(B, &[theirs]));
        assert!(frames(&mut a).is_empty(), "no announcement");
        assert_eq!(b.resolve(at(0), ours.ip), Ok(Resolution::Pending));
        carry(at(0), &mut b, &mut a);
        assert!(frames(&mut a).is_empty() && a.entries.is_empty());
        let peer = b.addresses[0].ip;
        a.resolve(at(0), peer).unwrap();
        carry(at(0), &mut a, &mut b);
        carry(at(0), &mut b, &mut a);
        carry(at(5), &mut Neighbours::standalone(EVIL, &b.addresses, None), &mut a);
        assert_eq!(a.resolve(at(5), peer), Ok(Resolution::Resolved(B)));
    }
}

#[test]
fn an_old_entry_is_used_until_the_answer_arrives() {
    let peer: IpAddr = "10.0.0.2".parse().unwrap();
    let (mut a, mut b) = (host(A, &["10.0.0.1/24"]), host(B, &["10.0.0.2/24"]));
    a.resolve(at(0), peer).unwrap();
    assert_eq!(a.last_known(peer), None);
    carry(at(0), &mut a, &mut b);
    carry(at(0), &mut b, &mut a);
    assert_eq!(a.resolve(at(31), peer), Ok(Resolution::Pending));
    assert_eq!(a.last_known(peer), Some(B));
    for second in 32..=34 {
        a.on_timeout(at(second));
    }
    assert_eq!(a.last_known(peer), None, "it has gone");
}

#[test]
fn silent_neighbours_do_not_prevent_a_resolution() {
    let (mut a, mut b) = (host(A, &["10.0.0.1/8"]), host(B, &["10.0.0.2/8"]));
    for n in 0..3 * MAX_ENTRIES as u32 {
        let stranger = IpAddr::from((0x0a01_0000 + n).to_be_bytes());
        assert_eq!(a.resolve(at(0), stranger), Ok(Resolution::Pending));
        assert!(a.entries.len() <= MAX_ENTRIES);
    }
    a.tx_queue.clear();
    let peer = "10.0.0.2".parse().unwrap();
    assert_eq!(a.resolve(at(0), peer), Ok(Resolution::Pending));
    carry(at(0), &mut a, &mut b);
    carry(at(0), &mut b, &mut a);
    assert_eq!(a.resolve(at(0), peer), Ok(Resolution::Resolved(B)));
}

#[test]
fn a_permanent_entry_is_not_solicited() {
    let mut a = host(A, &["10.0.0.1/24"]);
    let peer = "10.0.0.2".parse().unwrap();
    a.set(peer, B).unwrap();
    assert_eq!(a.resolve(at(0), peer), Ok(Resolution::Resolved(B)));
    assert_eq!(a.resolve(at(0), "10.0.0.1".parse().unwrap()), Ok(Resolution::Resolved(A)), "ourselves");
    assert!(frames(&mut a).is_empty());
}

/// A host that probes from the unspecified address receives the advertisement through the all-nodes group.
#[test]
fn a_probe_for_a_used_address_is_answered() {
    let mut a = host(A, &["fd00::1/64"]);
    let (destination, to) = ndp::solicited_node("fd00::1".parse().unwrap());
    let probe = Ndp {
        source: Ipv6Addr::UNSPECIFIED,
        destination,
        target: "fd00::1".parse().unwrap(),
        message: NdpMessage::Solicitation { source_mac: None },
    };
    let mut frame = [0; ndp::FRAME];
    let length = probe.emit(B, to, &mut frame);
    a.on_frame(at(0), &frame[..length]).unwrap();
    let answer = Ndp::parse(&frames(&mut a)[0]).unwrap();
    assert_eq!(answer.destination, ALL_NODES);
    assert!(matches!(answer.message, NdpMessage::Advertisement { solicited: false, .. }));
}
