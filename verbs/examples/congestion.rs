//! Two queue pairs of one device with different congestion control, and the rates at which they send.
//!
//! ```sh
//! FERROCE_PORT=ring:example FERROCE_IP=10.0.0.1/24 cargo run --release -p ferroce-verbs --example congestion
//! ```

use ferroce_verbs::congestion::parse_congestion;
use ferroce_verbs::observe::QpReport;
use ferroce_verbs::{Access, ConnectOptions, Device, DeviceConfig, MemoryRegion, SendRequest};
use std::error::Error;

const BYTES: u32 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::open(&DeviceConfig::from_env()?)?;
    let events = device.events()?;
    for choice in ["hpcc,line_rate=10G,base_rtt=100us", "fixed,window=65536"] {
        let (report, gigabits) = write_to_itself(&device, choice)?;
        let rate = report.rate.map_or("not paced".into(), |rate| format!("paced at {rate}"));
        let full = report.utilisation.map_or("nothing known of the path".into(), |u| {
            format!("the busiest link {:.0} % full (100 before telemetry comes)", 100.0 * u)
        });
        println!("{}: window {} bytes, {rate}, {full}; {gigabits:.1} Gb/s", report.algorithm, report.window);
    }
    // Events that no completion reports, such as the failure of a peer. Normally there are none.
    while let Some(event) = events.take() {
        println!("{event:?}");
    }
    Ok(())
}

/// Writes 1 MiB from one half of a buffer to the other, eight times. Returns the queue pair's report, and the rate in Gb/s.
fn write_to_itself(device: &Device, choice: &str) -> Result<(QpReport, f64), Box<dyn Error>> {
    let domain = device.allocate_pd()?;
    let buffer = MemoryRegion::alloc(&domain, 2 * BYTES as usize, Access::ALL)?;
    let mut completions = device.create_cq(16)?;
    let mut qp = domain.queue_pair(&completions, &completions).build()?;
    let options = ConnectOptions::new().congestion(parse_congestion(choice)?);
    qp.connect(&qp.endpoint(), &options)?;
    let start = std::time::Instant::now();
    for id in 0..8 {
        qp.post_send(SendRequest::write(id, buffer.sge(0, BYTES)?, buffer.remote().at(BYTES.into())))?;
    }
    for _ in 0..8 {
        completions.wait()?.ok()?;
    }
    let bits = f64::from(8 * BYTES) * 8.0;
    Ok((qp.query()?, bits / start.elapsed().as_secs_f64() / 1e9))
}
