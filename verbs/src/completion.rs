//! Completion queues: polling, resizing and waiting.

use crate::device::Inner;
use crate::errors::PollError;
use crate::fault::{self, Verb};
use crate::{Completion, Error};
use datapath::engine::{CoreSet, CoreState, CqRing, Notifier, Stopped};
use roce::{CqId, Qpn};
use std::sync::Arc;

/// Empty polls after which [`CompletionQueue::wait`] yields the CPU between polls.
const SPINS: u32 = 64;

/// Successive polls that may return completions without running an inline core. The limit keeps the core running for a caller that polls
/// one completion at a time.
const POLLS_WITHOUT_TURN: u8 = 16;

/// A completion queue. Only one thread may poll it at a time.
///
/// ```no_run
/// # use ferroce_verbs::Device;
/// # fn take(device: &Device) -> Result<(), Box<dyn std::error::Error>> {
/// let mut completions = device.create_cq(128)?;
/// // ok() turns a failed request into an error, which names the request, the reason and the remedy.
/// let completion = completions.wait()?.ok()?;
/// println!("request {} has ended", completion.id);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CompletionQueue {
    /// The ring of core 0.
    ring: CqRing,
    /// The rings of the other cores.
    others: Box<[CqRing]>,
    /// Core whose completions the next poll returns first, if there are several cores.
    first: usize,
    without_turn: u8,
    pub(crate) notifier: Option<Arc<Notifier>>,
    pub(crate) handle: Arc<CqHandle>,
}

/// Reference to the queue in the cores. The cores destroy the queue when the last reference is dropped.
#[derive(Debug)]
pub(crate) struct CqHandle {
    pub(crate) device: Arc<Inner>,
    pub(crate) id: CqId,
    /// The cores with queue pairs that complete to it.
    pub(crate) producer_cores: CoreSet,
}

impl CompletionQueue {
    pub(crate) fn new(device: Arc<Inner>, depth: u32) -> Result<Self, Error> {
        let limit = device.info.limits.max_cq_depth;
        if !(1..=limit).contains(&depth) {
            return Err(Error::value("completion queue depth", depth, format!("1 to {limit}")));
        }
        let created = device.engine.call_all(move |state, _| state.create_cq(depth))?;
        let created = created.into_iter().collect::<Result<Vec<_>, _>>()?;
        let id = created[0].0;
        debug_assert!(created.iter().all(|(other, _)| *other == id), "cores agree on numbers");
        let mut rings = created.into_iter().map(|(_, ring)| ring);
        let ring = rings.next().expect("core 0 answers");
        let handle = Arc::new(CqHandle { device, id, producer_cores: CoreSet::default() });
        Ok(Self { ring, others: rings.collect(), first: 0, without_turn: 0, notifier: None, handle })
    }

    fn ring_of(&mut self, core: usize) -> &mut CqRing {
        core.checked_sub(1).map_or(&mut self.ring, |other| &mut self.others[other])
    }

    /// Removes completions from the rings of all cores. Each call starts with another core.
    fn pop_in_turn(&mut self, most: usize, take: &mut impl FnMut(&Completion)) -> usize {
        let cores = 1 + self.others.len();
        let mut found = 0;
        for place in 0..cores {
            let core = (self.first + place) % cores;
            found += self.ring_of(core).pop_each(most - found, take);
            if found == most {
                break;
            }
        }
        self.first = (self.first + 1) % cores;
        found
    }

    pub(crate) fn handle(&self) -> &Arc<CqHandle> {
        &self.handle
    }

    /// Moves up to `into.len()` completions into `into`, oldest first, and returns their number. Never waits. If
    /// there are none, an inline core runs one turn first.
    ///
    /// # Errors
    /// Returns an error if the queue overflowed or the core has stopped, once all earlier completions are polled.
    pub fn poll(&mut self, into: &mut [Completion]) -> Result<usize, PollError> {
        let most = into.len();
        let mut free = into.iter_mut();
        self.poll_each(most, |completion| {
            if let Some(free) = free.next() {
                *free = *completion;
            }
        })
    }

    /// Passes up to `most` completions to `take`, oldest first, and returns their number. Afterwards, their work queues have room for new
    /// requests. Is otherwise like [`poll`](Self::poll).
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    #[inline]
    pub fn poll_each(&mut self, most: usize, mut take: impl FnMut(&Completion)) -> Result<usize, PollError> {
        fault::check_call::<PollError>(Verb::PollCq)?;
        if !self.others.is_empty() {
            return self.poll_several(most, &mut take);
        }
        let mut found = self.ring.pop_each(most, &mut take);
        if found > 0 && self.without_turn < POLLS_WITHOUT_TURN {
            self.without_turn += 1;
            return Ok(found);
        }
        self.without_turn = 0;
        if self.handle.device.engine.progress_main() {
            found += self.ring.pop_each(most - found, &mut take);
        }
        if found == 0
            && most > 0
            && let Err(error) = self.check()
        {
            return self.poll_last(most, &mut take, error);
        }
        Ok(found)
    }

