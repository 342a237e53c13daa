//! The send queue of a requester: each request with its packet numbers, and the request to send next.

use crate::qp::send_queue::SendQueue;
use crate::qp::wqe::{self, Wqe};
use crate::qp::{CheckedSend, SendOperation};

/// Requests that have not completed, oldest first. The first one contains the oldest unacknowledged packet.
#[derive(Debug)]
pub(super) struct RequestQueue {
    requests: SendQueue,
    /// Index of the request that contains the next packet; the queue's length if everything is sent.
    next: u32,
    mtu: u16,
    /// All requests that were posted since the queue was last empty complete when their packets are acknowledged: none awaits an answer or
    /// is local.
    is_plain: bool,
    /// Number after the last packet of the last request.
    end: u64,
    /// Payload bytes of all requests ever posted.
    bytes: u64,
}

impl RequestQueue {
    pub(super) const fn new() -> Self {
        Self { requests: SendQueue::new(), next: 0, mtu: 256, is_plain: true, end: 0, bytes: 0 }
    }

    pub(super) const fn set_mtu(&mut self, mtu: u32) {
        self.mtu = mtu as u16;
    }

    #[inline]
    pub(super) const fn mtu(&self) -> u32 {
        self.mtu as u32
    }

    /// Resets everything except the capacity.
    pub(super) fn reset(&mut self) {
        let mut requests = core::mem::take(&mut self.requests);
        requests.clear();
        *self = Self { requests, ..Self::new() };
    }

