//! Multicast: attached queue pairs on both devices receive a copy, including those on the sender's device.

use crate::common::{contents, devices, success};
use ferroce_verbs::port::Mac;
use ferroce_verbs::service::{Request, Ud};
use ferroce_verbs::wire::{DEFAULT_QUEUE_KEY, GROUP_QPN};
use ferroce_verbs::{
    Access, AddressOptions, CompletionQueue, Device, MemoryRegion, Progress, ProtectionDomain, QueuePair,
    RecvRequest,
};
use std::net::IpAddr;

struct Member {
    qp: QueuePair<Ud>,
    cq: CompletionQueue,
    region: MemoryRegion,
    domain: ProtectionDomain,
}

fn member(device: &Device) -> Member {
    let (domain, cq) = (device.allocate_pd().unwrap(), device.create_cq(16).unwrap());
    let region = MemoryRegion::alloc(&domain, 4096, Access::ALL).unwrap();
    let mut qp = domain.queue_pair(&cq, &cq).datagrams().build().unwrap();
    qp.post_recv(RecvRequest::new(1, region.sge(1024, 1024).unwrap())).unwrap();
    qp.open(None).unwrap();
    Member { qp, cq, region, domain }
}

#[test]
fn each_member_of_a_group_receives_a_copy_and_so_does_the_sender() {
    let [here, there] = devices(Progress::Inline);
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    let (mut a, mut b) = (member(&here), member(&there));
    for member in [&mut a, &mut b] {
        member.qp.attach(group).unwrap();
        member.qp.attach(group).unwrap();
    }
    let address = a.domain.address(group, &AddressOptions::default()).unwrap();
    assert_eq!(address.path().destination_mac, Mac([0x01, 0, 0x5e, 1, 2, 3]));
    a.region.write(0, b"to all").unwrap();
    let to = address.to(GROUP_QPN, DEFAULT_QUEUE_KEY);
    a.qp.post_send(Request::send_to(2, a.region.sge(0, 6).unwrap(), to)).unwrap();
    for _ in 0..2 {
        success(&mut a.cq, &there);
    }
    let came = success(&mut b.cq, &here);
    assert_eq!((came.id, came.length, came.source), (1, 40 + 6, Some(a.qp.qpn())));
    for member in [&a, &b] {
        assert_eq!(contents(&member.region, 1024 + 40, 6), b"to all");
    }
    b.qp.detach(group).unwrap();
    let refused = b.qp.detach(group).unwrap_err().to_string();
    assert_eq!(refused, format!("multicast: QP {} is not attached to {group}", b.qp.qpn()));
    let refused = b.qp.attach("10.0.0.1".parse().unwrap()).unwrap_err().to_string();
    assert!(refused.contains("10.0.0.1 is not a group's address; use one of 224.0.0.0/4"), "{refused}");
}
