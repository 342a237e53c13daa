//! The HTTP server of `ferroce metrics --listen`: serves `GET /metrics` to several clients concurrently.

use super::collect;
use crate::failure::Failure;
use crate::{clients, signals};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// The time limit for a request's header.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time limit for a connection: request, reports of the processes, and response.
const LONGEST: Duration = Duration::from_secs(15);
/// The interval between checks for a signal.
const LOOK: Duration = Duration::from_millis(50);

const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves the metrics until a signal arrives.
///
/// # Errors
/// Returns a failure if the address is in use or does not belong to this host.
pub fn run(address: SocketAddr) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::run(format!("--listen {address}: {error}; choose a free port of an address of this host"))
    };
    signals::listen()?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        note!("serving http://{}/metrics", listener.local_addr().map_err(failed)?);
        tokio::spawn(accept(listener, PATIENCE));
        while signals::check().is_ok() {
            sleep(LOOK).await;
        }
        Ok(())
    })?;
    // Does not wait for reads of processes in progress, which may take seconds.
    runtime.shutdown_background();
    Ok(())
}

/// Serves the clients of `listener`. `patience` is the time limit for a request's header.
async fn accept(listener: TcpListener, patience: Duration) {
    let turn = Arc::new(Mutex::new(()));
    let serve = |(stream, _)| serve(stream, patience, Arc::clone(&turn));
    clients::serve(|context| listener.poll_accept(context), serve).await;
}

/// Serves one request. An error ends only this connection.
async fn serve(stream: TcpStream, patience: Duration, turn: Arc<Mutex<()>>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let turn = Arc::clone(&turn);
        async move { Ok::<_, Infallible>(respond(request.method(), request.uri().path(), &turn).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(patience).keep_alive(false);
    let _ = timeout(LONGEST, server.serve_connection(TokioIo::new(stream), service)).await;
}

/// Answers a request. `turn` serialises the reads of the processes.
async fn respond(method: &Method, path: &str, turn: &Mutex<()>) -> Response<Full<Bytes>> {
    let text = |status, text: &'static str| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        response
    };
    if path != "/metrics" {
        return text(StatusCode::NOT_FOUND, "metrics are at /metrics\n");
    }
    if method != Method::GET && method != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "use GET /metrics\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let _turn = turn.lock().await;
    let Ok(metrics) = spawn_blocking(collect).await else {
        return text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the processes could not be read; see the server's log\n",
        );
    };
    let mut response = Response::new(Full::from(metrics));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TYPE));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::{net, thread};

    /// A server that runs until the test process exits.
    struct Server(SocketAddr);

    impl Server {
        fn new(patience: Duration) -> Self {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
            let address = listener.local_addr().unwrap();
            thread::spawn(move || runtime.block_on(accept(listener, patience)));
            Self(address)
        }

        fn connect(&self) -> net::TcpStream {
            net::TcpStream::connect(self.0).unwrap()
        }

        fn answer(&self, request: &str) -> String {
            let (mut client, mut answer) = (self.connect(), Vec::new());
            client.write_all(request.as_bytes()).unwrap();
            // If the read fails, the bytes received so far are the answer.
            let _ = client.read_to_end(&mut answer);
            String::from_utf8(answer).unwrap()
        }
    }

    const FOR_EVER: Duration = Duration::from_secs(3600);

    #[test]
    fn only_metrics_are_served() {
        let server = Server::new(FOR_EVER);
        for (request, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK"),
            ("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK"),
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404 Not Found"),
            ("POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "405 Method Not Allowed"),
            ("metrics, please\r\n\r\n", "400 Bad Request"),
        ] {
            let answer = server.answer(request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {answer}");
            assert_eq!(answer.contains("# EOF"), request.starts_with("GET /metrics"), "{request}: {answer}");
        }
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(1 << 20));
        assert!(!server.answer(&long).contains("200 OK"));
    }

    #[test]
    fn idle_clients_do_not_delay_others() {
        let server = Server::new(FOR_EVER);
        let _idle: Vec<_> = (1..clients::MOST).map(|_| server.connect()).collect();
        assert!(server.answer("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").contains("# EOF"));
    }

    #[test]
    fn a_client_that_sends_no_request_in_time_is_disconnected() {
        let server = Server::new(Duration::from_millis(1));
        assert_eq!(server.answer("GET /metrics HTTP/1.1\r\n"), "");
    }
}
