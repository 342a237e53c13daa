//! Faults on demand: an observer injects them into a running process, and they take effect as the events that they stand for.

mod common;

use common::*;
use ferroce_verbs::errors::{PollError, PostError};
use ferroce_verbs::event::AsyncEvent;
use ferroce_verbs::fault::{Fault, PortFault, Verb};
use ferroce_verbs::observe::{AttachError, folder, inject};
use ferroce_verbs::{Access, Data, Error, MemoryRegion, Progress, RecvRequest, SendRequest};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

fn fault(text: &str) -> Result<usize, String> {
    inject(std::process::id(), &text.parse::<Fault>().unwrap()).map_err(|error| error.to_string())
}

/// One test, because the socket and the calls that fail belong to the process.
#[test]
fn faults_of_an_observer_take_effect() {
    let runtime = tempfile::tempdir().unwrap();
    // SAFETY: no other thread reads the environment yet.
    unsafe { std::env::set_var("XDG_RUNTIME_DIR", runtime.path()) };
    assert!(matches!(
        inject(std::process::id(), &Fault::Port(PortFault::PortUp)),
        Err(AttachError::NotFerroce(_))
    ));
    let (mut a, mut b) = connected(Progress::Inline, 4096);
    another_user_injects_nothing(runtime.path());
    a_port_that_is_down_delays_data(&mut a, &mut b);
    calls_fail_once(&mut a, &b);
    // Both devices have the GID, and the default GID stays.
    assert_eq!(fault("gid-remove 1"), Ok(2));
    assert_eq!(a.device.query().unwrap().gids.entries().map(|(index, _)| index).collect::<Vec<_>>(), [0]);
    let refused = fault("gid-remove 1").unwrap_err();
    assert!(refused.contains("gid-remove 1: port ") && refused.contains("no address"), "{refused}");
    a_fatal_fault_flushes_requests(&mut a);
}

/// Permissions of the folder and the socket keep other users away. Without them, the process still refuses.
fn another_user_injects_nothing(runtime: &Path) {
    let folder = folder().unwrap();
    let socket = folder.join(format!("{}.sock", std::process::id()));
    let permit = |mode| {
        for path in [runtime, &folder, &socket] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    permit(0o777);
    let path = socket.clone();
    let other = std::thread::spawn(move || {
        // SAFETY: plain numbers; changes the credentials of this thread alone, which ends afterwards.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(changed, 0, "this test runs as root");
        let mut stream = UnixStream::connect(path).unwrap();
        // Fails if the process has closed the connection already.
        let _ = stream.write_all(b"fault fail alloc_pd EIO\n");
        let mut answer = Vec::new();
        // The connection is reset if the process has not read the request.
        let _ = stream.read_to_end(&mut answer);
        answer
    });
    assert_eq!(other.join().unwrap(), b"");
    permit(0o700);
    // Had the request been accepted, these would be 64 calls that are refused.
    for _ in 0..ferroce_verbs::fault::MAX_FAILING {
        assert_eq!(fault("fail alloc_pd EIO after 9"), Ok(0));
    }
    let refused = fault("fail alloc_pd EIO").unwrap_err();
    assert!(refused.contains("64 calls that fail are armed already"), "{refused}");
    for _ in 0..9 {
        assert_eq!(ferroce_verbs::fault::check(Verb::AllocPd), Ok(()));
    }
    for _ in 0..ferroce_verbs::fault::MAX_FAILING {
        assert!(ferroce_verbs::fault::check(Verb::AllocPd).is_err());
    }
}

fn a_port_that_is_down_delays_data(a: &mut Side, b: &mut Side) {
    let events = a.device.events().unwrap();
    assert_eq!(fault("port-down"), Ok(2));
    assert!(!a.device.link_is_up() && !b.device.link_is_up());
    assert_eq!(events.take(), Some(AsyncEvent::PortDown));
    let write = SendRequest::write(1, Data::inline(b"late"), b.region.remote().at(0));
    let sent = |a: &Side| a.device.counters().unwrap().tx_frames;
    let before = sent(a);
    a.qp.post_send(write).unwrap();
    // The frame was sent and lost: the turn of each of these calls would have delivered it.
    a.device.progress();
    b.device.progress();
    assert_eq!(contents(&b.region, 0, 4), [0; 4]);
    assert!(a.device.core_counters().unwrap().unplugged > 0);
    assert_eq!(sent(a), before);
    assert_eq!(fault("port-up"), Ok(2));
    assert_eq!((events.take(), events.take()), (Some(AsyncEvent::PortUp), None));
    success(&mut a.send_cq, &b.device);
    assert_eq!(contents(&b.region, 0, 4), b"late");
}

fn calls_fail_once(a: &mut Side, b: &Side) {
    let injected =
        |error: Error| matches!(error, Error::Injected { errno, .. } if errno.number() == libc::ENOBUFS);
    assert_eq!(fault("fail reg_mr ENOBUFS after 1"), Ok(0));
    let register = |a: &Side| MemoryRegion::alloc(&a.pd, 64, Access::ALL);
    assert!(register(a).is_ok());
    assert!(register(a).is_err_and(injected));
    assert!(register(a).is_ok());
    type Call<'a> = &'a dyn Fn(&Side) -> Result<(), Error>;
    let calls: [(&str, Call); 4] = [
        ("alloc_pd", &|a| a.device.allocate_pd().map(drop)),
        ("create_cq", &|a| a.device.create_cq(1).map(drop)),
        ("create_comp_channel", &|a| a.device.create_channel().map(drop)),
        ("create_qp", &|a| a.pd.queue_pair(&a.send_cq, &a.recv_cq).build().map(drop)),
    ];
    for (verb, call) in calls {
        fault(&format!("fail {verb} ENOBUFS")).unwrap();
        assert!(call(a).is_err_and(injected), "{verb}");
        call(a).unwrap_or_else(|error| panic!("{verb}: {error}"));
    }
    fault("fail post_send EIO").unwrap();
    let write = || SendRequest::write(2, Data::inline(b"once"), b.region.remote().at(8));
    assert_eq!(a.qp.post_send(write()), Err(PostError::Injected { errno: libc::EIO }));
    a.qp.post_send(write()).unwrap();
    fault("fail poll_cq EIO").unwrap();
    assert!(matches!(a.send_cq.poll_one(), Err(PollError::Injected(_))));
    assert_eq!(success(&mut a.send_cq, &b.device).id, 2);
    assert_eq!(contents(&b.region, 8, 4), b"once");
    assert!(a.send_cq.poll_one().unwrap().is_none(), "the refused request has no completion");
    fault("fail post_recv EIO").unwrap();
    let receive = || RecvRequest::new(3, a.region.sge(0, 8).unwrap());
    assert!(a.qp.post_recv(receive()).is_err());
    a.qp.post_recv(receive()).unwrap();
}

fn a_fatal_fault_flushes_requests(a: &mut Side) {
    let events = a.device.events().unwrap();
    assert_eq!(fault("device-fatal"), Ok(2));
    assert_eq!(next(&mut a.recv_cq, &a.device.clone()).status, ferroce_verbs::CompletionStatus::Flushed);
    let ended = a.recv_cq.poll_one().unwrap_err().to_string();
    assert!(ended.contains("injected fault; open the device again"), "{ended}");
    assert_eq!(events.take(), Some(AsyncEvent::CoreFailed));
    assert!(a.device.create_cq(1).is_err());
    let refused = fault("port-down").unwrap_err();
    assert!(refused.contains("has stopped"), "{refused}");
}
