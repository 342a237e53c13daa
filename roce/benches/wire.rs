//! Measures ns per packet of the codec, with everything in cache: `cargo bench -p ferroce-roce --bench wire`.

use ferroce_roce::qp::FeedbackKey;
use ferroce_roce::wire::{self, Bth, Header, Mac, Operation, Path, Service};
use ferroce_roce::{Psn, Qpn};
use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;

const ROUNDS: u32 = 200_000;

/// Returns the shortest of five runs: interference only adds time.
fn ns(mut work: impl FnMut()) -> f64 {
    let run = |_| {
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| work());
        start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
    };
    (0..5).map(run).fold(f64::INFINITY, f64::min)
}

fn main() {
    let path = Path {
        udp_source: 0xc123,
        traffic_class: 2,
        ..Path::new(
            (Mac([2, 0, 0, 0, 0, 1]), IpAddr::from([10, 0, 0, 1])),
            (Mac([2, 0, 0, 0, 0, 2]), IpAddr::from([10, 0, 0, 2])),
        )
    };
    let bth = Bth::new(Qpn::new(7), Psn::new(1));
    let header = Header::Connected { service: Service::Rc, bth, operation: Operation::WriteMiddle };
    let mut frame = vec![0; wire::MAX_OVERHEAD + wire::MAX_PAYLOAD];
    println!("payload  emit ns  emit+seal ns  verify ns  parse ns");
    for payload in [0, 64, 1024, 4096] {
        let emit = ns(|| drop(black_box(wire::emit(&path, 1, black_box(&header), payload, &mut frame))));
        let mut length = 0;
        let seal = ns(|| {
            if let Ok(draft) = wire::emit(&path, 1, black_box(&header), payload, &mut frame) {
                length = draft.seal();
            }
        });
        let verify = ns(|| {
            let _ = black_box(wire::verify(black_box(&frame[..length])));
        });
        let parse = ns(|| {
            let _ = black_box(wire::parse(black_box(&frame[..length])));
        });
        println!("{payload:7}  {emit:7.1}  {seal:12.1}  {verify:9.1}  {parse:8.1}");
    }
    // The bytes hashed for a response with a record: header and counter 25 bytes, report 12.
    let key = FeedbackKey([7; 16]);
    let bytes = [5; 37];
    let hash = ns(|| {
        let _ = black_box(key.tag(black_box(&bytes)));
    });
    println!("seal of feedback: {hash:.1} ns");
}
