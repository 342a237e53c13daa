//! The settings of a queue pair can be queried, with their latest values.

use crate::common::*;
use ferroce_verbs::congestion::{Congestion, CongestionAlgorithm, DEFAULT_CONGESTION, parse_rate};
use ferroce_verbs::state::{Changes, LossRecovery, Modify, RtrSettings, RtsSettings};
use ferroce_verbs::wire::DEFAULT_QUEUE_KEY;
use ferroce_verbs::{Access, Capabilities, ConnectOptions, Device, Progress, QpEndpoint, Service};

#[test]
fn the_settings_of_a_connection_are_those_given() {
    let (mut a, b) = connected(Progress::Inline, 4096);
    let settings = *a.qp.settings();
    let (receive, send) = (settings.receive.unwrap(), settings.send.unwrap());
    assert_eq!(receive.destination, b.qp.qpn());
    assert_eq!(receive.path.destination, b.qp.endpoint().ip);
    assert_eq!((send.retry_count, settings.congestion()), (7, Some(DEFAULT_CONGESTION)));

    let access = Changes { access: Some(Access::REMOTE_READ), ..Changes::default() };
    a.qp.modify(Modify::Change(access)).unwrap();
    assert_eq!(a.qp.settings().access, Access::REMOTE_READ);
    let patience = Changes { retry_count: Some(2), ..Changes::default() };
    a.qp.modify(Modify::Change(patience)).unwrap_err();
    assert_eq!(a.qp.settings().send, Some(send), "what is refused changes nothing");
    a.qp.modify(Modify::Drain { notify: false }).unwrap();
    a.qp.modify(Modify::Change(patience)).unwrap();
    assert_eq!(a.qp.settings().send, Some(RtsSettings { retry_count: 2, ..send }));
    a.qp.modify(Modify::Reset).unwrap();
    assert_eq!((a.qp.settings().receive, a.qp.settings().congestion()), (None, None));
}

/// If the device's settings disable selective repeat, a program that offers it uses go-back-N. Every program of libibverbs offers it.
#[test]
fn a_device_without_selective_repeat_does_not_offer_it() {
    let text = "progress = 'inline'\nselective_repeat = false";
    let [a, b] = devices_with(text.parse().unwrap());
    let make = |device: &Device| side(device, 4096, Capabilities::default(), 16);
    let (mut a, mut b) = (make(&a), make(&b));
    assert!(!a.qp.endpoint().selective_repeat);
    // The endpoint of a peer whose device allows selective repeat.
    let peer = QpEndpoint { selective_repeat: true, ..b.qp.endpoint() };
    a.qp.connect(&peer, &ConnectOptions::default()).unwrap();
    let agreed = a.qp.settings().receive.unwrap();
    assert_eq!(agreed.loss_recovery, LossRecovery::GoBackN);
    let offered = RtrSettings { loss_recovery: LossRecovery::Offered, ..agreed };
    b.qp.modify(Modify::ReadyToReceive(offered)).unwrap();
    assert_eq!(b.qp.settings().receive.unwrap().loss_recovery, LossRecovery::GoBackN);
}

#[test]
fn datagrams_have_a_key_and_a_pace() {
    let [device, _] = devices(Progress::Inline);
    let cq = device.create_cq(8).unwrap();
    let pd = device.allocate_pd().unwrap();
    let mut qp = pd.queue_pair(&cq, &cq).service(Service::Ud).build().unwrap();
    assert_eq!(qp.settings().queue_key, Some(DEFAULT_QUEUE_KEY));
    let pace = CongestionAlgorithm::Fixed { window: 1 << 20, rate: Some(parse_rate("1G").unwrap()) };
    qp.open(Some(Congestion::new(pace))).unwrap();
    assert_eq!(qp.settings().congestion(), Some(Congestion::new(pace)));
    qp.modify(Modify::Change(Changes { queue_key: Some(7), ..Changes::default() })).unwrap();
    assert_eq!(qp.settings().queue_key, Some(7));
}
