//! Regions whose addresses in requests differ from those of their owner, zero-based ones included.

use crate::harness::{BASE, Options, Pair};
use core::time::Duration;
use roce::qp::{CompletionStatus, RecvRequest, Remote, SendRequest, Sge};
use roce::{Access, Binding, ControlError, Region, WindowKind};

const LIMIT: Duration = Duration::from_millis(100);
/// The address of the regions in the hosts' memory.
const AT: u64 = 8192;
const LENGTH: u64 = 4096;

/// Registers regions of both hosts over the same memory, with these first addresses.
fn regions(pair: &mut Pair, origins: [u64; 2]) -> [Region; 2] {
    [0, 1].map(|host: usize| {
        let (pd, rights) = (pair.hosts[host].pd, Access::ALL | Access::WINDOWS);
        let endpoint = &mut pair.hosts[host].endpoint;
        endpoint.register_as(pd, BASE + AT, LENGTH, origins[host], rights).unwrap()
    })
}

fn sge(region: &Region, offset: u64, length: u32) -> Sge {
    Sge { address: region.origin + offset, length, lkey: region.lkey }
}

fn remote(region: &Region, offset: u64) -> Remote {
    Remote { address: region.origin + offset, rkey: region.rkey }
}

fn run(pair: &mut Pair, request: SendRequest) -> CompletionStatus {
    pair.post(0, request);
    pair.run(LIMIT);
    pair.hosts[0].sent()[0].status
}

/// IBA 11.2.8.1: a region's first byte has the address that its owner chose.
#[test]
fn both_sides_use_the_regions_own_addresses() {
    for origins in [[0, 0], [0x10_0000, 8], [0, BASE * 2]] {
        let mut pair = Pair::connect(Options::default());
        let [ours, theirs] = regions(&mut pair, origins);
        let at = AT as usize;
        for (i, byte) in pair.hosts[0].ram.0[at..at + 1500].iter_mut().enumerate() {
            *byte = i as u8 ^ 0x5a;
        }
        let sent = pair.hosts[0].bytes(at, 1500).to_vec();
        let good = CompletionStatus::Success;
        assert_eq!(run(&mut pair, SendRequest::write(1, sge(&ours, 0, 1500), remote(&theirs, 100))), good);
        assert_eq!(pair.hosts[1].bytes(at + 100, 1500), sent);
        assert_eq!(run(&mut pair, SendRequest::read(2, sge(&ours, 2000, 1500), remote(&theirs, 100))), good);
        assert_eq!(pair.hosts[0].bytes(at + 2000, 1500), sent);
        let qpn = pair.hosts[1].qpn;
        let receive = RecvRequest::new(3, sge(&theirs, 2000, 1500));
        pair.hosts[1].endpoint.post_recv(qpn, receive).unwrap();
        assert_eq!(run(&mut pair, SendRequest::send(3, sge(&ours, 0, 1500))), good);
        assert_eq!(pair.hosts[1].bytes(at + 2000, 1500), sent);
        pair.hosts[1].ram.0[at..at + 8].copy_from_slice(&7u64.to_ne_bytes());
        assert_eq!(run(&mut pair, SendRequest::fetch_add(4, sge(&ours, 0, 8), remote(&theirs, 0), 5)), good);
        assert_eq!(pair.hosts[1].bytes(at, 8), 12u64.to_ne_bytes());
        assert_eq!(pair.hosts[0].bytes(at, 8), 7u64.to_ne_bytes());
    }
}

#[test]
fn the_address_of_the_memory_is_outside_a_region_with_its_own_addresses() {
    let mut pair = Pair::connect(Options::default());
    let [ours, theirs] = regions(&mut pair, [0, 0x1000]);
    let owners = Remote { address: BASE + AT, ..remote(&theirs, 0) };
    let outside = [owners, remote(&theirs, LENGTH), Remote { address: 0xfff, ..owners }];
    for remote in outside {
        let mut pair = Pair::connect(Options::default());
        let [_, again] = regions(&mut pair, [0, 0x1000]);
        assert_eq!(again.rkey, theirs.rkey, "the same keys by the same seed");
        let data = pair.hosts[0].sge(0, 1);
        assert_eq!(run(&mut pair, SendRequest::write(1, data, remote)), CompletionStatus::RemoteAccess);
    }
    let local = Sge { address: BASE + AT, ..sge(&ours, 0, 8) };
    let status = run(&mut pair, SendRequest::write(1, local, remote(&theirs, 0)));
    assert_eq!(status, CompletionStatus::LocalProtection);
}

/// A window is bound at the region's addresses, and keeps the addresses of its binding.
#[test]
fn a_window_is_bound_at_the_regions_addresses() {
    for zero_based in [false, true] {
        let mut pair = Pair::connect(Options::default());
        let [ours, theirs] = regions(&mut pair, [0, 0x1000]);
        let (pd, now, qpn) = (pair.hosts[1].pd, pair.now, pair.hosts[1].qpn);
        let window = pair.hosts[1].endpoint.create_window(pd, WindowKind::Two).unwrap();
        let binding = Binding {
            window,
            rkey: window.next(),
            lkey: theirs.lkey,
            address: 0x1000 + 64,
            length: 64,
            access: Access::REMOTE_WRITE,
            zero_based,
        };
        pair.hosts[1].endpoint.post_send(now, qpn, SendRequest::bind(1, binding)).unwrap();
        pair.run(LIMIT);
        assert_eq!(pair.hosts[1].sent()[0].status, CompletionStatus::Success);
        pair.hosts[0].ram.0[AT as usize] = 9;
        let address = if zero_based { 3 } else { 0x1000 + 64 + 3 };
        let remote = Remote { address, rkey: binding.rkey };
        assert_eq!(
            run(&mut pair, SendRequest::write(1, sge(&ours, 0, 1), remote)),
            CompletionStatus::Success
        );
        assert_eq!(pair.hosts[1].bytes(AT as usize + 64 + 3, 1), [9]);
    }
}

#[test]
fn addresses_that_run_over_the_end_are_refused() {
    let mut pair = Pair::connect(Options::default());
    let (pd, host) = (pair.hosts[0].pd, &mut pair.hosts[0]);
    let made = host.endpoint.register_as(pd, BASE, 4096, u64::MAX - 4095, Access::ALL);
    assert!(matches!(made, Err(ControlError::Value { what: "a region's length", .. })), "{made:?}");
    assert!(host.endpoint.register_as(pd, BASE, 4096, u64::MAX - 4096, Access::ALL).is_ok());
}
