//! Peers whose Ethernet address changes: packets use the new address, and each call does a bounded amount of work.

use crate::harness::script::Script;
use crate::harness::{Host, Options, Ram, path};
use cc::Instant;
use core::net::IpAddr;
use roce::qp::{Capabilities, Changes, Modify, QpInit, Remote, RtrSettings, SendRequest};
use roce::wire::{Mac, Numbers, Path, Service};
use roce::{Access, Endpoint, EndpointConfig, PdId, Qpn, Rkey};

const NOW: Instant = Instant::ZERO;
const ELSEWHERE: Mac = Mac([2, 0, 0, 0, 7, 7]);

fn peer(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

fn next_mac(host: &mut Host) -> Mac {
    let mut frame = [0; 2048];
    host.endpoint.poll_transmit(Instant::from_nanos(1), &host.ram, &mut frame).unwrap();
    Mac(*frame.first_chunk().unwrap())
}

fn write(script: &mut Script) -> Mac {
    let (qpn, from) = (script.host.qpn, script.host.sge(0, 64));
    let request = SendRequest::write(1, from, Remote { address: 0x1000, rkey: Rkey::new(5) });
    script.host.endpoint.post_send(script.now, qpn, request).unwrap();
    next_mac(&mut script.host)
}

/// An endpoint with one queue pair to each of several peers.
struct Many {
    endpoint: Endpoint,
    pd: PdId,
    init: QpInit,
}

impl Many {
    fn new(most: u32) -> Self {
        let config = EndpointConfig {
            max_qps: most,
            max_cqs: 1,
            max_regions: 1,
            seed: [7; 32],
            process: 0,
            numbers: Numbers::DEFAULT,
        };
        let mut endpoint = Endpoint::new(config);
        let pd = endpoint.create_pd();
        let cq = endpoint.create_cq(16).unwrap();
        let capabilities = Capabilities { max_send: 1, max_recv: 1, ..Capabilities::default() };
        let (signal_all, srq, service) = (false, None, Service::Rc);
        let init = QpInit { service, pd, send_cq: cq, recv_cq: cq, capabilities, signal_all, srq };
        Self { endpoint, pd, init }
    }

    fn add(&mut self, service: Service, to: u8) -> Qpn {
        let qpn = self.endpoint.create_qp(NOW, QpInit { service, ..self.init }).unwrap();
        let init = Modify::Init { access: Access::ALL, partition_key: 0xffff };
        self.endpoint.modify_qp(NOW, qpn, init).unwrap();
        let settings = RtrSettings::new(path(2, to), Qpn::new(77));
        self.endpoint.modify_qp(NOW, qpn, Modify::ReadyToReceive(settings)).unwrap();
        qpn
    }
}

#[test]
fn packets_use_the_new_address_of_the_peer_only() {
    let mut script = Script::new(Options::default());
    assert_eq!(write(&mut script), path(2, 1).destination_mac);
    assert_eq!(script.host.endpoint.redirect(peer(9), ELSEWHERE), 0, "another peer");
    assert_eq!(script.host.endpoint.redirect(peer(1), path(2, 1).destination_mac), 0, "it is there");
    assert_eq!(script.host.endpoint.redirect(peer(1), ELSEWHERE), 1);
    assert_eq!(script.host.endpoint.redirect(peer(1), ELSEWHERE), 0, "once");
    assert_eq!(write(&mut script), ELSEWHERE);
    assert_eq!(script.host.endpoint.redirect(peer(1), path(2, 1).destination_mac), 1);
    assert_eq!(write(&mut script), path(2, 1).destination_mac);
}

#[test]
fn a_redirect_applies_to_queue_pairs_and_address_handles() {
    let mut many = Many::new(8);
    let qps = [Service::Rc, Service::Uc, Service::Rc].map(|service| many.add(service, 1));
    many.add(Service::Rc, 3);
    let handles = [1, 1, 3].map(|to| many.endpoint.create_address(many.pd, &path(2, to)).unwrap());
    let redirect = |many: &mut Many, to| many.endpoint.redirect(peer(1), Mac([2, 0, 0, 0, 8, to]));
    assert_eq!(redirect(&mut many, 1), 5);
    many.endpoint.destroy_qp(NOW, qps[0]).unwrap();
    assert_eq!(redirect(&mut many, 2), 4);
    many.endpoint.modify_qp(NOW, qps[1], Modify::Reset).unwrap();
    assert_eq!(redirect(&mut many, 3), 3);
    many.endpoint.destroy_address(handles[0]).unwrap();
    assert_eq!(redirect(&mut many, 4), 2);
    many.endpoint.modify_qp(NOW, qps[2], Modify::Error).unwrap();
    assert_eq!(redirect(&mut many, 5), 2, "what failed may still send a NAK");
}

#[test]
fn a_queue_pair_with_a_new_path_follows_redirects_of_its_new_peer() {
    let mut script = Script::new(Options::default());
    let (now, qpn) = (script.now, script.host.qpn);
    let other = Path { destination: peer(3), ..path(2, 1) };
    let changes = Changes { path: Some(other), ..Changes::default() };
    for modify in [Modify::Drain { notify: false }, Modify::Change(changes), Modify::Resume] {
        script.host.endpoint.modify_qp(now, qpn, modify).unwrap();
    }
    assert_eq!(script.host.endpoint.redirect(peer(1), ELSEWHERE), 0);
    assert_eq!(script.host.endpoint.redirect(peer(3), ELSEWHERE), 1);
    assert_eq!(write(&mut script), ELSEWHERE);
}

/// However many queue pairs have a peer whose address changed, one call changes at most the limit.
#[test]
fn one_redirect_call_changes_a_bounded_number_of_queue_pairs() {
    const MOST: usize = Endpoint::REDIRECTS;
    let count = 2 * MOST + 3;
    let mut many = Many::new(count as u32);
    for _ in 0..count {
        many.add(Service::Rc, 1);
    }
    let changed = [0; 4].map(|_| many.endpoint.redirect(peer(1), ELSEWHERE));
    assert_eq!(changed, [MOST, MOST, 3, 0]);
    assert!(many.endpoint.poll_transmit(NOW, &Ram(vec![]), &mut [0; 2048]).is_none());
}
