//! The HTTP server of `ferroce metrics --listen`: `GET /metrics`, one connection at a time.

use super::collect;
use crate::failure::Failure;
use crate::signals;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The time that a client may take to ask, and to read.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request that is read.
const LONGEST: usize = 8192;
/// Between two looks at whether a connection or a signal came.
const LOOK: Duration = Duration::from_millis(50);

/// The type of the exposition (OpenMetrics 1.0).
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until a signal comes.
///
/// # Errors
/// Returns a failure if the address is in use or not of this host.
pub fn run(address: SocketAddr) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::run(format!("--listen {address}: {error}; choose a free port of an address of this host"))
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    signals::listen()?;
    note!("serving http://{}/metrics", listener.local_addr().map_err(failed)?);
    loop {
        match listener.accept() {
            // A client's error ends only its own connection.
            Ok((stream, _)) => _ = answer(stream),
            Err(_) => std::thread::sleep(LOOK),
        }
        signals::check()?;
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read_head(&mut stream)?;
    let (status, kind, body) = respond(&request);
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let (end, mut head, mut part) = (Instant::now() + PATIENCE, Vec::new(), [0; 1024]);
    while !head.windows(4).any(|window| window == b"\r\n\r\n") && head.len() < LONGEST {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(read) => head.extend_from_slice(&part[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
        if Instant::now() > end {
            return Err(ErrorKind::TimedOut.into());
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn respond(request: &str) -> (&'static str, &'static str, String) {
    let mut words = request.split_whitespace();
    match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => ("200 OK", TYPE, collect()),
        (Some("GET"), _) => ("404 Not Found", "text/plain", "metrics are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", "text/plain", "use GET /metrics\n".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metrics_are_served() {
        assert_eq!(respond("GET /metrics HTTP/1.1\r\n").0, "200 OK");
        assert_eq!(respond("GET / HTTP/1.1\r\n").0, "404 Not Found");
        assert_eq!(respond("POST /metrics HTTP/1.1\r\n").0, "405 Method Not Allowed");
        assert_eq!(respond("").0, "405 Method Not Allowed");
    }
}
