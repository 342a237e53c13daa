//! The switch sends frames to known stations by one port, and floods all others.

use crate::script::{BROADCAST, Buf, SECOND, Script, at, frame, station};
use ferroce_fabric::{ConfigError, PortConfig, PortId, Switch, SwitchConfig};

fn unshaped(ports: usize) -> Script {
    Script::new(&vec![PortConfig::default(); ports])
}

#[test]
fn a_frame_to_a_known_station_leaves_by_its_port_only() {
    let mut script = unshaped(3);
    let sent = frame(station(2), station(0), 100, 7);
    script.send(at(1), 0, &sent);
    assert_eq!(script.leaving(at(1), 2), [sent]);
    assert_eq!(script.leaving(at(1), 0).len() + script.leaving(at(1), 1).len(), 0);
}

#[test]
fn unknown_broadcast_and_multicast_are_flooded() {
    for to in [station(99), BROADCAST, [0x33, 0x33, 0, 0, 0, 1]] {
        for from in 0..3 {
            let mut script = unshaped(3);
            let sent = frame(to, station(50), 100, 7);
            script.send(at(1), from, &sent);
            for port in 0..3 {
                let got = script.leaving(at(1), port);
                assert_eq!(
                    got,
                    vec![sent.clone(); usize::from(port != from)],
                    "{to:?} from {from} at {port}"
                );
            }
            let report = script.switch.report(at(1));
            assert_eq!(report.ports[usize::from(from)].counters.flooded, 1);
        }
    }
}

#[test]
fn a_station_that_moves_is_learned_again_and_an_idle_one_ages_out() {
    let mut script = unshaped(3);
    script.send(at(1), 2, &frame(station(0), station(1), 64, 0));
    script.leaving(at(1), 0);
    script.send(at(2), 0, &frame(station(1), station(0), 64, 1));
    assert_eq!(script.tags(at(2), 2), [1]);
    assert_eq!(script.tags(at(2), 1), []);

    let later = at(2) + 300 * SECOND;
    script.send(later, 0, &frame(station(1), station(0), 64, 2));
    assert_eq!(script.tags(later, 1), [2]);
    assert_eq!(script.tags(later, 2), [2]);
}

#[test]
fn frames_that_are_not_forwarded_are_counted_by_reason() {
    let mut script = unshaped(2);
    script.send(at(1), 0, &frame(station(0), station(9), 64, 0));
    script.send(at(1), 0, &frame(station(1), BROADCAST, 64, 0));
    script.send(at(1), 0, &frame([1, 0x80, 0xc2, 0, 0, 0x0e], station(0), 64, 0));
    script.send(at(1), 0, &[0; 13]);
    script.send(at(1), 0, &[]);
    let drops = script.switch.report(at(1)).ports[0].counters.drops;
    assert_eq!((drops.same_port, drops.group_source, drops.link_local, drops.runt), (1, 1, 1, 2));
    assert_eq!(drops.total(), 5);
    assert_eq!(script.switch.frames_inside(), 0);
}

#[test]
fn an_empty_pool_drops_the_copies_but_not_the_frame() {
    let mut script = unshaped(3);
    let sent = Buf::of(&frame(BROADCAST, station(0), 64, 5));
    script.switch.on_frame(at(1), PortId(0), sent, |_| None);
    assert_eq!(script.tags(at(1), 1), []);
    assert_eq!(script.tags(at(1), 2), [5]);
    assert_eq!(script.switch.report(at(1)).ports[1].counters.drops.no_buffer, 1);
}

#[test]
fn an_invalid_switch_configuration_is_refused() {
    let refused = |config: SwitchConfig| Switch::<Buf>::new(&config).err();
    let ports = vec![PortConfig::default(); 2];
    assert_eq!(refused(SwitchConfig::default()), Some(ConfigError::Ports(0)));
    assert_eq!(
        refused(SwitchConfig { id: 4096, ports: ports.clone(), ..SwitchConfig::default() }),
        Some(ConfigError::SwitchId(4096))
    );
    let rate = Some(cc::Rate::from_bps(0));
    let bad = vec![ports[0], PortConfig { rate, ..PortConfig::default() }];
    assert_eq!(refused(SwitchConfig { ports: bad, ..SwitchConfig::default() }), Some(ConfigError::Rate(1)));
    let bad = vec![PortConfig { queue_bytes: 100, ..PortConfig::default() }];
    assert!(matches!(
        refused(SwitchConfig { ports: bad, ..SwitchConfig::default() }),
        Some(ConfigError::Queue(0, _, 100))
    ));
}
