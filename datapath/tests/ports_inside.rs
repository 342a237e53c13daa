//! Tests of ports that need no network interface and no privilege: rings, null, capture files, memif.

mod common;

use common::{SocketPeer, carry, eal, frame, open, open_with, refusal, small};
use ferroce_datapath::dpdk::{Port, PortConfig, check_port};
use ferroce_datapath::io::{BURST, Burst, PacketBuf, PacketIo};
use ferroce_datapath::port_spec::PortSpec;
use roce::wire::Mtu;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

fn directory(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("ferroce-{test}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Sends a frame of the largest size on a port that receives what it sends, and checks that the frame comes back unchanged.
fn carry_back(port: &mut Port) {
    let sent = frame(port, port.info().max_frame, 7);
    let bytes = sent.to_vec();
    let mut burst = Burst::new();
    burst.push(sent);
    port.transmit(&mut burst);
    assert!(burst.is_empty());
    port.receive(&mut burst);
    assert_eq!(burst.iter().map(|frame| frame.to_vec()).collect::<Vec<_>>(), [bytes]);
}

#[test]
fn starting_dpdk_keeps_the_callers_affinity() {
    let before = ferroce_datapath::machine::allowed_cores();
    eal();
    assert_eq!(ferroce_datapath::machine::allowed_cores(), before);
}

#[test]
fn a_ring_returns_its_frames() {
    let mut port = open("ring:loop");
    assert_eq!((port.info().driver.as_str(), port.info().mtu), ("net_ring", Mtu::M4096));
    carry_back(&mut port);
    let mut burst = Burst::new();
    for seed in 0..BURST {
        burst.push(frame(&mut port, 60 + seed, seed as u8));
    }
    port.transmit(&mut burst);
    assert!(burst.is_empty());
    port.receive(&mut burst);
    assert_eq!(burst.iter().map(|f| f.len()).collect::<Vec<_>>(), (60..60 + BURST).collect::<Vec<_>>());
    burst.clear();
    assert_eq!(port.buffers_in_use(), 0, "every buffer is back in the pool");
}

/// With few frames in flight, a port uses few buffers, whatever the size of its pool, so that they stay in the CPU's caches.
#[test]
fn the_buffer_freed_last_is_allocated_first() {
    let mut port = open("ring:last");
    let (mut burst, mut seen) = (Burst::new(), BTreeSet::new());
    for _ in 0..100 {
        while !burst.is_full() {
            burst.push(frame(&mut port, 60, 0));
        }
        port.transmit(&mut burst);
        port.receive(&mut burst);
        seen.extend(burst.iter().map(|frame| frame.as_ptr()));
        burst.clear();
    }
    assert!(seen.len() <= 2 * BURST, "{} buffers for {BURST} at a time", seen.len());
}

#[test]
fn the_ends_of_a_pair_exchange_frames() {
    let (mut a, mut b) = (open("ring:pair,a"), open("ring:pair,b"));
    carry(&mut a, &mut b, &[60, 1518, 4196]);
    carry(&mut b, &mut a, &[4196]);
    assert!(refusal("ring:pair,a", &small()).contains("ring:pair,a"));
}

#[test]
fn a_full_ring_leaves_the_rest_in_order() {
    let slots = 2 * BURST as u16;
    let mut port = open_with("ring:full", &PortConfig { ring_slots: slots, ..small() });
    let mut left = Burst::new();
    for round in 0..3_u8 {
        while !left.is_full() {
            let seed = round * BURST as u8 + left.len() as u8;
            left.push(frame(&mut port, 60, seed));
        }
        port.transmit(&mut left);
    }
    // The ring has room for one frame less than slots, so the last frame of the second burst is the first one left.
    assert_eq!(left.len(), BURST);
    assert_eq!(left[0][59], 59_u8.wrapping_mul(7).wrapping_add(2 * BURST as u8 - 1));
}

#[test]
fn the_null_port_sends_every_frame_and_receives_none() {
    let mut port = open("null");
    let mut burst = Burst::new();
    burst.push(frame(&mut port, 60, 0));
    port.transmit(&mut burst);
    assert!(burst.is_empty());
    port.receive(&mut burst);
    assert!(burst.is_empty());
}

#[test]
fn lengths_that_no_driver_sends_are_dropped_and_counted() {
    let mut port = open("ring:lengths");
    let most = port.info().max_frame;
    let mut burst = Burst::new();
    for len in [60, most + 1, 0, 61] {
        let mut frame = port.alloc().unwrap();
        frame.set_len(len);
        burst.push(frame);
    }
    port.transmit(&mut burst);
    port.receive(&mut burst);
    assert_eq!(burst.iter().map(|f| f.len()).collect::<Vec<_>>(), [60, 61]);
    assert_eq!(port.counters().bad_length, 2);
}

#[test]
fn an_empty_pool_allocates_nothing_and_recovers() {
    let mut port = open_with("ring:dry", &PortConfig { buffers: 64, ..small() });
    let mut held: Vec<_> = std::iter::from_fn(|| port.alloc()).collect();
    assert_eq!(held.len(), 64);
    held.pop();
    assert!(port.alloc().is_some());
}

#[test]
fn buffers_outlive_their_port() {
    let mut port = open("ring:outlive");
    let kept = frame(&mut port, 100, 3);
    drop(port);
    assert_eq!(kept[99], 99_u8.wrapping_mul(7).wrapping_add(3));
}

#[test]
fn a_capture_file_is_written_and_read() {
    let directory = directory("pcap");
    let file = directory.join("frames.pcap");
    let file = file.to_str().unwrap();
    let mut port = open(&format!("pcap:,{file}"));
    let mut burst = Burst::new();
    for len in [60, 1500, 4196] {
        burst.push(frame(&mut port, len, len as u8));
    }
    let sent: Vec<Vec<u8>> = burst.iter().map(|f| f.to_vec()).collect();
    port.transmit(&mut burst);
    drop(port);

    let mut port = open(&format!("pcap:{file},"));
    port.receive(&mut burst);
    let came: Vec<Vec<u8>> = burst.iter().map(|f| f.to_vec()).collect();
    assert_eq!(came, sent);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn memif_carries_jumbo_frames_both_ways_and_after_a_new_start() {
    let directory = directory("memif");
    let spec = format!("memif:{}", directory.join("x.sock").display());
    for _ in 0..2 {
        // In the second round, the socket of the first round's server has already been removed.
        let (mut server, mut client) = (open(&spec), open(&spec));
        common::wait_for_link(&server, &client);
        assert_eq!(server.info().mtu, Mtu::M4096);
        carry(&mut client, &mut server, &[60, 1518, 4196, 4518]);
        carry(&mut server, &mut client, &[4196, 60]);
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn memif_carries_without_copying_in_the_client() {
    let directory = directory("memif-zc");
    let spec = format!("memif:{}", directory.join("x.sock").display());
    let (mut server, mut client) = (open(&spec), open(&format!("{spec},client,zero-copy")));
    common::wait_for_link(&server, &client);
    carry(&mut client, &mut server, &[60, 4196]);
    carry(&mut server, &mut client, &[4196, 60]);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_memif_server_outlives_peers_that_disconnect_or_send_garbage() {
    let directory = directory("memif-leave");
    let socket = directory.join("x.sock");
    let spec = format!("memif:{}", socket.display());
    let mut server = open(&spec);
    let (stop, came) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut burst = Burst::new();
            while !stop.load(Relaxed) {
                server.receive(&mut burst);
                came.fetch_add(burst.len(), Relaxed);
                burst.clear();
                burst.extend(server.alloc());
                burst.iter_mut().for_each(|frame| frame.set_len(4196));
                server.transmit(&mut burst);
                burst.clear();
            }
        });
        for round in 0..10 {
            for bytes in [&[][..], &[0; 128], &[8; 128], &[1; 5]] {
                let peer = SocketPeer::new();
                peer.connect(&socket);
                if !bytes.is_empty() {
                    peer.send(bytes);
                }
            }
            let mut client = open(&format!("{spec},client"));
            common::wait_for_link(&client, &client);
            let mut out = Burst::new();
            while came.load(Relaxed) <= round {
                if out.is_empty() {
                    out.push(frame(&mut client, 4196, 0));
                }
                client.transmit(&mut out);
            }
            came.store(round + 1, Relaxed);
        }
        stop.store(true, Relaxed);
    });
    drop(server);
    assert!(!socket.exists(), "the socket goes with its port");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn an_unusable_memif_socket_is_refused_with_the_reason() {
    let directory = directory("memif-bad");
    let path = |name: &str| directory.join(name).display().to_string();
    assert!(refusal(&format!("memif:{}", path("no/x.sock")), &small()).contains("there is no directory"));
    assert!(
        refusal(&format!("memif:{},client", path("x.sock")), &small()).contains("start the server first")
    );
    std::fs::write(path("file"), "").unwrap();
    assert!(refusal(&format!("memif:{}", path("file")), &small()).contains("not a socket"));
    std::fs::remove_dir_all(directory).unwrap();
}

/// Runs as root, because it changes the owner of a file.
#[test]
fn a_port_connects_to_another_user_only_as_client() {
    let directory = directory("memif-strangers");
    let path = directory.join("x.sock");
    let _stranger = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
    for kind in ["memif", "virtio"] {
        let name = format!("{kind}:{}", path.display());
        let said = refusal(&name, &small());
        assert!(
            said.contains("it belongs to user 65534, and this process to user 0; add `,client`"),
            "{said}"
        );
        let spec: PortSpec = format!("{name},client").parse().unwrap();
        check_port(&spec, &small()).expect("as a client it connects");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn an_unusable_setting_is_refused_with_a_remedy() {
    let mtu = |mtu| PortConfig { mtu: Some(mtu), ..small() };
    assert!(refusal("ring:m", &mtu(300)).contains("340 to 16000"));
    assert!(refusal("no-such-if", &small()).contains("there are: "));
    assert!(refusal("pcap:/no/such.pcap,", &small()).contains("/no/such.pcap"));
    assert!(refusal("eal:net_nonsense0", &small()).contains("making the device"));
    let many = PortConfig { buffers: 1 << 24, ..small() };
    assert!(refusal("null", &many).contains("more memory"));
}

#[test]
fn registered_and_unregistered_threads_move_buffers() {
    let mut port = open("ring:threads");
    for register in [false, true] {
        let work = move || {
            assert!(!register || eal().register_thread());
            carry_back(&mut port);
            port
        };
        port = std::thread::spawn(work).join().unwrap();
    }
    assert_eq!(port.buffers_in_use(), 0);
}
