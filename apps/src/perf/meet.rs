//! Establishes the TCP connection between client and server.

use super::args::PerfArgs;
use super::handshake::perftest::Perftest;
use super::handshake::pingpong::Pingpong;
use super::handshake::{Control, Handshake, Idle, JsonLines, PATIENCE};
use super::plan::{Plan, Tool};
use super::report::WAITING;
use crate::failure::Failure;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The time limit for connecting to the server.
const START: Duration = Duration::from_secs(10);
/// The time after which the client prints that it waits for the server.
const HINT: Duration = Duration::from_secs(1);
/// The time limit for each step of a client that has greeted, until both agree.
const AGREEMENT: Duration = Duration::from_secs(5);
/// The limit on connections that have not greeted, or that are queued. A new connection above the limit replaces the oldest.
const VISITORS: usize = 64;
/// The interval between polls of the listener.
const PAUSE: Duration = Duration::from_millis(1);

/// Connects to the server. It may start up to 10 s after the client.
///
/// # Errors
/// Returns a failure if the name cannot be resolved or no address answers in time.
pub fn connect(host: &str, port: u16, tool: Tool) -> Result<Control, Failure> {
    let addresses = resolve(host, port)?;
    let since = Instant::now();
    let mut hinted = false;
    loop {
        let error = match attempt(&addresses) {
            Ok(stream) => return Control::new(stream),
            Err(error) => error,
        };
        if since.elapsed() > START {
            return Err(Failure::run(format!(
                "no server at {host}, TCP port {port}: {error}; start `ferroce {tool}` there first, or use the same -p on both sides"
            )));
        }
        if since.elapsed() > HINT && !hinted {
            hinted = true;
            note!("waiting for `ferroce {tool}` on {host}, TCP port {port} ({error})");
        }
        crate::signals::check()?;
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
    let unknown = |error: &dyn std::fmt::Display| {
        Failure::run(format!("{host}: {error}; give the server's name, IPv4 or IPv6 address"))
    };
    let host_only = host.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<_> = (host_only, port).to_socket_addrs().map_err(|error| unknown(&error))?.collect();
    if addresses.is_empty() { Err(unknown(&"no address")) } else { Ok(addresses) }
}

fn attempt(addresses: &[SocketAddr]) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::from(ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(address, Duration::from_secs(2)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The listener of a server.
pub struct Reception {
    listener: TcpListener,
    /// Connections that have not greeted, or that are queued, because a server of several clients accepts one at a time.
    waiting: VecDeque<Visitor>,
}

impl Reception {
    /// Listens on the port, and prints that the server waits.
    ///
    /// # Errors
    /// Returns a failure if the port cannot be bound.
    pub fn open(port: u16) -> Result<Self, Failure> {
        let listener = listen(port)?;
        outln!("{WAITING}")?;
        Ok(Self { listener, waiting: VecDeque::new() })
    }

    /// Waits for a client with a plan that this server accepts. `own` is the plan for clients whose protocol does not send one.
    ///
    /// # Errors
    /// Returns a failure if accepting or `idle` fails. A refused client receives the reason if its protocol has a message for it, and the
    /// wait continues.
    pub fn accept(
        &mut self,
        args: &PerfArgs,
        own: &Plan,
        idle: &mut Idle,
    ) -> Result<(Plan, Box<dyn Handshake + Send>), Failure> {
        loop {
            if let Some(visitor) = self.greeted()? {
                let Visitor { control, from, .. } = visitor;
                match meet(control, own, args, idle) {
                    Ok(met) => return Ok(met),
                    Err(why) => note!("refused {from}: {why}; still waiting"),
                }
            }
            idle()?;
            crate::signals::check()?;
            std::thread::sleep(PAUSE);
        }
    }

    /// Accepts all new connections. Returns one that has greeted; the others remain for the next call.
    fn greeted(&mut self) -> Result<Option<Visitor>, Failure> {
        while let Some(visitor) = self.visitor()? {
            if self.waiting.len() == VISITORS {
                self.waiting.pop_front();
            }
            self.waiting.push_back(visitor);
        }
        Ok(greeted(&mut self.waiting))
    }

    fn visitor(&self) -> Result<Option<Visitor>, Failure> {
        match self.listener.accept() {
            Ok((stream, from)) => {
                Ok(Some(Visitor { control: Control::new(stream)?, from, since: Instant::now() }))
            }
            Err(error) if transient(error.kind()) => Ok(None),
            Err(error) => Err(Failure::run(format!("accepting a client: {error}; raise `ulimit -n`"))),
        }
    }
}

struct Visitor {
    control: Control,
    from: SocketAddr,
    since: Instant,
}

/// Removes and returns the first connection that has sent a complete greeting. Drops connections that are closed, or that were silent for
/// longer than [`PATIENCE`]: a client opens its port between connecting and greeting, which takes seconds on a busy machine.
fn greeted(waiting: &mut VecDeque<Visitor>) -> Option<Visitor> {
    let mut at = 0;
    while let Some(visitor) = waiting.get_mut(at) {
        let from = visitor.from;
        let gone = match visitor.control.is_greeted() {
            Ok(true) => return waiting.remove(at),
            Ok(false) if visitor.since.elapsed() < PATIENCE => None,
            Ok(false) => Some(format!("it sent no greeting within {} s", PATIENCE.as_secs())),
            Err(why) => Some(why.to_string()),
        };
        match gone {
            None => at += 1,
            Some(why) => {
                note!("refused {from}: {why}; still waiting");
                waiting.remove(at);
            }
        }
    }
    None
}

fn meet(
    mut control: Control,
    own: &Plan,
    args: &PerfArgs,
    idle: &mut Idle,
) -> Result<(Plan, Box<dyn Handshake + Send>), Failure> {
    control.patience = AGREEMENT;
    let mut handshake = language(control, own, args.load.mtu.map(verbs::Mtu::bytes))?;
    let plan = handshake.agree(&mut |plan| plan.accept(own.tool, args), idle)?;
    handshake.be_patient(PATIENCE);
    Ok((plan, handshake))
}

/// Returns the client's handshake. Ferroce begins with a JSON object, perftest with its version, and libibverbs' examples with the LID and
/// a colon.
fn language(
    control: Control,
    own: &Plan,
    told_mtu: Option<u32>,
) -> Result<Box<dyn Handshake + Send>, Failure> {
    let begins = control.pending.first().copied().unwrap_or_default();
    if control.pending.get(4) == Some(&b':') && begins != b'{' {
        // The protocol does not negotiate the MTU. It is that of this server's flag, or the examples' default of 1024 bytes.
        let plan = Plan { mtu: told_mtu, ..own.clone() };
        return Ok(Box::new(Pingpong::new(control, plan, false)?));
    }
    if begins.is_ascii_digit() {
        return Ok(Box::new(Perftest::new(control, own.clone(), false)?));
    }
    Ok(Box::new(JsonLines::new(control)))
}

fn transient(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}

/// Listens on all addresses of this host: both families by one socket, or IPv4 if the kernel has no IPv6.
fn listen(port: u16) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(("::", port)).or_else(|error| match error.kind() {
        ErrorKind::AddrInUse | ErrorKind::PermissionDenied => Err(error),
        _ => TcpListener::bind(("0.0.0.0", port)),
    });
    listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener)).map_err(|error| {
        Failure::run(format!("TCP port {port}: {error}; choose another with -p, on both sides"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn an_address_may_stand_in_brackets() {
        assert_eq!(resolve("[::1]", 5).unwrap(), ["[::1]:5".parse().unwrap()]);
        assert_eq!(resolve("127.0.0.1", 5).unwrap(), ["127.0.0.1:5".parse().unwrap()]);
    }

    #[test]
    fn a_silent_connection_does_not_delay_other_clients() {
        let reception = Reception { listener: listen(0).unwrap(), waiting: VecDeque::new() };
        let port = reception.listener.local_addr().unwrap().port();
        let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
        let visitor =
            || std::iter::repeat_with(|| reception.visitor().unwrap()).find_map(|visitor| visitor).unwrap();
        let mut waiting = VecDeque::new();
        let _silent = connect();
        waiting.push_back(visitor());
        let mut half = connect();
        waiting.push_back(visitor());
        half.write_all(b"{\"hello\"").unwrap();
        let mut client = connect();
        waiting.push_back(visitor());
        client.write_all(b"{}\n").unwrap();
        let found = std::iter::repeat_with(|| greeted(&mut waiting)).find_map(|found| found).unwrap();
        assert_eq!((found.from.port(), waiting.len()), (client.local_addr().unwrap().port(), 2));
        // Late and closed connections are dropped.
        waiting[0].since = Instant::now().checked_sub(PATIENCE).unwrap();
        drop(half);
        while !waiting.is_empty() {
            assert!(greeted(&mut waiting).is_none());
        }
    }

    #[test]
    fn a_client_that_greets_while_another_is_served_is_not_lost() {
        let mut reception = Reception { listener: listen(0).unwrap(), waiting: VecDeque::new() };
        let port = reception.listener.local_addr().unwrap().port();
        let clients = [(); 2].map(|()| TcpStream::connect(("127.0.0.1", port)).unwrap());
        for mut client in &clients {
            client.write_all(b"{}\n").unwrap();
        }
        let mut met: Vec<_> = (0..2)
            .map(|_| {
                std::iter::repeat_with(|| reception.greeted().unwrap()).find_map(|found| found).unwrap().from
            })
            .collect();
        let mut ours = clients.map(|client| client.local_addr().unwrap().port());
        ours.sort_unstable();
        met.sort_unstable();
        assert_eq!(met.iter().map(SocketAddr::port).collect::<Vec<_>>(), ours);
    }

    #[test]
    fn a_port_in_use_is_named() {
        let first = listen(0).unwrap();
        let port = first.local_addr().unwrap().port();
        let error = listen(port).unwrap_err().to_string();
        assert!(error.contains(&port.to_string()) && error.contains("-p"), "{error}");
    }
}
