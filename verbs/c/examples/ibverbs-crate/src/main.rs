//! A message and its answer, with the `ibverbs` crate from the registry.
//!
//! ```sh
//! cargo build --manifest-path verbs/c/examples/ibverbs-crate/Cargo.toml --target-dir target/crates
//! ferroce run --namespaces 2 -- target/crates/debug/ibverbs-crate {peer}
//! ```

use ibverbs::{CompletionQueue, MemoryRegion, QueuePair, ibv_qp_type::IBV_QPT_RC, ibv_wc};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

const PORT: u16 = 18600;
const ROUNDS: u64 = 1000;
const SENT: u64 = 1;
const RECEIVED: u64 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1);
    let devices = ibverbs::devices()?;
    let context = devices.iter().next().ok_or("no device")?.open()?;
    // An IPv4 address as a GID: ::ffff:a.b.c.d
    let is_v4 = |entry: &&ibverbs::GidEntry| {
        entry.gid.subnet_prefix() == 0 && entry.gid.interface_id() >> 32 == 0xffff
    };
    let gid = context.gid_table().iter().find(is_v4).ok_or("no IPv4 address")?.gid_index;
    let queue = context.create_cq(16, 0)?;
    let domain = context.alloc_pd()?;
    let prepared = domain.create_qp(&queue, &queue, IBV_QPT_RC).set_gid_index(gid).build()?;
    let mut words = domain.allocate::<u64>(2)?;

    let mut stream = match &server {
        Some(server) => TcpStream::connect((server.as_str(), PORT))?,
        None => TcpListener::bind(("0.0.0.0", PORT))?.accept()?.0,
    };
    writeln!(stream, "{}", serde_json::to_string(&prepared.endpoint())?)?;
    let mut line = String::new();
    let mut lines = BufReader::new(stream.try_clone()?);
    lines.read_line(&mut line)?;
    let mut pair = prepared.handshake(serde_json::from_str(&line)?)?;
    // SAFETY: the first word is not accessed until the receive has completed.
    unsafe { pair.post_receive(&mut words, ..1, RECEIVED)? };
    // Both have posted a receive before either sends.
    writeln!(stream, "ready")?;
    lines.read_line(&mut line)?;

    if server.is_some() {
        send(&mut pair, &mut words, 0)?;
    }
    exchange(&queue, &mut pair, &mut words, server.is_none())?;
    println!("{ROUNDS} messages and their answers");
    Ok(())
}

fn send(pair: &mut QueuePair<'_>, words: &mut MemoryRegion<u64>, word: u64) -> std::io::Result<()> {
    words[1] = word;
    // SAFETY: the word changes only after the peer has answered the message that contained it.
    unsafe { pair.post_send(words, 1.., SENT) }
}

/// Exchanges the messages. The client's words are even, and each answer is one more.
fn exchange(
    queue: &CompletionQueue<'_>,
    pair: &mut QueuePair<'_>,
    words: &mut MemoryRegion<u64>,
    answers: bool,
) -> Result<(), Box<dyn Error>> {
    let (mut sent, mut received) = (0, 0);
    let mut completions = [ibv_wc::default(); 4];
    while sent < ROUNDS || received < ROUNDS {
        let came: Vec<_> = queue.poll(&mut completions)?.iter().map(|wc| (wc.wr_id(), wc.error())).collect();
        for (id, error) in came {
            if let Some((status, _)) = error {
                return Err(format!("request {id} failed: {status:?}").into());
            }
            if id == SENT {
                sent += 1;
                continue;
            }
            assert_eq!(words[0], 2 * received + u64::from(!answers));
            received += 1;
            // SAFETY: the word has been read.
            unsafe { pair.post_receive(words, ..1, RECEIVED)? };
            if answers {
                send(pair, words, 2 * received - 1)?;
            } else if received < ROUNDS {
                send(pair, words, 2 * received)?;
            }
        }
    }
    Ok(())
}
