//! An echo server and its clients as tasks of one tokio thread, which await connections and completions.
//!
//! ```sh
//! cargo run --release -p ferroce-verbs --features tokio --example echo_tokio
//! ```

mod cable;

use ferroce_verbs::cm::{self, Listener, Options, Request};
use ferroce_verbs::{Access, Completions, Device, MemoryRegion, QueuePair, RecvRequest, SendRequest};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CLIENTS: usize = 20;
const ROUNDS: usize = 10;
const BYTES: u32 = 64;

/// Creates the objects of one end, with a posted receive. The first half of the buffer is for receives, the second for sends.
fn end(device: &Device) -> Outcome<(QueuePair, Completions, MemoryRegion)> {
    let (domain, completions) = (device.allocate_pd()?, Completions::new(device.create_cq(16)?)?);
    let buffer = MemoryRegion::alloc(&domain, 2 * BYTES as usize, Access::LOCAL_WRITE)?;
    let mut qp = domain.queue_pair(&completions, &completions).build()?;
    qp.post_recv(RecvRequest::new(0, buffer.sge(0, BYTES)?))?;
    Ok((qp, completions, buffer))
}

/// Serves one client until it disconnects. Returns the number of messages.
async fn echo(device: Device, request: Request) -> Outcome<usize> {
    let (qp, mut completions, buffer) = end(&device)?;
    let mut connection = request.accept_async(qp, &Options::default()).await?;
    for round in 0.. {
        // When the client disconnects, the posted receive is flushed.
        let Ok(received) = completions.next().await?.ok() else { return Ok(round) };
        connection.post_send(SendRequest::send(1, buffer.sge(0, received.length)?))?;
        completions.next().await?.ok()?;
        connection.post_recv(RecvRequest::new(0, buffer.sge(0, BYTES)?))?;
    }
    Ok(0)
}

async fn client(device: Device, number: usize) -> Outcome<()> {
    let (qp, mut completions, buffer) = end(&device)?;
    let mut connection = cm::connect_async(qp, "10.0.0.1:7471".parse()?, &Options::default()).await?;
    for round in 0..ROUNDS {
        let words = format!("client {number}, round {round}");
        buffer.write(BYTES as usize, words.as_bytes())?;
        connection.post_send(SendRequest::send(1, buffer.sge(BYTES as usize, words.len() as u32)?))?;
        // One completion of the send, one of the received echo.
        completions.next().await?.ok()?;
        completions.next().await?.ok()?;
        let mut echo = vec![0; words.len()];
        buffer.read(0, &mut echo)?;
        assert_eq!(echo, words.as_bytes());
        connection.post_recv(RecvRequest::new(0, buffer.sge(0, BYTES)?))?;
    }
    Ok(connection.disconnect_async().await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let [left, right] = cable::devices()?;
    let listener = Listener::bind(&left, "0.0.0.0:7471".parse()?)?;
    let clients: Vec<_> = (0..CLIENTS).map(|number| tokio::spawn(client(right.clone(), number))).collect();
    let mut served = Vec::new();
    for _ in 0..CLIENTS {
        let request = listener.accept_async().await?;
        served.push(tokio::spawn(echo(left.clone(), request)));
    }
    for client in clients {
        client.await??;
    }
    let mut echoes = 0;
    for task in served {
        echoes += task.await??;
    }
    println!("{CLIENTS} clients at a time had {echoes} messages echoed");
    Ok(())
}
