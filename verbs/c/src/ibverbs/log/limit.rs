//! Limits the number of lines from one place in the code, because peers and neighbours can cause any number of them.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Maximum number of lines from one place in the code in one [`PERIOD`].
const MOST: u32 = 20;
/// Short enough that suppressed lines are soon reported. Together with [`MOST`], allows 2 lines a second.
const PERIOD: Duration = Duration::from_secs(10);

/// Suppresses further lines from a place in the code after [`MOST`] of them in a [`PERIOD`].
#[derive(Default)]
pub(super) struct Limit {
    places: Mutex<HashMap<Identifier, Place>>,
}

/// The number of lines from one place in the code since `began`.
struct Place {
    began: Instant,
    lines: u32,
    left_out: u64,
}

impl Place {
    fn new(now: Instant) -> Self {
        Self { began: now, lines: 0, left_out: 0 }
    }

    /// Counts a line. Returns the number of earlier suppressed lines to report with it, or `None` if the line is suppressed.
    fn admits(&mut self, now: Instant) -> Option<u64> {
        let mut unreported = 0;
        if now.duration_since(self.began) >= PERIOD {
            unreported = self.left_out;
            *self = Self::new(now);
        }
        if self.lines >= MOST {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(unreported)
    }
}

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let (now, place) = (Instant::now(), event.metadata().callsite());
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = places.entry(place).or_insert_with(|| Place::new(now)).admits(now);
        drop(places);
        if let Some(left_out @ 1..) = admitted {
            // A program may have closed its standard error.
            let _ = writeln!(io::stderr(), "{left_out} lines like the next were suppressed");
        }
        admitted.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tracing_subscriber::fmt;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn a_flood_is_a_few_lines_and_a_count() {
        let now = Instant::now();
        let mut place = Place::new(now);
        let logged = |place: &mut Place, at| (0..57_520).filter(|_| place.admits(at).is_some()).count();
        assert_eq!(logged(&mut place, now), MOST as usize);
        let later = now + PERIOD;
        assert_eq!(place.admits(later), Some(57_520 - u64::from(MOST)));
        assert_eq!(place.admits(later), Some(0));
        assert_eq!(logged(&mut place, later), MOST as usize - 2);
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_flood_from_one_place_leaves_room_for_others() {
        let lines = Lines::default();
        let written = lines.clone();
        let layer = fmt::layer().with_ansi(false).with_writer(move || written.clone());
        let log = tracing_subscriber::registry().with(Limit::default()).with(layer);
        tracing::subscriber::with_default(log, || {
            for n in 0..1000 {
                tracing::warn!("peer {n} is not there");
            }
            tracing::warn!("another cause");
        });
        let lines = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(lines.lines().filter(|line| line.contains("is not there")).count(), MOST as usize);
        assert!(lines.contains("another cause"));
    }
}
