//! Connections by socket address: a server that echoes a message of each client. Both sides use librdmacm's protocol.
//!
//! ```sh
//! cargo run --release -p ferroce-verbs --example connections
//! ```
//!
//! With the argument `serve`, it opens the device of `FERROCE_PORT` and serves one client on another host, such as C's `rdma_client`.

mod cable;

use ferroce_verbs::cm::{self, Listener, Options};
use ferroce_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, MemoryRegion, QueuePair, RecvRequest, SendRequest,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CLIENTS: usize = 5;
const BYTES: u32 = 64;

/// The objects of a side besides its queue pair.
struct Side {
    cq: CompletionQueue,
    buffer: MemoryRegion,
}

fn side(device: &Device) -> Outcome<(QueuePair, Side)> {
    let (domain, cq) = (device.allocate_pd()?, device.create_cq(16)?);
    let buffer = MemoryRegion::alloc(&domain, 2 * BYTES as usize, Access::LOCAL_WRITE)?;
    let mut qp = domain.queue_pair(&cq, &cq).build()?;
    qp.post_recv(RecvRequest::new(0, buffer.sge(0, BYTES)?))?;
    Ok((qp, Side { cq, buffer }))
}

fn serve(device: &Device, clients: usize, listener: &Listener) -> Outcome<()> {
    for _ in 0..clients {
        let request = listener.accept()?;
        let (qp, mut side) = side(device)?;
        let options = Options::new().private_data(b"welcome");
        let mut connection = request.accept(qp, &options)?;
        let received = side.cq.wait()?.ok()?;
        connection.post_send(SendRequest::send(1, side.buffer.sge(0, received.length)?))?;
        side.cq.wait()?.ok()?;
        connection.wait_end()?;
    }
    Ok(())
}

fn main() -> Outcome<()> {
    if std::env::args().nth(1).is_some_and(|word| word == "serve") {
        let device = Device::open(&DeviceConfig::from_env()?)?;
        return serve(&device, 1, &Listener::bind(&device, "0.0.0.0:7471".parse()?)?);
    }
    let [left, right] = cable::devices()?;
    let listener = Listener::bind(&left, "0.0.0.0:7471".parse()?)?;
    let server = std::thread::spawn(move || serve(&left, CLIENTS, &listener));
    for number in 0..CLIENTS {
        let (qp, mut side) = side(&right)?;
        let mut connection = cm::connect(qp, "10.0.0.1:7471".parse()?, &Options::default())?;
        assert!(connection.private_data().starts_with(b"welcome"));
        let words = format!("client {number}");
        side.buffer.write(BYTES as usize, words.as_bytes())?;
        connection.post_send(SendRequest::send(2, side.buffer.sge(BYTES as usize, words.len() as u32)?))?;
        // One completion of the send, one of the received echo.
        side.cq.wait()?.ok()?;
        side.cq.wait()?.ok()?;
        let mut echo = vec![0; words.len()];
        side.buffer.read(0, &mut echo)?;
        assert_eq!(echo, words.as_bytes());
        connection.disconnect()?;
    }
    server.join().map_err(|_| "the server panicked")??;
    println!("{CLIENTS} clients connected, had their words echoed, and left");
    Ok(())
}
