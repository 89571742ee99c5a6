//! The stdin of a job: bytes wait here until the command reads, and room is granted as it does.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::io::{Errno, write};

pub struct Input {
    pipe: Option<OwnedFd>,
    queue: VecDeque<Vec<u8>>,
    ended: bool,
}

impl Input {
    pub fn new(pipe: Option<OwnedFd>) -> Self {
        Self {
            pipe,
            queue: VecDeque::new(),
            ended: false,
        }
    }

    /// The pipe, when it is to be written as soon as it takes something.
    pub fn writable(&self) -> Option<&OwnedFd> {
        self.pipe.as_ref().filter(|_| !self.queue.is_empty())
    }

    /// Takes more stdin; `None` ends it. Returns how many bytes are off our hands.
    pub fn feed(&mut self, bytes: Option<&[u8]>) -> usize {
        let taken = match bytes {
            Some(bytes) if self.pipe.is_some() && !self.ended => {
                let taken = if self.queue.is_empty() {
                    self.write(bytes)
                } else {
                    0
                };
                if taken < bytes.len() {
                    self.queue.push_back(bytes[taken..].to_vec());
                }
                taken
            }
            Some(bytes) => bytes.len(),
            None => {
                self.ended = true;
                0
            }
        };
        self.close_if_done();
        taken
    }

    /// Writes what the pipe takes of the queue. Returns how many bytes are off our hands.
    pub fn flush(&mut self) -> usize {
        let mut total = 0;
        while let Some(chunk) = self.queue.pop_front() {
            let taken = self.write(&chunk);
            total += taken;
            if taken < chunk.len() {
                self.queue.push_front(chunk[taken..].to_vec());
                return total;
            }
        }
        self.close_if_done();
        total
    }

    pub fn close(&mut self) {
        self.pipe = None;
        self.queue.clear();
    }

    /// Returns how much of `bytes` was written, or all of it when nobody reads any more: the rest is dropped.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            let Some(pipe) = &self.pipe else { break };
            match write(pipe, &bytes[taken..]) {
                Ok(size) => taken += size,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return taken,
                Err(_) => self.pipe = None,
            }
        }
        bytes.len()
    }

    fn close_if_done(&mut self) {
        if self.ended && self.queue.is_empty() {
            self.pipe = None;
        }
    }
}
