//! The snippets of `README.md` and `docs/guide/rust.md`, each as the body of a function, so that they compile.

#![allow(
    dead_code,
    unused_variables,
    reason = "the snippets compile and do not run; verbs/examples shows it"
)]

use ferroce_verbs::cm::Listener;
use ferroce_verbs::{CompletionQueue, Device, MemoryRegion, ProtectionDomain, Qpn, QueuePair, RemoteBuffer};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const PAGES: [&str; 2] = [include_str!("../../README.md"), include_str!("../../docs/guide/rust.md")];

#[rustfmt::skip]
fn a_write(send_to_peer: impl Fn(String), peer_said: &str, peers_memory: RemoteBuffer) -> Outcome<()> {
    use ferroce_verbs::{Access, ConnectOptions, Device, DeviceConfig, MemoryRegion, SendRequest};

    let device = Device::open(&DeviceConfig::on("eth0"))?;                  // or from_env(), from_file("ferroce.toml")
    let domain = device.allocate_pd()?;
    let buffer = MemoryRegion::alloc(&domain, 1 << 20, Access::LOCAL_READ)?;
    let mut completions = device.create_cq(128)?;
    let mut qp = domain.queue_pair(&completions, &completions).build()?;
    send_to_peer(qp.endpoint().to_string());                                // any way you like: a socket, a file, a database
    qp.connect(&peer_said.parse()?, &ConnectOptions::default())?;
    qp.post_send(SendRequest::write(1, buffer.sge(0, 4096)?, peers_memory.at(0)))?;
    completions.wait()?.ok()?;                                              // an error names the request, the reason and the remedy
    Ok(())
}

#[rustfmt::skip]
fn a_datagram(domain: &ProtectionDomain, cq: CompletionQueue, buffer: &MemoryRegion, peer_qpn: Qpn) -> Outcome<()> {
    use ferroce_verbs::service::Request;
    use ferroce_verbs::wire::DEFAULT_QUEUE_KEY;
    use ferroce_verbs::AddressOptions;

    let mut qp = domain.queue_pair(&cq, &cq).datagrams().build()?;
    qp.open(None)?;
    let address = domain.address("10.0.0.2".parse()?, &AddressOptions::default())?;
    qp.post_send(Request::send_to(1, buffer.sge(0, 64)?, address.to(peer_qpn, DEFAULT_QUEUE_KEY)))?;
    Ok(())
}

#[rustfmt::skip]
fn a_server(device: Device, mut qp: QueuePair, mut cq: CompletionQueue, buffer: &MemoryRegion) -> Outcome<()> {
    use ferroce_verbs::cm::{Listener, Options};
    use ferroce_verbs::RecvRequest;

    let listener = Listener::bind(&device, "0.0.0.0:7471".parse()?)?;
    let request = listener.accept()?;
    qp.post_recv(RecvRequest::new(1, buffer.sge(0, 64)?))?;
    let mut connection = request.accept(qp, &Options::default())?;
    let received = cq.wait()?.ok()?.length;
    connection.wait_end()?;
    Ok(())
}

#[rustfmt::skip]
fn a_client(qp: QueuePair, mut cq: CompletionQueue, buffer: &MemoryRegion) -> Outcome<()> {
    use ferroce_verbs::cm::{self, Options};
    use ferroce_verbs::SendRequest;

    let mut connection = cm::connect(qp, "10.0.0.1:7471".parse()?, &Options::default())?;
    connection.post_send(SendRequest::send(1, buffer.sge(0, 64)?))?;
    cq.wait()?.ok()?;
    connection.disconnect()?;
    Ok(())
}

#[rustfmt::skip]
async fn a_task(device: &Device, domain: &ProtectionDomain, listener: &Listener, buffer: &MemoryRegion) -> Outcome<()> {
    use ferroce_verbs::cm::Options;
    use ferroce_verbs::{Completions, SendRequest};

    let mut completions = Completions::new(device.create_cq(16)?)?;
    let qp = domain.queue_pair(&completions, &completions).build()?;
    let mut connection = listener.accept_async().await?.accept_async(qp, &Options::default()).await?;
    connection.post_send(SendRequest::send(1, buffer.sge(0, 64)?))?;
    completions.next().await?.ok()?;
    connection.disconnect_async().await?;
    Ok(())
}

/// Returns a text without indentation.
fn flat(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_snippets_of_the_pages_are_the_functions_of_this_file() {
    let here = flat(include_str!("guide.rs"));
    let blocks = PAGES.iter().flat_map(|page| page.split("```rust,ignore\n").skip(1));
    let snippets: Vec<_> = blocks.filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(snippets.len(), 5);
    for snippet in snippets {
        assert!(here.contains(&flat(snippet)), "no function of verbs/tests/guide.rs is:\n{snippet}");
    }
}