    /// Appends a checked request. The first call allocates room for `most` requests.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers and byte counts stay far below 2^64")]
    pub(super) fn post(&mut self, checked: &mut CheckedSend, most: u32) {
        let (mtu, is_first) = (self.mtu(), self.requests.len() == 0);
        let wqe = self.requests.push(checked, most);
        let packets = match wqe.request.operation {
            SendOperation::Bind(_) | SendOperation::LocalInvalidate { .. } => 0,
            SendOperation::FetchAdd { .. }
            | SendOperation::CompareSwap { .. }
            | SendOperation::AtomicWrite { .. }
            | SendOperation::Flush { .. } => 1,
            SendOperation::Send { .. }
            | SendOperation::SendInvalidate { .. }
            | SendOperation::SendTo { .. }
            | SendOperation::Write { .. }
            | SendOperation::Read { .. } => wqe::packets(wqe.length, mtu),
        };
        let sends = wqe.begin(self.end, packets, self.bytes);
        self.is_plain = (self.is_plain || is_first) && wqe.is_plain();
        self.end += u64::from(packets);
        self.bytes += u64::from(sends);
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&Wqe> {
        self.requests.front()
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Wqe> {
        self.requests.get(index)
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Wqe> {
        self.requests.iter()
    }

    /// Returns the completed requests whose places were not reused, in any order.
    pub(super) fn forgotten(&self) -> impl Iterator<Item = &Wqe> {
        self.requests.forgotten()
    }

    #[inline]
    pub(super) fn next(&self) -> Option<&Wqe> {
        self.requests.get(self.next_index())
    }

    #[inline]
    pub(super) fn next_mut(&mut self) -> Option<&mut Wqe> {
        self.requests.get_mut(self.next as usize)
    }

    #[inline]
    pub(super) const fn next_index(&self) -> usize {
        self.next as usize
    }

    /// Advances to the next request, after all of the current one was sent, or it has run.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "there is a next request, so the sum is at most the length"
    )]
    pub(super) const fn step(&mut self) {
        self.next += 1;
    }

    pub(super) const fn rewind(&mut self) {
        self.next = 0;
    }

    /// Reduces the payload bytes to the acknowledged ones, after all requests were flushed.
    pub(super) const fn discard_unacknowledged(&mut self, acknowledged: u64) {
        self.bytes = acknowledged;
    }

    /// Makes the first request with a packet from `sent` on, or a pending local one, the next.
    pub(super) fn skip_sent(&mut self, sent: u64) {
        self.next = self.requests.partition_point(|wqe| wqe.end() <= sent && !wqe.is_pending()) as u32;
    }

    pub(super) fn index(&self, number: u64) -> usize {
        self.requests.partition_point(|wqe| wqe.end() <= number)
    }

    pub(super) fn containing(&self, number: u64) -> Option<&Wqe> {
        self.requests.get(self.index(number))
    }

    pub(super) fn range(&self, from: u64, end: u64) -> impl Iterator<Item = &Wqe> {
        self.requests.iter().skip(self.index(from)).take_while(move |wqe| wqe.first < end)
    }

    /// Returns the requests that begin before packet `end`, oldest first.
    pub(super) fn before(&self, end: u64) -> impl Iterator<Item = &Wqe> {
        self.requests.iter().take_while(move |wqe| wqe.first < end)
    }

    /// Returns the requests that end before packet `end`, oldest first in two slices, if an acknowledgement of all packets before `end`
    /// completes them; `None` if it may not.
    #[inline]
    pub(super) fn plain_before(&self, end: u64) -> Option<[&[Wqe]; 2]> {
        if !self.is_plain {
            return None;
        }
        let done = |part: &[Wqe]| part.partition_point(|wqe| wqe.end() <= end);
        let (front, back) = self.requests.parts();
        let in_front = done(front);
        let in_back = if in_front == front.len() { done(back) } else { 0 };
        Some([front.get(..in_front)?, back.get(..in_back)?])
    }

    #[inline]
    pub(super) fn forget(&mut self, done: usize) {
        self.requests.forget(done);
        self.next = self.next.saturating_sub(done as u32);
    }

    pub(super) fn pop(&mut self) -> Option<&Wqe> {
        self.next = self.next.saturating_sub(1);
        self.requests.pop()
    }

    /// Returns the payload bytes before packet `number` of the oldest request, since the start of the connection.
    #[inline]
    pub(super) fn bytes_before(&self, number: u64) -> u64 {
        self.bytes_at(0, number)
    }

    /// Returns the payload bytes before packet `number` of the next request, since the start of the connection.
    #[inline]
    pub(super) fn bytes_before_next(&self, number: u64) -> u64 {
        self.bytes_at(self.next_index(), number)
    }

    #[inline]
    fn bytes_at(&self, index: usize, number: u64) -> u64 {
        self.requests.get(index).map_or(self.bytes, |wqe| wqe.stream_at(number, self.mtu()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::qp::{Data, Remote, SendRequest};
    use crate::{Lkey, Rkey};
    use alloc::vec;
    use alloc::vec::Vec;

    /// Returns a WRITE of three packets, a READ of two, and a WRITE of one.
    pub(in super::super) fn queue() -> RequestQueue {
        let mut queue = RequestQueue::new();
        let remote = Remote { address: 0, rkey: Rkey::new(1) };
        let data = |length| Data::from(crate::qp::Sge { address: 0, length, lkey: Lkey::new(1) });
        for (request, length) in [
            (SendRequest::write(0, data(600), remote), 600),
            (SendRequest::read(1, data(300), remote), 300),
            (SendRequest::write(2, data(100), remote), 100),
        ] {
            queue.post(&mut CheckedSend { request, length }, 4);
        }
        queue
    }

    #[test]
    fn each_request_takes_its_packets_and_only_writes_count_bytes() {
        let mut queue = queue();
        assert_eq!(queue.end(), 6);
        let firsts: Vec<_> = queue.iter().map(|wqe| (wqe.first, wqe.packets)).collect();
        assert_eq!(firsts, [(0, 3), (3, 2), (5, 1)]);
        assert_eq!((queue.bytes_before(0), queue.bytes_before(2)), (0, 512));
        queue.forget(2);
        assert_eq!((queue.bytes_before(5), queue.bytes_before(6)), (600, 700));
    }

    #[test]
    fn a_packet_is_found_in_its_request() {
        let queue = queue();
        let containing = |number| queue.containing(number).map(|wqe| wqe.request.id);
        let found: Vec<_> = (0..7).map(containing).collect();
        assert_eq!(found, [Some(0), Some(0), Some(0), Some(1), Some(1), Some(2), None]);
        let ids = |from, end| queue.range(from, end).map(|wqe| wqe.request.id).collect::<Vec<_>>();
        assert_eq!((ids(2, 5), ids(3, 6), ids(0, 0)), (vec![0, 1], vec![1, 2], vec![]));
    }

    #[test]
    fn requests_are_plain_while_no_read_is_among_them() {
        let mut queue = queue();
        assert!(queue.plain_before(6).is_none());
        queue.forget(3);
        let data = Data::from(crate::qp::Sge { address: 0, length: 1, lkey: Lkey::new(1) });
        let remote = Remote { address: 0, rkey: Rkey::new(1) };
        for id in 3..7 {
            let request = SendRequest::write(id, data.clone(), remote);
            queue.post(&mut CheckedSend { request, length: 1 }, 4);
            // The queue has three places, so the last request is in the second slice.
            queue.forget(usize::from(id == 4));
        }
        let ids =
            |parts: [&[Wqe]; 2]| parts.into_iter().flatten().map(|wqe| wqe.request.id).collect::<Vec<_>>();
        let plain = |queue: &RequestQueue, end| queue.plain_before(end).map(ids);
        assert_eq!((plain(&queue, 7), plain(&queue, 9)), (Some(vec![]), Some(vec![4, 5])));
        assert_eq!(plain(&queue, 10), Some(vec![4, 5, 6]));
    }

    #[test]
    fn the_next_request_follows_sent_and_completed_requests() {
        let mut queue = queue();
        queue.step();
        queue.step();
        assert_eq!(queue.next().map(|wqe| wqe.request.id), Some(2));
        queue.forget(1);
        assert_eq!((queue.next_index(), queue.next().map(|wqe| wqe.request.id)), (1, Some(2)));
        queue.rewind();
        assert_eq!(queue.next().map(|wqe| wqe.request.id), Some(1));
        queue.skip_sent(5);
        assert_eq!(queue.next().map(|wqe| wqe.request.id), Some(2));
        queue.skip_sent(6);
        assert!(queue.next().is_none());
        queue.reset();
        assert_eq!((queue.len(), queue.end(), queue.bytes_before(0)), (0, 0, 0));
    }
}
