//! Both ends of a connection on one core, over a DPDK ring that costs next to nothing: only our own cost remains.

use crate::cpu;
use datapath::dpdk::{Eal, EalConfig, Port, PortConfig};
use datapath::io::{BURST, Burst, PacketBuf, PacketIo};
use std::sync::atomic::{AtomicU32, Ordering};
use verbs::{
    Access, Capabilities, CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion, Progress,
    QueuePair, SendRequest,
};

const DEPTH: u32 = 256;
pub(crate) const LIST: usize = 32;

fn fresh_ring() -> [String; 2] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    [format!("ring:bench{number},a"), format!("ring:bench{number},b")]
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) device: Device,
    pub(crate) cq: CompletionQueue,
    pub(crate) region: MemoryRegion,
    pub(crate) qp: QueuePair,
}

impl End {
    fn open(port: &str, address: &str) -> Result<Self, verbs::Error> {
        let address = address.parse().expect("an address");
        let device = Device::open(&DeviceConfig::on(port).address(address).progress(Progress::Inline))?;
        let pd = device.allocate_pd()?;
        let cq = device.create_cq(2 * DEPTH)?;
        let region = MemoryRegion::alloc(&pd, 1 << 16, Access::ALL)?;
        let capabilities = Capabilities { max_send: DEPTH, ..Capabilities::default() };
        let qp = pd.queue_pair(&cq, &cq).capabilities(capabilities).build()?;
        Ok(Self { device, cq, region, qp })
    }
}

/// Two ends, connected; who calls `progress` runs one.
pub(crate) fn connected() -> Result<(End, End), String> {
    let text = |error: verbs::Error| error.to_string();
    let [a, b] = fresh_ring();
    let (mut a, mut b) =
        (End::open(&a, "10.0.0.1/24").map_err(text)?, End::open(&b, "10.0.0.2/24").map_err(text)?);
    let mac = |end: &End| end.device.query().map(|info| info.mac).map_err(text);
    let (mac_a, mac_b) = (mac(&a)?, mac(&b)?);
    a.device.set_neighbour("10.0.0.2".parse().expect("an address"), mac_b).map_err(text)?;
    b.device.set_neighbour("10.0.0.1".parse().expect("an address"), mac_a).map_err(text)?;
    let (to_a, to_b) = (a.qp.endpoint(), b.qp.endpoint());
    a.qp.connect(&to_b, &ConnectOptions::default()).map_err(text)?;
    b.qp.connect(&to_a, &ConnectOptions::default()).map_err(text)?;
    Ok((a, b))
}

/// WRITEs a second of `size` bytes, both ends run by this thread.
///
/// # Errors
/// Where a port or a queue pair can't be had.
pub fn writes_per_second(size: u32, count: u64) -> Result<f64, String> {
    let (mut a, b) = connected()?;
    let remote = b.region.remote().at(0);
    let request = SendRequest::write(0, a.region.sge(0, size).map_err(|error| error.to_string())?, remote);
    let start = cpu::time();
    let (mut posted, mut done) = (0_u64, 0_u64);
    while done < count {
        while posted < count && posted - done + LIST as u64 <= u64::from(DEPTH) {
            let list = (1..=LIST).map(|n| SendRequest { signalled: n == LIST, ..request.clone() });
            match a.qp.post_send_list(list) {
                Ok(taken) => posted += taken as u64,
                Err(refused) => return Err(refused.error.to_string()),
            }
        }
        while a.cq.poll_one().map_err(|error| error.to_string())?.is_some() {
            done += LIST as u64;
        }
        b.device.progress();
    }
    Ok(done as f64 / (cpu::time() - start).as_secs_f64())
}

/// Raw frames a second through the same kind of ring, both ends run by this thread: taken from the pool, sent, received
/// and given back.
///
/// # Errors
/// Where a port can't be had.
pub fn frames_per_second(length: usize, count: u64) -> Result<f64, String> {
    let eal = Eal::start(&EalConfig::default()).map_err(|error| error.to_string())?;
    eal.register_thread();
    let open = |name: &String| {
        let spec = name.parse().map_err(|error| format!("{name}: {error}"))?;
        Port::open(eal, &spec, &PortConfig::default()).map_err(|error| error.to_string())
    };
    let [a, b] = fresh_ring();
    let (mut a, mut b) = (open(&a)?, open(&b)?);
    let (mut out, mut back): (Burst<_>, Burst<_>) = (Burst::new(), Burst::new());
    let start = cpu::time();
    let mut received = 0;
    while received < count {
        while out.len() < BURST {
            let Some(mut frame) = a.alloc() else { break };
            frame.set_len(length);
            out.push(frame);
        }
        a.transmit(&mut out);
        b.receive(&mut back);
        received += back.len() as u64;
        back.clear();
    }
    Ok(received as f64 / (cpu::time() - start).as_secs_f64())
}
