//! The frames on their way to one host, bounded, written by the loop and by the file workers.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::frames::{DATA_HEADER, MAX_DATA};

/// Past this, nothing that makes output is read: neither requests nor pipes nor files.
pub const BOUND: usize = 4 << 20;
const MAX_SLICES: usize = 64;
const SPARE_BUFFERS: usize = 8;

/// Wakes the loop from a worker.
pub struct Waker(pub OwnedFd);

impl Waker {
    pub fn wake(&self) {
        // The only failure is a counter that is full: then the loop is already awake.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

pub struct Outbox {
    socket: Arc<OwnedFd>,
    state: Mutex<State>,
    room: Condvar,
    waker: Arc<Waker>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Vec<u8>>,
    /// Bytes of the first frame that are already written.
    written: usize,
    bytes: usize,
    closed: bool,
    spare: Vec<Vec<u8>>,
}

impl Outbox {
    pub fn new(socket: Arc<OwnedFd>, waker: Arc<Waker>) -> Self {
        Self {
            socket,
            state: Mutex::default(),
            room: Condvar::new(),
            waker,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a frame; the loop writes it with its next flush.
    pub fn push(&self, frame: Vec<u8>) {
        self.lock().push(frame);
    }

    /// From a worker: writes frames at once where the socket takes them, else leaves them to the loop.
    pub fn send(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        let mut state = self.lock();
        let idle = state.queue.is_empty();
        for frame in frames {
            state.push(frame);
        }
        if !idle || state.flush(self.socket.as_fd()).is_err() || !state.queue.is_empty() {
            drop(state);
            self.waker.wake();
        }
    }

    /// Writes what the socket takes.
    pub fn flush(&self) -> Result<(), Errno> {
        let mut state = self.lock();
        let result = state.flush(self.socket.as_fd());
        if state.bytes < BOUND {
            self.room.notify_all();
        }
        result
    }

    /// Frames wait for the socket.
    pub fn is_waiting(&self) -> bool {
        !self.lock().queue.is_empty()
    }

    /// There is room for more output.
    pub fn has_room(&self) -> bool {
        self.lock().bytes < BOUND
    }

    /// From a worker: waits for room; false when the connection has ended.
    pub fn wait_for_room(&self) -> bool {
        let mut state = self.lock();
        while state.bytes >= BOUND && !state.closed {
            state = self
                .room
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        !state.closed
    }

    /// A buffer for a `DATA` frame, with room for its header left free at the front.
    pub fn buffer(&self, size: usize) -> Vec<u8> {
        let spare = if size > MAX_DATA / 4 {
            self.lock().spare.pop()
        } else {
            None
        };
        let mut buffer = spare.unwrap_or_else(|| {
            Vec::with_capacity(DATA_HEADER + if size > MAX_DATA / 4 { MAX_DATA } else { size })
        });
        buffer.clear();
        buffer.resize(DATA_HEADER, 0);
        buffer
    }

    /// Gives the memory of a busy time back.
    pub fn trim(&self) {
        self.lock().spare = Vec::new();
    }

    /// Drops all frames, now and later.
    pub fn close(&self) {
        let mut state = self.lock();
        *state = State {
            closed: true,
            ..State::default()
        };
        self.room.notify_all();
    }
}

impl State {
    fn push(&mut self, frame: Vec<u8>) {
        if !self.closed {
            self.bytes += frame.len();
            self.queue.push_back(frame);
        }
    }

    fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let mut used = 0;
            for (slice, frame) in slices.iter_mut().zip(&self.queue) {
                *slice = IoSlice::new(if used == 0 {
                    &frame[self.written..]
                } else {
                    frame
                });
                used += 1;
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(
                socket,
                &slices[..used],
                &mut SendAncillaryBuffer::default(),
                flags,
            ) {
                Ok(written) => self.advance(written),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        while let Some(first) = self.queue.front() {
            let left = first.len() - self.written;
            if written < left {
                self.written += written;
                return;
            }
            written -= left;
            self.written = 0;
            if let Some(frame) = self.queue.pop_front()
                && frame.capacity() >= DATA_HEADER + MAX_DATA
                && self.spare.len() < SPARE_BUFFERS
            {
                self.spare.push(frame);
            }
        }
    }
}
