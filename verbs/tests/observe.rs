//! Observers can read the reports of a process with open devices. The process removes its socket when it closes them.

use ferroce_verbs::observe::{AttachError, folder, read, read_all};
use ferroce_verbs::port::{Mac, OwnPort, pair};
use ferroce_verbs::{Device, DeviceConfig, Progress};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

/// One test, because the directory of sockets belongs to the process.
#[test]
fn open_devices_are_reported_and_closed_ones_leave_no_socket() {
    let runtime = tempfile::tempdir().unwrap();
    // SAFETY: no other thread reads the environment yet.
    unsafe { std::env::set_var("XDG_RUNTIME_DIR", runtime.path()) };
    let (pid, folder) = (std::process::id(), folder().unwrap());
    assert_eq!(folder, runtime.path().join("ferroce"));
    assert!(matches!(read(pid), Err(AttachError::NotFerroce(_))));

    let (left, right) = pair(64, 2048);
    let open = |port, name: &str, last| {
        let config = DeviceConfig::new().address(format!("10.0.0.{last}/24").parse().unwrap());
        let own = OwnPort { name: name.into(), mac: Mac([2, 0, 0, 0, 0, last]) };
        Device::open_on(port, own, &config.progress(Progress::Inline)).unwrap()
    };
    let (here, there) = (open(left, "here", 1), open(right, "there", 2));
    let socket = folder.join(format!("{pid}.sock"));
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&socket)), (0o700, 0o600));

    a_child_keeps_no_observer(&socket);

    let domain = here.allocate_pd().unwrap();
    let cq = here.create_cq(4).unwrap();
    let qp = domain.queue_pair(&cq, &cq).build().unwrap();
    let status = read(pid).unwrap();
    let ports: Vec<&str> = status.devices.iter().map(|device| device.port.as_str()).collect();
    assert_eq!((status.pid, ports), (pid, vec!["here", "there"]));
    let [observed] = status.devices[0].queue_pairs.as_slice() else { panic!("one queue pair") };
    assert_eq!(
        (observed.qpn, observed.waiting.as_str(), observed.peer.clone()),
        (qp.qpn().get(), "idle", None)
    );
    assert!(observed.waited["idle"] > 0);
    assert_eq!(observed.waited.values().sum::<u64>(), observed.waited["idle"]);

    // The socket of a process that was killed.
    let stale = folder.join("4194303.sock");
    drop(UnixListener::bind(&stale).unwrap());
    let is_seen = || read_all().iter().any(|report| report.as_ref().is_ok_and(|status| status.pid == pid));
    assert!(is_seen());
    assert!(!stale.exists() && socket.exists());
    assert!(matches!(read(4_194_305), Err(AttachError::NoProcess(_))));

    // A socket with the name of another process is refused.
    let foreign = UnixListener::bind(folder.join("1.sock")).unwrap();
    assert!(read(1).is_err());
    drop(foreign);

    // A process that accepts no connections: once its backlog is full, connecting to it times out.
    let stopped = UnixListener::bind(folder.join("2.sock")).unwrap();
    // SAFETY: passes an open descriptor and an integer.
    assert_eq!(unsafe { libc::listen(stopped.as_raw_fd(), 0) }, 0);
    let _full = UnixStream::connect(folder.join("2.sock")).unwrap();
    assert!(matches!(read(2), Err(AttachError::Silent(2))));
    drop(stopped);

    drop((qp, cq, domain, here, there));
    // The thread that answers an observer keeps the devices open meanwhile.
    let mut looks = std::iter::repeat_with(std::thread::yield_now).take(1_000_000);
    assert!(looks.any(|()| !socket.exists()));
    assert!(matches!(read(pid), Err(AttachError::NotFerroce(_))));
    assert!(!is_seen());
}

fn sockets() -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_socket = |to: std::path::PathBuf| to.to_string_lossy().starts_with("socket:");
    descriptors.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(is_socket)).count()
}

/// A child that kept its copy of the connection would hide the end of the process from the observer.
fn a_child_keeps_no_observer(socket: &std::path::Path) {
    // Includes the listener.
    let before = sockets();
    let observer = UnixStream::connect(socket).unwrap();
    // The observer sends nothing, so the process waits for its request.
    while sockets() < before + 2 {
        std::thread::yield_now();
    }
    // SAFETY: the child only reads a directory, and exits with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The child has neither the listener nor the process's end of the connection, but the test's own end.
        // SAFETY: ends only this process.
        unsafe { libc::_exit(sockets() as libc::c_int) };
    }
    let mut status = -1;
    // SAFETY: waits for a child of this process, and there is room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(
        libc::WEXITSTATUS(status),
        before as libc::c_int,
        "the listener went, the observer's own end came"
    );
    drop(observer);
}
