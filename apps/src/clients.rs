//! Serves the clients of a socket side by side, so that a slow one delays no other.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// Clients that are served at once; others wait in the socket's backlog.
pub const MOST: usize = 256;
/// The pause after a client could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts clients by `accept`, the `poll_accept` of a listener, and runs `serve` for each. Runs until it is dropped.
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
            // The process may have no descriptor left. Clients that leave return theirs.
            Err(_) => sleep(PAUSE).await,
        }
    }
}
