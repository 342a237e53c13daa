//! What trace points observe of a queue pair's turns.

use crate::harness::script::{PEER, PSN, Script, ack};
use crate::harness::{BASE, Options, path};
use core::time::Duration;
use roce::qp::{Remote, SendRequest};
use roce::wire::{MAX_OVERHEAD, Mtu};
use roce::{Outbox, TurnTrace};

/// A burst buffer with room for any number of frames, and the recorded traces.
struct Traces(Vec<u8>, Vec<TurnTrace>);

impl Outbox for Traces {
    fn room(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.0)
    }
    fn commit(&mut self, _: usize) {}
    fn is_traced(&self) -> bool {
        true
    }
    fn trace(&mut self, turn: &TurnTrace) {
        self.1.push(*turn);
    }
}

#[test]
fn traces_of_turns_have_acknowledgements_rates_and_retransmissions() {
    let mut script = Script::new(Options { retry_count: 7, ..Options::default() });
    let turn = |script: &mut Script| {
        let mut traces = Traces(vec![0; Mtu::M4096.bytes() as usize + MAX_OVERHEAD], Vec::new());
        script.host.endpoint.transmit(script.now, &script.host.ram, &mut traces);
        let [turn] = traces.1[..] else { panic!("{:?}", traces.1) };
        turn
    };
    let write = |script: &mut Script| {
        let from = script.host.sge(0, 10);
        let remote = Remote { address: BASE, rkey: roce::Rkey::new(5) };
        script
            .host
            .endpoint
            .post_send(script.now, script.host.qpn, SendRequest::write(1, from, remote))
            .unwrap();
    };
    write(&mut script);
    let first = turn(&mut script);
    assert_eq!((first.qpn, first.peer), (script.host.qpn, Some(path(2, 1).destination)));
    assert_eq!((first.acknowledged, first.retransmitted), (None, 0));
    assert!(first.pace.is_some(), "nothing was known before: {PEER}");
    assert_eq!(script.send(PSN, ack(1), &[]), Ok(()));
    write(&mut script);
    let second = turn(&mut script);
    assert_eq!((second.acknowledged.map(roce::Psn::get), second.pace), (Some(PSN), None));
    script.wait(Duration::from_millis(3));
    let third = turn(&mut script);
    assert_eq!((third.acknowledged, third.retransmitted), (None, 1));
}
