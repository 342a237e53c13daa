//! An RDMA WRITE from one process to another process's memory.
//!
//! ```sh
//! export FERROCE_PORT=memif:/tmp/hello.sock,server FERROCE_IP=10.0.0.1/24
//! cargo run --release -p ferroce-verbs --example hello                # waits, and prints what was written to its memory
//! # in another terminal
//! export FERROCE_PORT=memif:/tmp/hello.sock,client FERROCE_IP=10.0.0.2/24
//! cargo run --release -p ferroce-verbs --example hello -- 127.0.0.1   # writes
//! ```

use ferroce_verbs::{
    Access, ConnectOptions, Device, DeviceConfig, MemoryRegion, Progress, QpEndpoint, RemoteBuffer,
    SendRequest,
};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

const TCP_PORT: u16 = 18600;
const GREETING: &[u8] = b"hello, remote memory";

fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1);
    // A dedicated thread runs the core while this thread waits on a TCP socket.
    let config = DeviceConfig::from_env()?.progress(Progress::Dedicated { core: None });
    let stream = match &server {
        Some(host) => TcpStream::connect((host.as_str(), TCP_PORT))?,
        None => {
            let device = Device::open(&config)?;
            println!("waiting on TCP port {TCP_PORT}");
            return wait_for_greeting(&device, TcpListener::bind(("0.0.0.0", TCP_PORT))?.accept()?.0);
        }
    };
    greet(&Device::open(&config)?, stream)
}

/// Registers memory and waits. The WRITE needs no action of this thread.
fn wait_for_greeting(device: &Device, mut stream: TcpStream) -> Result<(), Box<dyn Error>> {
    let domain = device.allocate_pd()?;
    let memory = MemoryRegion::alloc(&domain, 4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let completions = device.create_cq(16)?;
    let mut qp = domain.queue_pair(&completions, &completions).build()?;

    writeln!(stream, "{}\n{}", qp.endpoint(), memory.remote())?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let peer: QpEndpoint = lines.next().ok_or("the client left")??.parse()?;
    qp.connect(&peer, &ConnectOptions::default())?;
    writeln!(stream, "connected")?;

    lines.next().ok_or("the client left before it wrote")??;
    let mut bytes = vec![0; GREETING.len()];
    memory.read(0, &mut bytes)?;
    println!("{}", String::from_utf8_lossy(&bytes));
    Ok(())
}

fn greet(device: &Device, mut stream: TcpStream) -> Result<(), Box<dyn Error>> {
    let domain = device.allocate_pd()?;
    let buffer = MemoryRegion::alloc(&domain, 4096, Access::LOCAL_READ)?;
    let mut completions = device.create_cq(16)?;
    let mut qp = domain.queue_pair(&completions, &completions).build()?;

    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let mut line = || lines.next().ok_or("the server left")?.map_err(Box::<dyn Error>::from);
    let peer: QpEndpoint = line()?.parse()?;
    let memory: RemoteBuffer = line()?.parse()?;
    writeln!(stream, "{}", qp.endpoint())?;
    qp.connect(&peer, &ConnectOptions::default())?;
    line()?;

    buffer.write(0, GREETING)?;
    qp.post_send(SendRequest::write(1, buffer.sge(0, GREETING.len() as u32)?, memory.at(0)))?;
    let completion = completions.wait()?.ok()?;
    println!("request {} is done", completion.id);
    writeln!(stream, "written")?;
    Ok(())
}