    /// Implements [`poll_each`](Self::poll_each) for several cores.
    #[inline(never)]
    fn poll_several(&mut self, most: usize, take: &mut impl FnMut(&Completion)) -> Result<usize, PollError> {
        let mut found = self.pop_in_turn(most, take);
        if found > 0 && self.without_turn < POLLS_WITHOUT_TURN {
            self.without_turn += 1;
            return Ok(found);
        }
        self.without_turn = 0;
        if self.handle.device.engine.progress_of(&self.handle.producer_cores) {
            found += self.pop_in_turn(most - found, take);
        }
        if found > 0 || most == 0 {
            return Ok(found);
        }
        let overflowed = self.others.iter().any(CqRing::overflowed);
        let depth = self.ring.depth();
        let ended = if overflowed { Err(PollError::Overflow { depth }) } else { self.check() };
        ended.map_or_else(|error| self.poll_last(most, take, error), |()| Ok(0))
    }

    /// Polls once more, and returns `error` if there is no completion: a core delivers all completions before it reports that it has
    /// stopped.
    #[cold]
    fn poll_last(
        &mut self,
        most: usize,
        take: &mut impl FnMut(&Completion),
        error: PollError,
    ) -> Result<usize, PollError> {
        match self.pop_in_turn(most, take) {
            0 => Err(error),
            found => Ok(found),
        }
    }

    /// Returns the next completion, if there is one.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn poll_one(&mut self) -> Result<Option<Completion>, PollError> {
        let mut next = None;
        self.poll_each(1, |completion| next = Some(*completion))?;
        Ok(next)
    }

    /// Returns an error if no more completions will arrive.
    #[inline]
    fn check(&self) -> Result<(), PollError> {
        if self.ring.overflowed() {
            return Err(PollError::Overflow { depth: self.ring.depth() });
        }
        self.handle.device.engine.check().map_err(core_stopped)
    }

    /// Polls until there is a completion. After 64 empty polls, yields the CPU between polls.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn wait(&mut self) -> Result<Completion, PollError> {
        let mut polls = 0_u32;
        loop {
            if let Some(completion) = self.poll_one()? {
                return Ok(completion);
            }
            polls = polls.saturating_add(1);
            if polls < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Changes the depth to 1 to [`max_cq_depth`](crate::port::DeviceLimits::max_cq_depth) completions. Queued completions are kept.
    ///
    /// # Errors
    /// Returns an error if a limit is exceeded, if the queued completions and those of posted sends would not fit, or if the core has
    /// stopped.
    pub fn resize(&mut self, depth: u32) -> Result<(), Error> {
        let limit = self.handle.device.info.limits.max_cq_depth;
        if !(1..=limit).contains(&depth) {
            return Err(Error::value("completion queue depth", depth, format!("1 to {limit}")));
        }
        let before = self.ring.depth();
        for core in 0..=self.others.len() {
            if let Err(error) = self.resize_on(core, depth) {
                // Only a lower depth is refused, so restoring the earlier depth succeeds.
                (0..core).try_for_each(|core| self.resize_on(core, before))?;
                return Err(error);
            }
        }
        Ok(())
    }

    fn resize_on(&mut self, core: usize, depth: u32) -> Result<(), Error> {
        let (id, ring) = (self.handle.id, self.ring_of(core).take());
        let resize = move |state: &mut CoreState, _| state.resize_cq(id, ring, depth);
        let (ring, resized) = self.handle.device.engine.call_on(core, resize)?;
        *self.ring_of(core) = ring;
        Ok(resized?)
    }

    /// Removes the completions of one queue pair, for example after a reset.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn discard(&mut self, qpn: Qpn) -> Result<(), Error> {
        let core = self.handle.device.engine.core_of(qpn);
        let (id, ring) = (self.handle.id, self.ring_of(core).take());
        let call = move |state: &mut CoreState, _| state.discard_completions(id, ring, qpn);
        *self.ring_of(core) = self.handle.device.engine.call_on(core, call)?;
        Ok(())
    }

    /// Returns the queue's number in the device.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.handle.id
    }

    /// Returns the depth in completions.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.ring.depth()
    }
}

#[cold]
fn core_stopped(stopped: Stopped) -> PollError {
    PollError::CoreStopped(stopped.to_string())
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.unbind_channel();
    }
}

impl Drop for CqHandle {
    fn drop(&mut self) {
        let id = self.id;
        // A stopped core has no queues left. No queue pair uses it, because each has a handle.
        let _ = self.device.engine.call_all(move |state, _| state.destroy_cq(id));
    }
}
