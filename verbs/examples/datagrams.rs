//! Unreliable datagrams: a queue pair sends to one to which it has no connection, and the receiver learns who sent the datagram.
//!
//! ```sh
//! cargo run --release -p ferroce-verbs --example datagrams
//! ```

mod cable;

use ferroce_verbs::service::Request;
use ferroce_verbs::wire::DEFAULT_QUEUE_KEY;
use ferroce_verbs::{Access, AddressOptions, MemoryRegion, RecvRequest};
use std::error::Error;

/// Bytes of the header (GRH) before the data of each received datagram.
const HEADER: usize = 40;
const QUESTION: &[u8] = b"who is there?";

fn main() -> Result<(), Box<dyn Error>> {
    let [here, there] = cable::devices()?;
    let domain = there.allocate_pd()?;
    let mut received = there.create_cq(16)?;
    let inbox = MemoryRegion::alloc(&domain, 4096, Access::LOCAL_WRITE)?;
    let mut receiver = domain.queue_pair(&received, &received).datagrams().build()?;
    receiver.post_recv(RecvRequest::new(1, inbox.sge(0, 4096)?))?;
    receiver.open(None)?;

    let domain = here.allocate_pd()?;
    let mut sent = here.create_cq(16)?;
    let letter = MemoryRegion::alloc(&domain, 4096, Access::LOCAL_READ)?;
    let mut sender = domain.queue_pair(&sent, &sent).datagrams().build()?;
    sender.open(None)?;
    let address = domain.address(receiver.endpoint().ip, &AddressOptions::default())?;

    letter.write(0, QUESTION)?;
    let to = address.to(receiver.qpn(), DEFAULT_QUEUE_KEY);
    sender.post_send(Request::send_to(2, letter.sge(0, QUESTION.len() as u32)?, to))?;
    sent.wait()?.ok()?;
    let completion = received.wait()?.ok()?;
    let mut text = [0; QUESTION.len()];
    inbox.read(HEADER, &mut text)?;
    assert_eq!((&text[..], completion.source), (QUESTION, Some(sender.qpn())));
    println!("queue pair {} asks: {}", sender.qpn(), String::from_utf8_lossy(&text));
    Ok(())
}
