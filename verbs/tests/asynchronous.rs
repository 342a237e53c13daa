//! Completions and connections that tasks await. None is lost when a future is dropped before it is ready.

use crate::common::*;
use ferroce_verbs::cm::{self, Connection, Listener, Options};
use ferroce_verbs::{
    Capabilities, Completions, Device, Error, Progress, QueuePair, RecvRequest, SendRequest,
};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;

const MODES: [Progress; 3] = [Progress::Dedicated { core: None }, Progress::Adaptive, Progress::Inline];

async fn once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

fn new(device: &Device) -> QueuePair {
    side(device, 4096, Capabilities::default(), 64).qp
}

fn address() -> SocketAddr {
    "10.0.0.1:7471".parse().unwrap()
}

#[tokio::test]
async fn a_completion_outlives_the_futures_that_waited_for_it() {
    for mode in MODES {
        let (mut a, b) = connected(mode, 4096);
        let Side { mut qp, recv_cq, region, .. } = b;
        let mut received = Completions::new(recv_cq).unwrap();
        let mut sent = Completions::new(a.send_cq).unwrap();
        for id in 0..50 {
            assert!(once(received.next()).await.is_none(), "{mode:?}: nothing was sent");
            qp.post_recv(RecvRequest::new(id, region.sge(0, 64).unwrap())).unwrap();
            a.qp.post_send(SendRequest::send(id, a.region.sge(0, 8).unwrap())).unwrap();
            // The completion may or may not have arrived when this future is dropped.
            let early = once(received.next()).await;
            let (sent, received) = tokio::join!(sent.next(), async {
                if let Some(early) = early { early } else { received.next().await }
            });
            for completion in [sent, received] {
                assert_eq!(completion.unwrap().ok().unwrap().id, id, "{mode:?}");
            }
        }
    }
}

async fn pair_of(mode: Progress) -> (Connection, Connection, [Device; 2]) {
    let [server, client] = devices(mode);
    let listener = Listener::bind(&server, address()).unwrap();
    assert!(once(listener.accept_async()).await.is_none(), "no one has asked");
    let (there, here) = (new(&server), new(&client));
    let options = Options::new().private_data(b"words");
    let serve = async {
        let request = listener.accept_async().await.unwrap();
        assert!(request.private_data().starts_with(b"words"));
        request.accept_async(there, &options).await.unwrap()
    };
    let (theirs, ours) = tokio::join!(serve, cm::connect_async(here, address(), &options));
    (theirs, ours.unwrap(), [server, client])
}

#[tokio::test]
async fn the_end_of_a_connection_is_awaited_again_after_a_future_was_dropped() {
    for mode in MODES {
        let (mut theirs, mut ours, _devices) = pair_of(mode).await;
        assert!(once(theirs.wait_end_async()).await.is_none(), "{mode:?}");
        // The first poll sends the DREQ; the next call awaits the answer.
        let _ = once(ours.disconnect_async()).await;
        let (there, here) = tokio::join!(theirs.wait_end_async(), ours.disconnect_async());
        there.and(here).unwrap();
        assert!(theirs.has_ended().unwrap() && ours.has_ended().unwrap(), "{mode:?}");
    }
}

#[tokio::test]
async fn a_request_outlives_the_futures_that_waited_for_it() {
    for mode in MODES {
        let [server, client] = devices(mode);
        let listener = Listener::bind(&server, address()).unwrap();
        let qp = new(&client);
        let options = Options::default();
        let mut asks = pin!(cm::connect_async(qp, address(), &options));
        for _ in 0..10 {
            assert!(once(asks.as_mut()).await.is_none());
            if let Some(request) = once(listener.accept_async()).await {
                // Dropping a request rejects it.
                drop(request);
                break;
            }
        }
        // Waits for the request, unless it was dropped above.
        let refuse = async { listener.accept_async().await.map(drop) };
        let error = tokio::select! {
            biased;
            outcome = asks.as_mut() => outcome.unwrap_err(),
            refused = refuse => { refused.unwrap(); asks.await.unwrap_err() }
        };
        assert!(matches!(error, Error::Rejected { reason: 28, .. }), "{mode:?}: {error}");
    }
}

#[tokio::test]
async fn dropping_a_connect_future_ends_the_request_at_the_peer() {
    let [server, client] = devices(Progress::Adaptive);
    let listener = Listener::bind(&server, address()).unwrap();
    let options = Options::default();
    let request = {
        let asks = cm::connect_async(new(&client), address(), &options);
        tokio::select! {
            biased;
            request = listener.accept_async() => request.unwrap(),
            _ = asks => panic!("no one has accepted"),
        }
    };
    // Fails at once if the peer's message has arrived, or else as soon as it arrives.
    let error = request.accept_async(new(&server), &options).await.unwrap_err();
    assert!(matches!(error, Error::Ended { .. } | Error::Rejected { reason: 4, .. }), "{error}");
}

/// A multi-threaded runtime moves tasks between threads, so each future must be `Send`.
#[tokio::test]
async fn the_futures_of_the_crate_are_send() {
    fn movable<T: Send>(future: T) -> T {
        future
    }
    let (mut theirs, mut ours, [server, client]) = pair_of(Progress::Adaptive).await;
    let listener = Listener::bind(&server, "10.0.0.1:0".parse().unwrap()).unwrap();
    let mut completions = Completions::new(client.create_cq(4).unwrap()).unwrap();
    let options = Options::default();
    drop(movable(completions.next()));
    drop(movable(listener.accept_async()));
    drop(movable(cm::connect_async(new(&client), address(), &options)));
    drop(movable(theirs.wait_end_async()));
    movable(ours.disconnect_async()).await.unwrap();
}
