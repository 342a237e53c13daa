//! A key-value store in the server's memory. Clients WRITE and READ its slots, and the server's application does nothing.
//!
//! ```sh
//! cargo run --release -p ferroce-verbs --example key_value
//! ```

mod cable;

use ferroce_verbs::{Access, CompletionQueue, Device, MemoryRegion, QueuePair, RemoteBuffer, SendRequest};
use std::error::Error;

const SLOTS: u64 = 1024;
const SLOT: u32 = 64;

/// A client, with a buffer for one slot.
struct Client {
    qp: QueuePair,
    completions: CompletionQueue,
    buffer: MemoryRegion,
    store: RemoteBuffer,
}

impl Client {
    fn new(device: &Device, store: RemoteBuffer) -> Result<Self, Box<dyn Error>> {
        let domain = device.allocate_pd()?;
        let completions = device.create_cq(16)?;
        let buffer = MemoryRegion::alloc(&domain, SLOT as usize, Access::LOCAL_WRITE)?;
        let qp = domain.queue_pair(&completions, &completions).build()?;
        Ok(Self { qp, completions, buffer, store })
    }

    /// Stores a value of at most 63 bytes. The first byte of a slot is the value's length.
    fn put(&mut self, key: u64, value: &[u8]) -> Result<(), Box<dyn Error>> {
        let length = u8::try_from(value.len())?;
        self.buffer.write(0, &[length])?;
        self.buffer.write(1, value)?;
        let sge = self.buffer.sge(0, u32::from(length) + 1)?;
        self.qp.post_send(SendRequest::write(key, sge, self.store.at(slot(key))))?;
        self.completions.wait()?.ok()?;
        Ok(())
    }

    fn get(&mut self, key: u64) -> Result<Vec<u8>, Box<dyn Error>> {
        let request = SendRequest::read(key, self.buffer.sge(0, SLOT)?, self.store.at(slot(key)));
        self.qp.post_send(request)?;
        self.completions.wait()?.ok()?;
        let mut slot = [0; SLOT as usize];
        self.buffer.read(0, &mut slot)?;
        Ok(slot[1..=usize::from(slot[0]).min(SLOT as usize - 1)].to_vec())
    }
}

fn slot(key: u64) -> u64 {
    key % SLOTS * u64::from(SLOT)
}

fn main() -> Result<(), Box<dyn Error>> {
    let [here, there] = cable::devices()?;
    let domain = there.allocate_pd()?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let memory = MemoryRegion::alloc(&domain, (SLOTS * u64::from(SLOT)) as usize, rights)?;
    let unused = there.create_cq(1)?;
    let mut server = domain.queue_pair(&unused, &unused).build()?;

    let mut client = Client::new(&here, memory.remote())?;
    cable::connect(&mut client.qp, &mut server)?;
    for key in 0..SLOTS {
        client.put(key, format!("value {key}").as_bytes())?;
    }
    assert_eq!(client.get(17)?, b"value 17");
    println!("{SLOTS} values stored; 17 is {:?}", String::from_utf8(client.get(17)?)?);

    // A request that the server does not allow fails with an error that contains the remedy.
    let beyond = SendRequest::read(1, client.buffer.sge(0, SLOT)?, client.store.at(SLOTS * u64::from(SLOT)));
    client.qp.post_send(beyond)?;
    let failed = client.completions.wait()?.ok().unwrap_err();
    println!("beyond the store: {failed}");
    Ok(())
}
