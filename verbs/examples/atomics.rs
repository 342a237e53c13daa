//! A counter in one host's memory that two clients increment with FETCH AND ADD, so that no increment is lost.
//!
//! ```sh
//! cargo run --release -p ferroce-verbs --example atomics
//! ```

mod cable;

use ferroce_verbs::{Access, Device, MemoryRegion, ProtectionDomain, RemoteBuffer, SendRequest};
use std::thread;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ADDITIONS: u64 = 500;

/// Connects a client on `device` to a queue pair of the counter's `owner`, and adds one 500 times.
fn count(device: &Device, owner: (&Device, &ProtectionDomain), counter: RemoteBuffer) -> Outcome<()> {
    let unused = owner.0.create_cq(1)?;
    let mut responder = owner.1.queue_pair(&unused, &unused).build()?;
    let domain = device.allocate_pd()?;
    let mut completions = device.create_cq(16)?;
    let before = MemoryRegion::alloc(&domain, 8, Access::LOCAL_WRITE)?;
    let mut qp = domain.queue_pair(&completions, &completions).build()?;
    cable::connect(&mut qp, &mut responder)?;
    for id in 0..ADDITIONS {
        qp.post_send(SendRequest::fetch_add(id, before.sge(0, 8)?, counter.at(0), 1))?;
        completions.wait()?.ok()?;
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let [here, there] = cable::devices()?;
    let domain = there.allocate_pd()?;
    let memory = MemoryRegion::alloc(&domain, 8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    thread::scope(|scope| {
        let clients = [(); 2].map(|()| scope.spawn(|| count(&here, (&there, &domain), memory.remote())));
        clients.into_iter().try_for_each(|client| client.join().map_err(|_| "a client panicked")?)
    })?;
    let mut value = [0; 8];
    memory.read(0, &mut value)?;
    assert_eq!(u64::from_ne_bytes(value), 2 * ADDITIONS);
    println!("two clients added 1 {ADDITIONS} times each: {}", u64::from_ne_bytes(value));
    Ok(())
}
