//! Serves the clients of a listening socket concurrently, so that a slow client does not delay the others.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// The limit on concurrent clients. The backlog of the socket queues further clients.
pub const MOST: usize = 256;
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts clients with `accept`, which polls a listener, and runs `serve` for each in its own task. Never returns.
pub async fn serve<C, F: Future<Output = ()> + Send + 'static>(
    accept: impl Fn(&mut Context<'_>) -> Poll<io::Result<C>>,
    serve: impl Fn(C) -> F,
) {
    let free = Arc::new(Semaphore::new(MOST));
    while let Ok(permit) = Arc::clone(&free).acquire_owned().await {
        match poll_fn(&accept).await {
            Ok(client) => {
                let served = serve(client);
                tokio::spawn(async move {
                    served.await;
                    drop(permit);
                });
            }
            // The process may be out of descriptors. A client that disconnects frees one.
            Err(_) => sleep(PAUSE).await,
        }
    }
}
