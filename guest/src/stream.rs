//! One request and what flows for it: credit in both directions, its input, its end. Shared by the loop and the file workers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::frames::{self, INITIAL_CREDIT, INPUT, Kind, MAX_DATA};
use crate::messages::{self, Code, Failure};
use crate::outbox::Outbox;

/// Input credit is given back in portions of this size.
const PORTION: usize = INITIAL_CREDIT / 4;

pub struct Stream {
    id: u32,
    pub outbox: Arc<Outbox>,
    ended: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// What may still be sent on each channel.
    credit: [usize; 3],
    /// What the host may still send.
    granted: usize,
    /// Consumed since the last grant.
    consumed: usize,
    input: VecDeque<Vec<u8>>,
    input_ended: bool,
    cancelled: bool,
}

impl Stream {
    pub fn new(id: u32, outbox: Arc<Outbox>) -> Self {
        let state = State {
            credit: [INITIAL_CREDIT; 3],
            granted: INITIAL_CREDIT,
            consumed: 0,
            input: VecDeque::new(),
            input_ended: false,
            cancelled: false,
        };
        Self {
            id,
            outbox,
            ended: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The frame that ends the stream with success.
    pub fn response<T: Serialize>(&self, message: &T) -> Vec<u8> {
        self.ended.store(true, Ordering::Release);
        frames::encode(Kind::Response, self.id, &messages::encode(message))
    }

    /// The frame that ends the stream with a failure.
    pub fn failure(&self, failure: &Failure) -> Vec<u8> {
        self.ended.store(true, Ordering::Release);
        frames::encode(Kind::Error, self.id, &messages::encode(failure))
    }

    /// Queues the successful end.
    pub fn respond<T: Serialize>(&self, message: &T) {
        self.outbox.push(self.response(message));
    }

    /// Queues the failed end.
    pub fn fail(&self, failure: &Failure) {
        self.outbox.push(self.failure(failure));
    }

    /// Queues something that happened before the end.
    pub fn event<T: Serialize>(&self, message: &T) {
        self.outbox.push(self.event_frame(message));
    }

    pub fn event_frame<T: Serialize>(&self, message: &T) -> Vec<u8> {
        frames::encode(Kind::Event, self.id, &messages::encode(message))
    }

    /// Queues the end of a channel.
    pub fn end_channel(&self, channel: u8) {
        self.outbox
            .push(frames::encode(Kind::End, self.id, &[channel]));
    }

    /// How much may be sent on a channel now.
    pub fn credit(&self, channel: u8) -> usize {
        self.lock().credit[usize::from(channel)]
    }

    /// The host is ready for more.
    pub fn add_credit(&self, channel: u8, amount: u32) {
        let mut state = self.lock();
        let credit = &mut state.credit[usize::from(channel)];
        *credit = credit.saturating_add(amount as usize);
        self.changed.notify_all();
    }

    /// Completes a buffer of `Outbox::buffer` to a `DATA` frame and spends its credit.
    pub fn data(&self, channel: u8, mut buffer: Vec<u8>) -> Vec<u8> {
        let size = buffer.len() - frames::DATA_HEADER;
        buffer[..frames::DATA_HEADER].copy_from_slice(&frames::data_header(self.id, channel, size));
        let mut state = self.lock();
        let credit = &mut state.credit[usize::from(channel)];
        *credit = credit.saturating_sub(size);
        buffer
    }

    /// Queues `bytes` as `DATA`; the caller has checked the credit.
    pub fn push_data(&self, channel: u8, bytes: &[u8]) {
        for chunk in bytes.chunks(MAX_DATA) {
            let mut buffer = self.outbox.buffer(chunk.len());
            buffer.extend_from_slice(chunk);
            self.outbox.push(self.data(channel, buffer));
        }
    }

    /// From a worker: waits until something may be sent on a channel.
    pub fn wait_for_credit(&self, channel: u8) -> Result<usize, Failure> {
        let mut state = self.lock();
        loop {
            if state.cancelled {
                return Err(cancelled());
            }
            match state.credit[usize::from(channel)] {
                0 => {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                credit => return Ok(credit),
            }
        }
    }

    /// The host sends `size` bytes of input; false when it was not granted that much.
    pub fn spend(&self, size: usize) -> bool {
        let mut state = self.lock();
        match state.granted.checked_sub(size) {
            Some(rest) => {
                state.granted = rest;
                true
            }
            None => false,
        }
    }

    /// Keeps input for a worker.
    pub fn put_input(&self, bytes: &[u8]) {
        let mut state = self.lock();
        match state.input.back_mut() {
            Some(last) if last.len() + bytes.len() <= MAX_DATA => last.extend_from_slice(bytes),
            _ => state.input.push_back(bytes.to_vec()),
        }
        drop(state);
        self.changed.notify_all();
    }

    pub fn end_input(&self) {
        self.lock().input_ended = true;
        self.changed.notify_all();
    }

    /// From a worker: the next piece of input, nothing at its end.
    pub fn wait_for_input(&self) -> Result<Option<Vec<u8>>, Failure> {
        let mut state = self.lock();
        loop {
            if state.cancelled {
                return Err(cancelled());
            }
            if let Some(bytes) = state.input.pop_front() {
                return Ok(Some(bytes));
            }
            if state.input_ended {
                return Ok(None);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives back credit for `size` bytes of input that are used up: a `CREDIT` frame when enough have gathered.
    pub fn consume(&self, size: usize) -> Option<Vec<u8>> {
        let mut state = self.lock();
        state.consumed += size;
        if state.consumed < PORTION || state.input_ended {
            return None;
        }
        let amount = std::mem::take(&mut state.consumed);
        state.granted += amount;
        u32::try_from(amount)
            .ok()
            .map(|amount| frames::encode_credit(self.id, INPUT, amount))
    }

    pub fn cancel(&self) {
        self.lock().cancelled = true;
        self.changed.notify_all();
    }

    pub fn check_cancelled(&self) -> Result<(), Failure> {
        if self.lock().cancelled {
            Err(cancelled())
        } else {
            Ok(())
        }
    }
}

/// The failure of a request that was given up.
pub fn cancelled() -> Failure {
    Failure::new(Code::Cancelled, "the request was cancelled")
}
