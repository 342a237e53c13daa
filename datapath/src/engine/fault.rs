//! Faults that an observer injects into an open port. Each takes the path of the event that it stands for.

use super::config::Stopped;
use thiserror::Error;

/// A fault of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortFault {
    /// The link is down until [`PortUp`](Self::PortUp): no frame leaves or arrives, not even one to a process of the same interface.
    PortDown,
    /// Ends [`PortDown`](Self::PortDown). The port is up if its Linux interface is.
    PortUp,
    /// The address at this index of the GID table is removed. It returns when the device is opened again.
    GidRemove(usize),
    /// The cores end as by a defect. All queue pairs complete in error, and each call returns an error.
    DeviceFatal,
}

/// The reason why a port refuses a fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PortFaultError {
    /// The port has no such GID, or it is the default GID, which stays with the Ethernet address.
    #[error("gid-remove {index}: port {port} has no address at this GID index; {}", choice(.present))]
    Gid {
        /// The port's name.
        port: String,
        /// The requested GID index.
        index: usize,
        /// The indices that can be removed.
        present: Vec<usize>,
    },
    /// The port's core has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

fn choice(present: &[usize]) -> String {
    let present: Vec<_> = present.iter().map(ToString::to_string).collect();
    match present.is_empty() {
        true => "give the port one by FERROCE_IP".into(),
        false => format!("choose one of {}", present.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AsyncEvent, CoreConfig, CoreState, Engine, EventQueue, Progress, tests};
    use super::*;
    use crate::capture::{Direction, Reader, Tap};
    use crate::io::{Burst, Loopback, PacketBuf, PacketIo, pair};
    use std::sync::Arc;

    /// Starts an engine on a port. Returns the other end of the port, and the queue of the engine's events.
    fn start(progress: Progress, cores: u8) -> (Engine, Loopback, Arc<EventQueue>) {
        let (port, mut other) = pair(64, 2048);
        let config = CoreConfig { cores, ..tests::config(progress) };
        // SAFETY: these tests register no memory.
        let engine = unsafe { Engine::start(port, &config) }.unwrap();
        let events = Arc::new(EventQueue::new(|_| true).unwrap());
        engine.subscribe(events.clone());
        // The core announces its address first.
        engine.progress();
        other.receive(&mut Burst::new());
        (engine, other, events)
    }

    fn events(queue: &EventQueue) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| queue.take()).collect()
    }

    /// Sends a frame to the engine from `other`.
    fn send(engine: &Engine, other: &mut Loopback) {
        let mut frame = other.alloc().unwrap();
        frame.set_len(64);
        frame.fill(0);
        frame[..6].copy_from_slice(&engine.mac.0);
        let mut burst = Burst::new();
        burst.push(frame);
        other.transmit(&mut burst);
        engine.progress();
    }

    /// Makes the engine send a frame, and returns the number of frames that arrive at `other`.
    fn sent(engine: &Engine, other: &mut Loopback, peer: &str) -> usize {
        assert_eq!(engine.look_up(peer.parse().unwrap()), Ok(None), "an ARP request is sent");
        engine.progress();
        let mut burst = Burst::new();
        other.receive(&mut burst);
        burst.len()
    }

    #[test]
    fn no_frame_leaves_or_arrives_while_the_port_is_down() {
        let (engine, mut other, queue) = start(Progress::Inline, 1);
        let (tap, memory) = Tap::new(64).unwrap();
        engine.call(|state, _| state.capture(Some(Box::new(tap)))).unwrap();
        let mut captured = Reader::new(&memory).unwrap();
        assert!(engine.link_is_up());
        for _ in 0..2 {
            engine.inject(PortFault::PortDown).unwrap();
        }
        assert!(!engine.link_is_up());
        assert_eq!(events(&queue), [AsyncEvent::PortDown]);
        send(&engine, &mut other);
        assert_eq!(sent(&engine, &mut other, "10.0.0.2"), 0);
        let counts = |state: &mut CoreState| (state.counters.unplugged, state.endpoint.counters().rx_frames);
        assert_eq!(engine.call(move |state, _| counts(state)).unwrap(), (2, 0));
        assert_eq!(captured.peek().unwrap().map(|record| record.direction), None);
        engine.inject(PortFault::PortUp).unwrap();
        assert_eq!((events(&queue), engine.link_is_up()), (vec![AsyncEvent::PortUp], true));
        send(&engine, &mut other);
        assert_eq!(sent(&engine, &mut other, "10.0.0.3"), 1);
        assert_eq!(engine.call(move |state, _| counts(state)).unwrap(), (2, 1));
        let mut frame = Vec::new();
        let directions = [(); 2].map(|()| captured.take(&mut frame).unwrap().unwrap().direction);
        assert_eq!(directions, [Direction::In, Direction::Out]);
    }

    #[test]
    fn no_other_fault_changes_the_port_while_its_cores_apply_one() {
        let (engine, _other, _queue) = start(Progress::Inline, 1);
        let changes = engine.changes.clone();
        let (locked, seen) = std::sync::mpsc::channel();
        // Runs in the turns of the next injection, before its own command.
        let check = move |_: &mut CoreState, _| locked.send(changes.try_lock().is_err()).unwrap();
        assert!(engine.main.commands.send(Box::new(check)));
        engine.inject(PortFault::PortDown).unwrap();
        assert_eq!(seen.try_recv(), Ok(true));
    }

    #[test]
    fn a_removed_gid_is_reported_after_the_core_has_dropped_its_address() {
        let (engine, _other, queue) = start(Progress::Inline, 1);
        engine.inject(PortFault::GidRemove(1)).unwrap();
        assert_eq!(events(&queue), [AsyncEvent::GidChange]);
        assert_eq!(engine.gids().entries().map(|(index, _)| index).collect::<Vec<_>>(), [0]);
        let refused = engine.inject(PortFault::GidRemove(1)).unwrap_err().to_string();
        assert!(refused.ends_with("; give the port one by FERROCE_IP"), "{refused}");
    }

    #[test]
    fn a_fatal_fault_ends_all_cores_of_the_port() {
        for (progress, cores) in
            [(Progress::Inline, 1), (Progress::Adaptive, 2), (Progress::Dedicated { core: None }, 1)]
        {
            let (engine, _other, queue) = start(progress, cores);
            engine.inject(PortFault::DeviceFatal).unwrap();
            assert_eq!(events(&queue), [AsyncEvent::CoreFailed]);
            let stopped = engine.check().unwrap_err();
            assert!(stopped.reason.contains("injected fault"), "{stopped}");
            for fault in [PortFault::DeviceFatal, PortFault::PortDown, PortFault::GidRemove(1)] {
                assert_eq!(engine.inject(fault), Err(PortFaultError::Stopped(stopped.clone())));
            }
        }
    }
}
