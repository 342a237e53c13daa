//! A message and its answer, by the extended verbs of the `sideway` crate from the registry.
//!
//! ```sh
//! cargo build --manifest-path verbs/c/examples/sideway-crate/Cargo.toml --target-dir target/crates
//! ferroce run --namespaces 2 -- target/crates/debug/sideway-crate {peer}
//! ```

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::completion::{ExtendedCompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::Mtu;
use sideway::ibverbs::queue_pair::{
    ExtendedQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState, SetScatterGatherEntry,
    WorkRequestFlags,
};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::sync::Arc;

const PORT: u16 = 18601;
const ROUNDS: u64 = 1000;
const SENT: u64 = 1;
const RECEIVED: u64 = 2;

/// A queue pair, and two words of memory: the received one and the sent one.
struct Host {
    pair: ExtendedQueuePair,
    queue: Arc<ExtendedCompletionQueue>,
    memory: Arc<sideway::ibverbs::memory_region::MemoryRegion>,
    words: Box<[u64; 2]>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1);
    let devices = DeviceList::new()?;
    let context = devices.iter().next().ok_or("no device")?.open()?;
    let is_v4 = |gid: &Gid| Ipv6Addr::from(*gid).to_ipv4_mapped().is_some();
    let gids = context.query_gid_table()?;
    let ours = gids.iter().find(|entry| is_v4(&entry.gid())).ok_or("no IPv4 address")?;
    let mut host = Host::new(&context)?;

    let mut stream = match &server {
        Some(server) => TcpStream::connect((server.as_str(), PORT))?,
        None => TcpListener::bind(("0.0.0.0", PORT))?.accept()?.0,
    };
    writeln!(stream, "{} {}", host.pair.qp_number(), Ipv6Addr::from(ours.gid()))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let peer = lines.next().ok_or("the peer is gone")??;
    let (number, gid) = peer.split_once(' ').ok_or("what the peer says can't be read")?;
    let gid = Gid::from(gid.parse::<Ipv6Addr>()?);
    host.connect(number.parse()?, &gid, ours.gid_index() as u8)?;
    host.receive()?;
    // Both have posted a receive before either sends.
    writeln!(stream, "ready")?;
    lines.next().ok_or("the peer is gone")??;

    if server.is_some() {
        host.send(0)?;
    }
    host.exchange(server.is_none())?;
    println!("{ROUNDS} messages and their answers");
    Ok(())
}

impl Host {
    fn new(context: &Arc<sideway::ibverbs::device_context::DeviceContext>) -> Result<Self, Box<dyn Error>> {
        let domain = context.alloc_pd()?;
        let words = Box::new([0_u64; 2]);
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
        // SAFETY: the words live as long as the region.
        let memory = unsafe { domain.reg_mr(words.as_ptr() as usize, size_of_val(&*words), access)? };
        let queue = context.create_cq_builder().setup_cqe(16).build_ex()?;
        let both = GenericCompletionQueue::from(Arc::clone(&queue));
        let mut builder = domain.create_qp_builder();
        builder.setup_send_cq(both.clone()).setup_recv_cq(both);
        let mut pair = builder.setup_max_send_wr(4).setup_max_recv_wr(4).build_ex()?;
        let mut init = QueuePairAttribute::new();
        init.setup_state(QueuePairState::Init).setup_pkey_index(0).setup_port(1).setup_access_flags(access);
        pair.modify(&init)?;
        Ok(Self { pair, queue, memory, words })
    }

    fn connect(&mut self, peer: u32, gid: &Gid, source: u8) -> Result<(), Box<dyn Error>> {
        let mut address = AddressHandleAttribute::new();
        address.setup_port(1).setup_grh_src_gid_index(source).setup_grh_dest_gid(gid).setup_grh_hop_limit(64);
        let mut receive = QueuePairAttribute::new();
        receive.setup_state(QueuePairState::ReadyToReceive).setup_path_mtu(Mtu::Mtu1024);
        receive.setup_dest_qp_num(peer).setup_rq_psn(7).setup_max_dest_read_atomic(1).setup_min_rnr_timer(12);
        receive.setup_address_vector(&address);
        self.pair.modify(&receive)?;
        let mut send = QueuePairAttribute::new();
        send.setup_state(QueuePairState::ReadyToSend).setup_sq_psn(7).setup_timeout(14);
        send.setup_retry_cnt(7).setup_rnr_retry(7).setup_max_read_atomic(1);
        Ok(self.pair.modify(&send)?)
    }

    fn receive(&mut self) -> Result<(), Box<dyn Error>> {
        let (key, first) = (self.memory.lkey(), self.memory.get_ptr() as u64);
        let mut guard = self.pair.start_post_recv();
        // SAFETY: the first word is not accessed until the receive has completed.
        unsafe { guard.construct_wr(RECEIVED).setup_sge(key, first, 8) };
        Ok(guard.post()?)
    }

    fn send(&mut self, word: u64) -> Result<(), Box<dyn Error>> {
        self.words[1] = word;
        let (key, second) = (self.memory.lkey(), self.memory.get_ptr() as u64 + 8);
        let mut guard = self.pair.start_post_send();
        let request = guard.construct_wr(SENT, WorkRequestFlags::Signaled).setup_send();
        // SAFETY: the word changes only after the peer has answered the message that contained it.
        unsafe { request.setup_sge(key, second, 8) };
        Ok(guard.post()?)
    }

    /// Exchanges the messages. The client's words are even, and each answer is one more.
    fn exchange(&mut self, answers: bool) -> Result<(), Box<dyn Error>> {
        let (mut sent, mut received) = (0, 0);
        while sent < ROUNDS || received < ROUNDS {
            // An empty queue is an error of this call.
            let Ok(completions) = self.queue.start_poll() else { continue };
            let came: Vec<_> = completions.map(|wc| (wc.wr_id(), wc.status())).collect();
            for (id, status) in came {
                if status != 0 {
                    return Err(format!("request {id} failed: status {status}").into());
                }
                if id == SENT {
                    sent += 1;
                    continue;
                }
                // SAFETY: the receive has completed.
                let word = unsafe { self.words.as_ptr().read_volatile() };
                assert_eq!(word, 2 * received + u64::from(!answers));
                received += 1;
                self.receive()?;
                if answers {
                    self.send(2 * received - 1)?;
                } else if received < ROUNDS {
                    self.send(2 * received)?;
                }
            }
        }
        Ok(())
    }
}
