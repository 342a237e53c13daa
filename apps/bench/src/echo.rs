//! The baseline of latency: the round trip of a raw frame on the same kind of port.

use crate::host::{Link, Running, Side};
use datapath::dpdk::{Eal, EalConfig, Port, PortConfig};
use datapath::io::{Burst, PacketBuf, PacketIo};
use datapath::port_spec::PortSpec;
use std::process::Stdio;
use std::time::{Duration, Instant};

const WARM_UP: usize = 2000;
const ROUNDS: usize = 20_000;

/// An EtherType for local experiments (IEEE 802), which no kernel answers.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// Returns half the round trip of a raw frame between two processes: the median, µs.
///
/// # Errors
/// Returns the output of a client that failed.
pub fn half_round_trip(link: &Link, length: usize) -> Result<f64, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let side = |side| {
        let mut command = link.command(side, &own, true);
        command.args(["echo", "--length", &length.to_string(), "--side", side.name(), "--port"]);
        command.arg(&link.port(side)[1]);
        command
    };
    let mut server = side(Side::Server);
    server.stdout(Stdio::null());
    // A server that was killed leaves its socket.
    let _ = std::fs::remove_file(link.socket());
    let server = Running::start(server)?;
    link.wait_for_server(&link.socket());
    let output = side(Side::Client).output().map_err(|error| error.to_string())?;
    drop(server);
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(|_| format!("echo: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Runs one side in this process. The client prints its result; the server runs until it is killed.
///
/// # Errors
/// Returns an error if the port cannot be opened, or no frame returns.
pub fn run(spec: &PortSpec, length: usize, is_client: bool) -> Result<(), String> {
    let eal = Eal::start(&EalConfig::default()).map_err(|error| error.to_string())?;
    eal.register_thread();
    let config = PortConfig { promiscuous: true, ..PortConfig::default() };
    let mut port = Port::open(eal, spec, &config).map_err(|error| error.to_string())?;
    if !is_client {
        loop {
            echo(&mut port);
        }
    }
    println!("{:.4}", median_half(&mut port, length)?);
    Ok(())
}

/// Returns half the round trip to a peer that runs [`echo`]: the median, µs.
///
/// # Errors
/// Returns an error if no frame returns.
pub fn median_half(port: &mut Port, length: usize) -> Result<f64, String> {
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..WARM_UP + ROUNDS {
        let start = Instant::now();
        exchange(port, length)?;
        if round >= WARM_UP {
            times.push(start.elapsed());
        }
    }
    times.sort();
    Ok(times[ROUNDS / 2].as_secs_f64() * 1e6 / 2.0)
}

fn is_ours(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&ETHERTYPE)
}

/// Sends received frames back.
pub fn echo(port: &mut Port) {
    let mut burst = Burst::new();
    port.receive(&mut burst);
    burst.retain(|frame| is_ours(frame));
    while !burst.is_empty() {
        port.transmit(&mut burst);
    }
}

fn exchange(port: &mut Port, length: usize) -> Result<(), String> {
    let mut burst = Burst::new();
    let mut frame = port.alloc().ok_or("the pool has no packet buffer left")?;
    frame.set_len(length);
    frame.fill(0);
    frame[..6].fill(0xff);
    frame[6] = 2;
    frame[12..14].copy_from_slice(&ETHERTYPE);
    burst.push(frame);
    // A link that is still down accepts no frame, or loses it.
    let give_up = Instant::now() + Duration::from_secs(5);
    while !burst.is_empty() {
        port.transmit(&mut burst);
        if Instant::now() > give_up {
            return Err("the port takes no frames".into());
        }
    }
    loop {
        port.receive(&mut burst);
        if burst.iter().any(|frame| is_ours(frame)) {
            return Ok(());
        }
        burst.clear();
        if Instant::now() > give_up {
            return Err("no echo came back within 5 s".into());
        }
    }
}
