//! Tests which resources of its parent's device a forked process inherits.

mod common;

use common::{core_config, eal, ip, open, own_network};
use ferroce_datapath::dpdk::{Eal, EalConfig, EalError};
use ferroce_datapath::engine::{Engine, EventQueue, Progress};
use std::io::{PipeWriter, Read, Write};
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn start(interface: &str, progress: Progress) -> Engine {
    let port = open(interface);
    let config = core_config(&port, "10.9.0.1/24", progress);
    // SAFETY: these tests register no memory.
    let engine = unsafe { Engine::start(port, &config).unwrap() };
    engine.subscribe(Arc::new(EventQueue::new(|_| true).unwrap()));
    engine
}

/// A forked process. It runs `body`, reports whether `body` panicked, and waits for a message before it ends.
struct Child {
    id: libc::pid_t,
    end: PipeWriter,
}

impl Child {
    fn new(body: impl FnOnce()) -> Self {
        let (mut waits, end) = std::io::pipe().unwrap();
        let (mut from_child, mut to_parent) = std::io::pipe().unwrap();
        // SAFETY: the child runs `body`, which is written for a forked child, and ends with _exit.
        let id = unsafe { libc::fork() };
        assert!(id >= 0);
        if id == 0 {
            let worked = catch_unwind(AssertUnwindSafe(body)).is_ok();
            drop(end);
            to_parent.write_all(&[u8::from(worked)]).unwrap();
            let _ = waits.read(&mut [0]);
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) };
        }
        drop(to_parent);
        let mut worked = [0];
        from_child.read_exact(&mut worked).unwrap();
        let child = Self { id, end };
        assert_eq!(worked, [1], "the child panicked");
        child
    }

    fn open_files(&self) -> Vec<String> {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.id)).unwrap().flatten();
        open.filter_map(|fd| Some(std::fs::read_link(fd.path()).ok()?.display().to_string())).collect()
    }

    fn ends(mut self) {
        // Closing the pipe would not end the child, because later children have it too.
        self.end.write_all(&[0]).unwrap();
        let mut status = 0;
        // SAFETY: waits for a child of this process, and there is room for its status.
        assert_eq!(unsafe { libc::waitpid(self.id, &mut status, 0) }, self.id);
        assert_eq!(status, 0);
    }
}

fn packet_sockets() -> usize {
    std::fs::read_to_string("/proc/thread-self/net/packet").unwrap().lines().count() - 1
}

#[test]
fn a_child_inherits_no_device() {
    own_network();
    ip("link set lo up");
    ip("link add forks0 mtu 4200 type veth peer name forks1");
    ip("addr add 10.9.0.1/24 dev forks0");
    ip("link set forks0 up");
    ip("link set forks1 up");
    for mode in [Progress::Inline, Progress::Dedicated { core: None }, Progress::Adaptive] {
        let engine = start("forks0", mode);
        assert_eq!(packet_sockets(), 1);
        let ignores = Child::new(|| ());
        let mut inherited = Some(engine);
        let closes = Child::new(|| {
            let engine = inherited.take().unwrap();
            assert!(engine.call(|_, _| ()).unwrap_err().reason.contains("forked"));
            engine.check().unwrap_err();
            engine.resolve("10.9.0.2".parse().unwrap()).unwrap_err();
            assert!(!engine.progress());
            engine.posted(0);
            engine.hand_over();
            drop(engine);
            let own = Eal::start(&EalConfig::default());
            assert!(matches!(own, Err(EalError::Forked)), "{own:?}");
        });
        let engine = inherited.take().unwrap();
        engine.call(|_, _| ()).expect("the parent's core goes on");
        drop(engine);
        // Both children are running, so sockets that they had inherited would be listed.
        assert_eq!(packet_sockets(), 0, "{mode:?}");
        UdpSocket::bind("10.9.0.1:4791").expect("the kernel has RoCEv2's port again");
        for child in [ignores, closes] {
            let open = child.open_files();
            assert!(!open.iter().any(|file| file.contains("bpf")), "{open:?}");
            child.ends();
        }
    }
    eal();
}
