//! A server whose 1000 clients send to one shared receive queue, so that its memory does not grow with their number.
//!
//! ```sh
//! cargo run --release -p ferroce-verbs --example shared_receives
//! ```

mod cable;

use ferroce_verbs::{
    Access, CompletionQueue, Data, MemoryRegion, ProtectionDomain, Qpn, QueuePair, RecvRequest, SendRequest,
    SharedReceiveQueue,
};
use std::collections::HashMap;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CLIENTS: u32 = 1000;
/// Receives shared by all clients. A client whose message finds none retries.
const RECEIVES: u32 = 64;
/// Bytes of a message, which is one number.
const BYTES: u32 = 8;

struct Server {
    shared: SharedReceiveQueue,
    inbox: MemoryRegion,
    received: CompletionQueue,
    sent: CompletionQueue,
    clients: HashMap<Qpn, QueuePair>,
}

impl Server {
    /// Answers one message of each client with twice its number.
    fn serve(mut self) -> Outcome<()> {
        for _ in 0..CLIENTS {
            let message = self.received.wait()?.ok()?;
            let mut number = [0; BYTES as usize];
            self.inbox.read(message.id as usize, &mut number)?;
            // The buffer is free for the next message of any client.
            self.shared.post_recv(receive(&self.inbox, message.id as u32)?)?;
            // The completion has the number of the queue pair, and so of the client.
            let client = self.clients.get_mut(&message.qpn).ok_or("a message of no client")?;
            let answer = (2 * u64::from_ne_bytes(number)).to_ne_bytes();
            client.post_send(SendRequest::send(0, Data::inline(&answer)))?;
            self.sent.wait()?.ok()?;
        }
        Ok(())
    }
}

/// Returns a receive of one number at `offset`, which is also its id.
fn receive(memory: &MemoryRegion, offset: u32) -> Outcome<RecvRequest> {
    Ok(RecvRequest::new(offset.into(), memory.sge(offset as usize, BYTES)?))
}

fn memory(domain: &ProtectionDomain, numbers: u32) -> Outcome<MemoryRegion> {
    Ok(MemoryRegion::alloc(domain, (numbers * BYTES) as usize, Access::LOCAL_WRITE)?)
}

fn main() -> Outcome<()> {
    let [left, right] = cable::devices()?;
    let domain = left.allocate_pd()?;
    let (received, sent) = (left.create_cq(RECEIVES)?, left.create_cq(16)?);
    let (mut shared, inbox) = (domain.shared_receive_queue(RECEIVES, 1)?, memory(&domain, RECEIVES)?);
    for place in 0..RECEIVES {
        shared.post_recv(receive(&inbox, place * BYTES)?)?;
    }

    let here = right.allocate_pd()?;
    let (mut done, answers) = (right.create_cq(2 * CLIENTS)?, memory(&here, CLIENTS)?);
    let (mut queue_pairs, mut clients) = (Vec::new(), HashMap::new());
    for number in 0..CLIENTS {
        let mut server = domain.queue_pair(&sent, &received).receive_from(&shared).build()?;
        let mut client = here.queue_pair(&done, &done).build()?;
        cable::connect(&mut server, &mut client)?;
        client.post_recv(receive(&answers, number * BYTES)?)?;
        clients.insert(server.qpn(), server);
        queue_pairs.push(client);
    }

    let server = Server { shared, inbox, received, sent, clients };
    let server = std::thread::spawn(|| server.serve());
    for (number, client) in (0_u64..).zip(&mut queue_pairs) {
        client.post_send(SendRequest::send(number, Data::inline(&number.to_ne_bytes())))?;
    }
    // Two completions for each client: its send, and the received answer.
    for _ in 0..2 * CLIENTS {
        done.wait()?.ok()?;
    }
    server.join().map_err(|_| "the server panicked")??;
    for number in 0..CLIENTS {
        let mut answer = [0; BYTES as usize];
        answers.read((number * BYTES) as usize, &mut answer)?;
        assert_eq!(u64::from_ne_bytes(answer), 2 * u64::from(number));
    }
    println!("{CLIENTS} clients were answered, with {RECEIVES} receives for all of them");
    Ok(())
}
