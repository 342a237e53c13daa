//! Keeps the send queues of all queue pairs full, and counts the completed messages.

use super::handshake::Pause;
use super::link::{BATCH, Link, blank, ended};
use super::phases::Phases;
use super::plan::Amount;
use super::rate_limit::RateLimit;
use super::series::Series;
use super::stats::{Bandwidth, Stamps};
use crate::failure::Failure;
use std::time::{Duration, Instant};
use verbs::SendRequest;
use verbs::errors::PostError;

/// The parameters of one run, which are the same for every queue pair.
#[derive(Debug)]
pub struct Run {
    /// Message size, bytes.
    pub size: u64,
    /// The end of the run.
    pub amount: Amount,
    /// The limit on outstanding requests of a queue pair.
    pub tx_depth: u32,
    /// Requests per post.
    pub post_list: u32,
    /// Requests per completion.
    pub cq_mod: u32,
    /// True to measure the peak bandwidth.
    pub peak: bool,
    /// The limit on the rate of all queue pairs.
    pub limit: Option<RateLimit>,
    /// The number of sending queue pairs over time; `None` for all of them.
    pub phases: Option<Phases>,
    /// The series of the congestion control's state, if requested.
    pub series: Option<Series>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    posted: u64,
    completed: u64,
    /// The last posted message that requests a completion, counted from 1.
    signalled: u64,
}

impl Flow {
    fn drained(self) -> bool {
        self.posted == self.completed
    }
}

/// A completion's id contains the queue pair in its top 16 bits, and the message number, from 1, in the lower bits.
const MESSAGE_BITS: u32 = 48;

/// The counted messages, and the start and end of the time in which they completed, ns.
#[derive(Debug, Default)]
struct Window {
    messages: u64,
    first: u64,
    last: u64,
}

/// A function that prints the row of an interval of an endless run.
pub type ShowInterval<'a> = dyn FnMut(&Bandwidth) -> Result<(), Failure> + 'a;

struct Driver<'a> {
    link: &'a mut Link,
    show: &'a mut ShowInterval<'a>,
    run: Run,
    templates: Vec<SendRequest>,
    flows: Vec<Flow>,
    stamps: Stamps,
    window: Window,
    origin: Instant,
}

/// Sends as `run` specifies and waits for the last completion. Calls `show` after each interval of an endless run.
///
/// # Errors
/// Returns a failure if a request is refused or fails.
pub fn send<'a>(link: &'a mut Link, run: Run, show: &'a mut ShowInterval<'a>) -> Result<Bandwidth, Failure> {
    let templates =
        (0..link.qps.len()).map(|qp| link.request(qp, run.size)).collect::<Result<Vec<_>, _>>()?;
    let flows = vec![Flow::default(); link.qps.len()];
    let stamps = match run.amount {
        Amount::Messages(each) if run.peak && each * flows.len() as u64 <= Stamps::LIMIT => {
            Stamps::with_capacity(each * flows.len() as u64)
        }
        _ => Stamps::default(),
    };
    let (window, origin) = (Window::default(), Instant::now());
    Driver { link, show, run, templates, flows, stamps, window, origin }.drive()
}

