//! Extended reliable connections (XRC): several shared receive queues behind one queue pair.

use crate::common::{contents, devices, pattern, success};
use ferroce_verbs::errors::{ControlError, PostError};
use ferroce_verbs::service::Any;
use ferroce_verbs::state::State;
use ferroce_verbs::xrc::XrcDomain;
use ferroce_verbs::{
    Access, CompletionQueue, CompletionStatus, ConnectOptions, Device, Error, MemoryRegion, Progress,
    QueuePair, RecvRequest, SendRequest, Service, SharedReceiveQueue,
};

/// A shared receive queue of an XRC domain, with its own protection domain, memory and completion queue.
struct Inbox {
    queue: SharedReceiveQueue,
    cq: CompletionQueue,
    region: MemoryRegion,
}

fn inbox(device: &Device, domain: &XrcDomain) -> Inbox {
    let (pd, cq) = (device.allocate_pd().unwrap(), device.create_cq(16).unwrap());
    let region = MemoryRegion::alloc(&pd, 1 << 16, Access::ALL).unwrap();
    let queue = pd.xrc_receive_queue(domain, &cq, 8, 2).unwrap();
    Inbox { queue, cq, region }
}

struct Sender {
    qp: QueuePair<Any>,
    cq: CompletionQueue,
    region: MemoryRegion,
}

/// Returns an initiator on one device and a target on the other, connected.
fn connected(here: &Device, domain: &XrcDomain) -> (Sender, QueuePair<Any>) {
    let (pd, cq) = (here.allocate_pd().unwrap(), here.create_cq(64).unwrap());
    let region = MemoryRegion::alloc(&pd, 1 << 16, Access::ALL).unwrap();
    let mut qp = pd.queue_pair(&cq, &cq).service(Service::Xrc).build().unwrap();
    let mut target = domain.target().build().unwrap();
    let (to_target, to_sender) = (target.endpoint(), qp.endpoint());
    target.connect(&to_sender, &ConnectOptions::default()).unwrap();
    qp.connect(&to_target, &ConnectOptions::default()).unwrap();
    (Sender { qp, cq, region }, target)
}

#[test]
fn messages_and_memory_of_two_queues_by_one_connection() {
    let [here, there] = devices(Progress::Inline);
    let domain = there.xrc_domain().unwrap();
    let mut inboxes = [inbox(&there, &domain), inbox(&there, &domain)];
    let (mut sender, target) = connected(&here, &domain);
    let bytes = pattern(5000, 3);
    sender.region.write(0, &bytes).unwrap();
    for (round, inbox) in inboxes.iter_mut().enumerate() {
        let id = round as u64;
        let into = inbox.region.sge(0, 8000).unwrap();
        inbox.queue.post_recv(RecvRequest::new(id + 10, into)).unwrap();
        let data = sender.region.sge(0, 5000).unwrap();
        sender.qp.post_send(SendRequest::send(id, data).to_srq(inbox.queue.number())).unwrap();
        assert_eq!(success(&mut sender.cq, &there).id, id);
        let arrived = success(&mut inbox.cq, &here);
        assert_eq!((arrived.id, arrived.qpn, arrived.length), (id + 10, target.qpn(), 5000));
        assert_eq!(arrived.srq, Some(inbox.queue.id()));
        assert_eq!(contents(&inbox.region, 0, 5000), bytes);
        let remote = inbox.region.remote().at(20_000);
        let write = SendRequest::write(20, data, remote).to_srq(inbox.queue.number());
        sender.qp.post_send(write).unwrap();
        success(&mut sender.cq, &there);
        let back = sender.region.sge(30_000, 5000).unwrap();
        sender.qp.post_send(SendRequest::read(21, back, remote).to_srq(inbox.queue.number())).unwrap();
        success(&mut sender.cq, &there);
        assert_eq!(contents(&sender.region, 30_000, 5000), bytes);
        assert_eq!(contents(&inbox.region, 20_000, 5000), bytes);
    }
    // The request has the rkey of one queue's protection domain, and the number of the other queue.
    let (data, remote) = (sender.region.sge(0, 8).unwrap(), inboxes[0].region.remote().at(0));
    let request = SendRequest::write(30, data, remote).to_srq(inboxes[1].queue.number());
    sender.qp.post_send(request).unwrap();
    assert_eq!(crate::common::next(&mut sender.cq, &there).status, CompletionStatus::RemoteAccess);
    assert_eq!(target.query().unwrap().state, State::Error);
}

/// Polling frees room in the queue that provided the request, for any target. The test sends many more messages than the queue is deep.
#[test]
fn a_queue_is_filled_again_as_its_messages_are_polled() {
    let [here, there] = devices(Progress::Inline);
    let domain = there.xrc_domain().unwrap();
    let mut inbox = inbox(&there, &domain);
    let mut senders = [connected(&here, &domain), connected(&here, &domain)];
    let into = inbox.region.sge(0, 64).unwrap();
    let full = |inbox: &mut Inbox, id| inbox.queue.post_recv(RecvRequest::new(id, into));
    (0..8).for_each(|id| full(&mut inbox, id).unwrap());
    assert_eq!(full(&mut inbox, 8), Err(PostError::QueueFull { limit: 8 }));
    for id in 0..200 {
        let (sender, target) = &mut senders[id as usize % 2];
        let data = sender.region.sge(0, 8).unwrap();
        sender.qp.post_send(SendRequest::send(id, data).to_srq(inbox.queue.number())).unwrap();
        success(&mut sender.cq, &there);
        let arrived = success(&mut inbox.cq, &here);
        assert_eq!((arrived.id, arrived.qpn), (id, target.qpn()));
        full(&mut inbox, id + 8).unwrap();
    }
}

#[test]
fn a_request_that_xrc_does_not_support_is_refused() {
    let [here, there] = devices(Progress::Inline);
    let domain = there.xrc_domain().unwrap();
    let mut inbox = inbox(&there, &domain);
    let (mut sender, mut target) = connected(&here, &domain);
    let (ours, theirs) = (sender.qp.qpn(), target.qpn());
    let data = sender.region.sge(0, 8).unwrap();
    let refused = sender.qp.post_send(SendRequest::send(1, data));
    assert_eq!(refused, Err(PostError::RemoteSrq { qpn: ours }));
    let receive = RecvRequest::new(1, data);
    assert_eq!(sender.qp.post_recv(receive.clone()), Err(PostError::Service { qpn: ours }));
    assert_eq!(target.post_recv(receive.clone()), Err(PostError::SharedReceives { qpn: theirs }));
    let request = SendRequest::send(1, data).to_srq(inbox.queue.number());
    assert_eq!(target.post_send(request), Err(PostError::Service { qpn: theirs }));
    // A domain of another device.
    let (pd, cq) = (here.allocate_pd().unwrap(), here.create_cq(4).unwrap());
    assert!(matches!(pd.xrc_receive_queue(&domain, &cq, 4, 1), Err(Error::OtherDevice { .. })));
    // A shared receive queue of an XRC domain serves only XRC targets.
    let (pd, cq) = (there.allocate_pd().unwrap(), there.create_cq(4).unwrap());
    let built = pd.queue_pair(&cq, &cq).receive_from(&inbox.queue).build();
    assert!(matches!(built, Err(Error::Control(ControlError::SrqOfXrc { .. }))), "{built:?}");
    inbox.queue.post_recv(receive).unwrap();
    assert_eq!(domain.holders(), 3);
    drop((inbox, target));
    assert_eq!(domain.holders(), 1);
}
