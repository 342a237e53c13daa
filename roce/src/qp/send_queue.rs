//! The send requests of a queue pair, oldest first, in a circular buffer. No request is moved, and all requests that one acknowledgement
//! completes are removed at once.

use super::wqe::Wqe;
use super::{CheckedSend, Data, SendRequest};
use alloc::vec::Vec;
use core::mem;
use core::ops::Index;

#[derive(Debug, Default)]
pub(super) struct SendQueue {
    /// Circular buffer, as long as the longest queue so far. The memory of a removed request is freed when its place is reused.
    places: Vec<Wqe>,
    first: u32,
    len: u32,
}

impl SendQueue {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), first: 0, len: 0 }
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the place of the request after `index` others.
    #[inline]
    const fn place(&self, index: usize) -> usize {
        let place = self.first as usize + index;
        if place < self.places.len() { place } else { place - self.places.len() }
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Wqe> {
        if index < self.len() { self.places.get(self.place(index)) } else { None }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Wqe> {
        let place = self.place(index);
        if index < self.len() { self.places.get_mut(place) } else { None }
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&Wqe> {
        self.get(0)
    }

    /// Returns the requests in two slices, oldest first.
    #[inline]
    pub(super) fn parts(&self) -> (&[Wqe], &[Wqe]) {
        let (behind, from) = self.places.split_at(self.first as usize);
        let in_front = self.len().min(from.len());
        (&from[..in_front], &behind[..self.len() - in_front])
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Wqe> {
        let (front, back) = self.parts();
        front.iter().chain(back)
    }

    /// Returns the removed requests whose places were not reused, in any order.
    pub(super) fn forgotten(&self) -> impl Iterator<Item = &Wqe> {
        let (first, len, places) = (self.first as usize, self.len(), self.places.len());
        let is_free = move |place: usize| (place + places - first) % places.max(1) >= len;
        self.places.iter().enumerate().filter(move |&(place, _)| is_free(place)).map(|(_, wqe)| wqe)
    }

    /// Returns how many requests satisfy `is_before`. Those that satisfy it must precede those that do not.
    pub(super) fn partition_point(&self, is_before: impl Fn(&Wqe) -> bool) -> usize {
        let (front, back) = self.parts();
        match back.first() {
            Some(first) if is_before(first) => front.len() + back.partition_point(is_before),
            _ => front.partition_point(is_before),
        }
    }

    /// Appends a request, and returns it. Only the memory that the request owns is moved out of `checked`. The first call allocates room
    /// for `most` requests, because many queue pairs never send.
    #[inline]
    pub(super) fn push(&mut self, checked: &mut CheckedSend, most: u32) -> &mut Wqe {
        if self.len() == self.places.len() {
            self.grow(most);
        }
        let place = self.place(self.len());
        self.len += 1;
        let wqe = &mut self.places[place];
        let CheckedSend { request, length } = checked;
        let SendRequest { id, operation, data, signalled, solicited, fence, srq } = request;
        wqe.request.id = *id;
        wqe.request.operation = *operation;
        wqe.request.signalled = *signalled;
        wqe.request.solicited = *solicited;
        wqe.request.fence = *fence;
        wqe.request.srq = *srq;
        // Nearly all requests have one buffer: the room for others is not moved.
        if let Data::Buffers(buffers) = data
            && let [only] = **buffers
        {
            wqe.request.data = Data::from(only);
        } else {
            mem::swap(&mut wqe.request.data, data);
        }
        wqe.length = *length;
        wqe
    }

    #[cold]
    fn grow(&mut self, most: u32) {
        if self.places.capacity() == 0 {
            self.places.reserve_exact(most as usize);
        }
        self.places.rotate_left(self.first as usize);
        self.first = 0;
        self.places.push(Wqe::new());
    }

    #[inline]
    pub(super) fn forget(&mut self, count: usize) {
        let count = count.min(self.len());
        self.first = self.place(count) as u32;
        self.len -= count as u32;
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<&Wqe> {
        let place = self.place(0);
        self.len = self.len.checked_sub(1)?;
        self.first = self.place(1) as u32;
        self.places.get(place)
    }

    /// Removes all requests, and frees their memory. The capacity of the queue stays.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        (self.first, self.len) = (0, 0);
    }
}

impl Index<usize> for SendQueue {
    type Output = Wqe;

    #[inline]
    fn index(&self, index: usize) -> &Wqe {
        &self.places[self.place(index)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rkey;
    use crate::qp::Remote;
    use alloc::collections::VecDeque;

    fn push(queue: &mut SendQueue, id: u64) {
        let remote = Remote { address: 0, rkey: Rkey::new(1) };
        // Every third request owns memory.
        let data = Data::inline(&[id as u8; 100][..if id.is_multiple_of(3) { 100 } else { 8 }]);
        let mut checked = CheckedSend { request: SendRequest::write(id, data.clone(), remote), length: 0 };
        let wqe = queue.push(&mut checked, 16);
        assert_eq!((wqe.request.id, &wqe.request.data), (id, &data));
    }

    #[test]
    fn the_queue_keeps_its_order_at_any_size() {
        let (mut queue, mut model) = (SendQueue::new(), VecDeque::new());
        let mut next = 0;
        // At most 16 requests at a time.
        for step in 0_u64..4000 {
            let into = (step * 7919 % 17) as usize;
            while model.len() < into {
                push(&mut queue, next);
                model.push_back(next);
                next += 1;
            }
            let out = (step * 104_729 % 5) as usize;
            if out == 4 {
                assert_eq!(queue.pop().map(|wqe| wqe.request.id), model.pop_front());
            } else {
                queue.forget(out);
                model.drain(..out.min(model.len()));
            }
            assert!(queue.iter().map(|wqe| wqe.request.id).eq(model.iter().copied()));
            assert_eq!(queue.len(), model.len());
            assert!(queue.places.capacity() <= 16, "no more than was asked for");
            for index in 0..=model.len() {
                assert_eq!(queue.get(index).map(|wqe| wqe.request.id), model.get(index).copied());
                assert_eq!(queue.get_mut(index).map(|wqe| wqe.request.id), model.get(index).copied());
                let limit = model.get(index).copied().unwrap_or(next);
                assert_eq!(queue.partition_point(|wqe| wqe.request.id < limit), index);
            }
        }
        queue.clear();
        assert!(queue.front().is_none() && queue.pop().is_none() && queue.iter().next().is_none());
    }
}
