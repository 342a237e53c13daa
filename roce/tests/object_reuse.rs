//! Objects that are created and destroyed continually, in virtual time: no limit is reported before it is reached.

use crate::harness::{BASE, path};
use cc::Instant;
use core::time::Duration;
use roce::qp::{Capabilities, QpInit};
use roce::wire::{Numbers, Service};
use roce::{
    Access, ControlError, CoreIndex, Endpoint, EndpointConfig, QPN_QUARANTINE, Qpn, SrqInit, WindowKind,
    XrcReceives,
};
use std::collections::{BTreeMap, VecDeque};

const ROUNDS: u32 = 3;

fn endpoint(core: CoreIndex, max_qps: u32) -> Endpoint {
    let config = EndpointConfig {
        max_qps,
        max_cqs: 2,
        max_regions: 2,
        seed: [7; 32],
        process: 5,
        numbers: Numbers::DEFAULT,
    };
    Endpoint::of_core(config, core)
}

fn init(endpoint: &mut Endpoint) -> QpInit {
    let (pd, cq) = (endpoint.create_pd(), endpoint.create_cq(16).unwrap());
    let capabilities = Capabilities::default();
    let service = Service::Rc;
    QpInit { service, pd, send_cq: cq, recv_cq: cq, capabilities, signal_all: false, srq: None }
}

/// Creates as many queue pairs as the limit permits, and then replaces the oldest once per `interval`, except `stay` of them. The error
/// contains the time at which a creation was refused.
fn replace(
    core: CoreIndex,
    limit: u32,
    stay: u32,
    interval: Duration,
) -> Result<(), (Instant, ControlError)> {
    let mut endpoint = endpoint(core, limit);
    let init = init(&mut endpoint);
    let mut now = Instant::ZERO;
    let mut destroyed: BTreeMap<u32, Instant> = BTreeMap::new();
    let mut live: VecDeque<Qpn> = VecDeque::new();
    for _ in 0..stay {
        endpoint.create_qp(now, init).unwrap();
    }
    for _ in 0..ROUNDS * core.max_qps() {
        if live.len() as u32 + stay == limit {
            let oldest = live.pop_front().unwrap();
            endpoint.destroy_qp(now, oldest).unwrap();
            destroyed.insert(oldest.get(), now);
        }
        let qpn = endpoint.create_qp(now, init).map_err(|error| (now, error))?;
        let rested = destroyed.get(&qpn.get()).is_none_or(|&at| at + QPN_QUARANTINE <= now);
        assert!(rested, "QP {qpn} is given at {now:?}");
        assert!(endpoint.report(qpn).is_some());
        live.push_back(qpn);
        now = now + interval;
    }
    Ok(())
}

/// Returns the shortest interval at which numbers suffice: all numbers but those of live queue pairs and the two reserved ones are reusable
/// within [`QPN_QUARANTINE`].
fn bearable(core: CoreIndex, limit: u32) -> Duration {
    QPN_QUARANTINE / (core.max_qps() - limit - 2) + Duration::from_nanos(1)
}

#[test]
fn queue_pairs_replaced_below_the_rate_of_their_numbers_are_never_refused() {
    for core in [CoreIndex::ONLY, CoreIndex::new(3, 4), CoreIndex::new(5, 6)] {
        for (limit, stay) in [(1, 0), (2, 1), (1000, 0), (1024, 1023)] {
            let outcome = replace(core, limit, stay, bearable(core, limit));
            assert_eq!(outcome, Ok(()), "{core:?}, {stay} of {limit} stay");
        }
    }
}

#[test]
fn queue_pairs_replaced_above_that_rate_are_refused_for_their_numbers() {
    let core = CoreIndex::new(5, 6);
    for limit in [1, 1024] {
        let (at, error) = replace(core, limit, 0, bearable(core, limit) / 2).unwrap_err();
        assert_eq!(error, ControlError::NumbersQuarantined { numbers: core.max_qps() });
        assert!(at < Instant::ZERO + QPN_QUARANTINE, "the first number has rested by then: {at:?}");
        let text = error.to_string();
        assert!(text.contains("16384") && text.ends_with("at a lower rate"), "{text}");
    }
}

#[test]
fn the_limit_of_queue_pairs_is_reported_when_it_is_reached() {
    let mut endpoint = endpoint(CoreIndex::new(5, 6), 3);
    let init = init(&mut endpoint);
    let full = Err(ControlError::Limit { what: "queue pairs", limit: 3 });
    let mut qpns: VecDeque<_> = (0..3).map(|_| endpoint.create_qp(Instant::ZERO, init).unwrap()).collect();
    for _ in 0..1000 {
        assert_eq!(endpoint.create_qp(Instant::ZERO, init), full);
        endpoint.destroy_qp(Instant::ZERO, qpns.pop_front().unwrap()).unwrap();
        qpns.push_back(endpoint.create_qp(Instant::ZERO, init).unwrap());
    }
}

/// The ids of address handles have 16 bits for the generation of an index, more than those of other objects that reuse indices. Three
/// cycles of address handles are therefore at least three cycles of all other objects except keys, which have 32 bits and no delay before
/// reuse.
#[test]
fn other_objects_replaced_for_three_rounds_are_never_refused() {
    let mut endpoint = endpoint(CoreIndex::ONLY, 1);
    let (pd, spare, cq) =
        (endpoint.create_pd(), endpoint.create_xrcd().unwrap(), endpoint.create_cq(16).unwrap());
    for round in 0..ROUNDS << 16 {
        let created = endpoint.create_cq(1).and_then(|cq| endpoint.destroy_cq(cq));
        assert_eq!(created, Ok(()), "completion queue {round}");
        let region = endpoint.register(pd, BASE, 64, Access::ALL);
        assert_eq!(region.and_then(|it| endpoint.deregister(it.lkey)), Ok(()), "region {round}");
        let window = endpoint.create_window(pd, WindowKind::Two);
        assert_eq!(window.and_then(|rkey| endpoint.destroy_window(rkey)), Ok(()), "window {round}");
        let address = endpoint.create_address(pd, &path(1, 2));
        assert_eq!(address.and_then(|it| endpoint.destroy_address(it)), Ok(()), "address handle {round}");
        let domain = endpoint.create_xrcd();
        assert_eq!(domain.and_then(|it| endpoint.destroy_xrcd(it)), Ok(()), "XRC domain {round}");
        for xrc in [None, Some(XrcReceives { domain: spare, cq })] {
            let srq = endpoint.create_srq(SrqInit { pd, depth: 1, max_sge: 1, xrc });
            assert_eq!(srq.and_then(|it| endpoint.destroy_srq(it)), Ok(()), "shared receive queue {round}");
        }
    }
}
