//! Tests of both ends of a vhost-user socket. A separate program, because memif's tests keep DPDK's interrupt thread busy.

mod common;

use common::{carry, open, refusal, small};
use roce::wire::Mtu;

#[test]
fn vhost_user_carries_jumbo_frames_both_ways() {
    let directory = std::env::temp_dir().join(format!("ferroce-virtio-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let spec = format!("virtio:{}", directory.join("x.sock").display());
    assert!(refusal(&format!("{spec},client"), &small()).contains("start the server first"));
    // A server process that has ended leaves its socket file behind.
    drop(std::os::unix::net::UnixListener::bind(directory.join("x.sock")));
    let (mut server, mut client) = (open(&spec), open(&spec));
    assert_eq!([&server, &client].map(|port| port.info().driver.as_str()), ["net_vhost", "net_virtio_user"]);
    assert!(refusal(&format!("{spec},server"), &small()).contains("another server listens"));
    common::wait_for_link(&server, &client);
    assert_eq!((server.info().mtu, client.info().mtu), (Mtu::M4096, Mtu::M4096));
    carry(&mut client, &mut server, &[60, 1518, 4196, 4518]);
    carry(&mut server, &mut client, &[4196, 60]);
    std::fs::remove_dir_all(directory).unwrap();
}