impl Driver<'_> {
    fn drive(mut self) -> Result<Bandwidth, Failure> {
        let (mut pause, mut first) = (Pause::default(), 0);
        loop {
            let now = self.now();
            let over = match self.run.amount {
                Amount::Messages(_) | Amount::Endless { .. } => false,
                Amount::Time { whole, .. } => now >= nanos(whole),
            };
            let sending = match &self.run.phases {
                Some(phases) => phases.sending(Duration::from_nanos(now)) as usize,
                None => self.flows.len(),
            };
            // Under a rate limit, the first queue pair of each turn rotates, so that the limit serves all queue pairs.
            for turn in 0..self.flows.len() {
                let qp = (first + turn) % self.flows.len();
                self.fill(qp, over || qp >= sending, now)?;
            }
            first += usize::from(self.run.limit.is_some());
            self.note(sending)?;
            self.show_interval(now)?;
            let completed = self.poll()?;
            let received = self.link.receive()?;
            if self.flows.iter().all(|flow| flow.drained() && (over || self.left(flow.posted) == 0)) {
                return self.end();
            }
            pause.after(completed + received > 0)?;
        }
    }

    fn now(&self) -> u64 {
        nanos(self.origin.elapsed())
    }

    fn note(&mut self, sending: usize) -> Result<(), Failure> {
        let Some(series) = &mut self.run.series else { return Ok(()) };
        let (flows, size) = (&self.flows, self.run.size);
        series.note(self.link, |qp| (qp < sending, flows[qp].completed * size))
    }

    fn end(mut self) -> Result<Bandwidth, Failure> {
        self.run.series.take().map_or(Ok(()), Series::end)?;
        Ok(self.result())
    }

    fn left(&self, posted: u64) -> u64 {
        match self.run.amount {
            Amount::Messages(each) => each - posted,
            Amount::Time { .. } | Amount::Endless { .. } => u64::MAX,
        }
    }

    /// Prints the interval of an endless run and begins the next one, if its time is over.
    fn show_interval(&mut self, now: u64) -> Result<(), Failure> {
        match self.run.amount {
            Amount::Endless { every } if now - self.window.first >= nanos(every) => {
                self.window.last = now;
                let row = self.result();
                (self.show)(&row)?;
                self.window = Window { messages: 0, first: now, last: now };
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of messages that the rate limit allows now.
    fn allowed(&mut self, now: u64) -> u64 {
        let Some(limit) = &mut self.run.limit else { return u64::MAX };
        limit.allowed(now, self.flows.iter().map(|flow| flow.posted).sum())
    }

    /// Posts as many requests as fit. After the end of the time, posts one more if the last requests would have no completion.
    fn fill(&mut self, qp: usize, over: bool, now: u64) -> Result<(), Failure> {
        loop {
            let flow = self.flows[qp];
            let room = u64::from(self.run.tx_depth) - (flow.posted - flow.completed);
            let wanted = match over {
                false => self.left(flow.posted).min(u64::from(self.run.post_list)),
                true => u64::from(flow.posted != flow.signalled),
            };
            if wanted == 0 || room < wanted || (!over && self.allowed(now) < wanted) {
                return Ok(());
            }
            let posted = self.post(qp, wanted, over)?;
            for _ in 0..posted {
                self.stamps.post(now);
            }
            if posted < wanted || self.run.limit.is_some() {
                return Ok(());
            }
        }
    }

    /// Posts up to `count` requests and returns how many were accepted.
    fn post(&mut self, qp: usize, count: u64, last: bool) -> Result<u64, Failure> {
        let (flow, template) = (self.flows[qp], &self.templates[qp]);
        let (every, end) = (u64::from(self.run.cq_mod), flow.posted + self.left(flow.posted).min(1 << 40));
        // If the next list does not fit, the last message of this one needs a completion. Without it, the queue would stay full.
        let list_end = flow.posted + count;
        let full = u64::from(self.run.tx_depth) - (list_end - flow.completed) < u64::from(self.run.post_list);
        let signalled = |message: u64| {
            last || message.is_multiple_of(every) || message == end || (full && message == list_end)
        };
        let requests = (flow.posted + 1..=flow.posted + count).map(|message| SendRequest {
            id: (qp as u64) << MESSAGE_BITS | message,
            signalled: signalled(message),
            ..template.clone()
        });
        let taken = match self.link.qps[qp].post_send_list(requests) {
            Ok(taken) => taken as u64,
            Err(refused) if matches!(refused.error, PostError::QueueFull { .. }) => refused.posted as u64,
            Err(refused) => return Err(Failure::run(refused.error.to_string())),
        };
        let flow = &mut self.flows[qp];
        for message in flow.posted + 1..=flow.posted + taken {
            if signalled(message) {
                flow.signalled = message;
            }
        }
        flow.posted += taken;
        Ok(taken)
    }

    fn poll(&mut self) -> Result<usize, Failure> {
        let mut batch = [blank(self.link.qps[0].qpn()); BATCH];
        let count = self.link.send_cq.poll(&mut batch).map_err(|error| Failure::run(error.to_string()))?;
        if count == 0 {
            return Ok(0);
        }
        let now = self.now();
        for completion in &batch[..count] {
            ended(completion)?;
            let (qp, message) =
                ((completion.id >> MESSAGE_BITS) as usize, completion.id & ((1 << MESSAGE_BITS) - 1));
            let new = message - self.flows[qp].completed;
            self.flows[qp].completed = message;
            self.count(new, now);
        }
        let total = self.flows.iter().map(|flow| flow.completed).sum();
        self.stamps.complete(total, now);
        Ok(count)
    }

    fn count(&mut self, messages: u64, now: u64) {
        match self.run.amount {
            Amount::Messages(_) | Amount::Endless { .. } => {
                self.window.messages += messages;
                self.window.last = now;
            }
            Amount::Time { whole, margin } => {
                let (from, to) = (nanos(margin), nanos(whole - margin));
                if now >= from && now < to {
                    self.window.messages += messages;
                }
                (self.window.first, self.window.last) = (from, to);
            }
        }
    }

    fn result(&self) -> Bandwidth {
        let Window { messages, first, last } = self.window;
        let bandwidth = Bandwidth::over(self.run.size, messages, last - first);
        Bandwidth { peak: self.stamps.peak(self.run.size, self.run.post_list as usize), ..bandwidth }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
