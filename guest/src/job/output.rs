//! One output of a job: the pipe it is read from and the log it goes to.

use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, ioctl_fionread, read};
use rustix::pipe::fcntl_setpipe_size;

use crate::frames::MAX_DATA;
use crate::log::Log;
use crate::messages::Kept;

/// A pipe that fills is made this large.
const LARGE_PIPE: usize = 1 << 20;
/// A read of this size says that more is coming.
pub const MUCH: usize = 1 << 16;

/// One output of a job.
pub struct Output {
    pub pipe: Option<OwnedFd>,
    pub log: Log,
    /// What the pipe held when the leader ended and is still to be read into the result.
    pub due: Option<usize>,
    /// The pipe has something, or its end.
    pub ready: bool,
    grown: bool,
    /// The host was told that no more follows.
    pub told: bool,
}

impl Output {
    pub fn new(pipe: Option<OwnedFd>, head: usize, tail: usize) -> Self {
        Self {
            pipe,
            log: Log::new(head, tail),
            due: None,
            ready: false,
            grown: false,
            told: false,
        }
    }

    /// Reads once, at most `limit` bytes, behind what `buffer` holds. `None` when nothing is there now.
    pub fn read(&mut self, buffer: &mut Vec<u8>, limit: usize) -> Option<usize> {
        let pipe = self.pipe.as_ref()?;
        let before = buffer.len();
        let limit = limit.min(self.due.filter(|due| *due > 0).unwrap_or(limit));
        buffer.reserve(limit);
        let got = if buffer.capacity() - before == limit {
            read(pipe, spare_capacity(buffer))
        } else {
            buffer.resize(before + limit, 0);
            let got = read(pipe, &mut buffer[before..]);
            buffer.truncate(before + *got.as_ref().unwrap_or(&0));
            got
        };
        match got {
            Ok(0) => self.close(),
            Ok(size) => {
                if size >= MUCH && !self.grown {
                    self.grown = true;
                    // Best effort: a user's pipes together are bounded.
                    let _ = fcntl_setpipe_size(pipe, LARGE_PIPE);
                }
                self.due = self.due.map(|due| due.saturating_sub(size));
                self.log.append(&buffer[before..]);
                return Some(size);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.close(),
        }
        None
    }

    pub fn close(&mut self) {
        self.pipe = None;
        self.due = self.due.map(|_| 0);
    }

    pub fn kept(&self) -> Kept {
        Kept {
            total: self.log.total(),
            head: self.log.head(),
            tail: self.log.tail(),
        }
    }

    /// What the pipe holds now belongs to the result, and no more.
    pub fn fall_due(&mut self) {
        let held = self
            .pipe
            .as_ref()
            .map_or(0, |pipe| ioctl_fionread(pipe).unwrap_or(0));
        self.due = Some(usize::try_from(held).unwrap_or(usize::MAX));
    }

    /// All writers are gone: what is left in the pipe goes to the log.
    pub fn drain(&mut self, scratch: &mut Vec<u8>) {
        for _ in 0..=LARGE_PIPE / MAX_DATA {
            scratch.clear();
            if self.read(scratch, MAX_DATA).is_none() {
                break;
            }
        }
        self.close();
    }
}
