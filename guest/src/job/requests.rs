//! What is asked about a job: its end, a signal, its result, its log.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::control::{self, Order};
use crate::frames::ERRORS;
use crate::job::{Job, LAST_PATIENCE, Waiter};
use crate::messages::{Cause, Code, Failure, JobPiece, Nothing, Sent};
use crate::stream::Stream;

impl Job {
    /// Ends the whole tree, for `cause`.
    pub fn cancel(&mut self, cause: Cause, grace: Option<Duration>) {
        let grace = grace.unwrap_or(self.grace);
        self.hurry |= cause == Cause::Cancelled;
        if self.exit.is_none() {
            self.stop.get_or_insert(cause);
            self.give_up = Instant::now().checked_add(grace + LAST_PATIENCE);
        }
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.order(&Order::Cancel { grace_ms });
    }

    fn order(&self, order: &Order) -> bool {
        let Some(control) = &self.control else {
            return false;
        };
        control::send(
            control.as_fd(),
            &control::encode(order),
            &[],
            rustix::net::SendFlags::DONTWAIT,
        )
        .is_ok()
    }

    pub fn signal(&mut self, signal: i32, tree: bool, stream: &Arc<Stream>) {
        if self.order(&Order::Signal { signal, tree }) {
            self.signal_waiters.push_back(stream.clone());
        } else {
            stream.respond(&Sent { sent: 0 });
        }
    }

    /// Answers `stream` when the whole tree is gone.
    pub fn answer_when_gone(&mut self, stream: &Arc<Stream>) {
        if self.is_alive() {
            self.cancel_waiters.push(stream.clone());
        } else {
            stream.respond(&Nothing {});
        }
    }

    pub fn wait(&mut self, stream: &Arc<Stream>, patience: Option<Duration>) {
        if let Some(outcome) = &self.outcome {
            stream.respond(outcome);
        } else {
            let until = patience.and_then(|patience| Instant::now().checked_add(patience));
            self.waiters.push(Waiter {
                stream: stream.clone(),
                until,
            });
        }
    }

    /// Forgets a request that waited.
    pub fn unwait(&mut self, stream: &Arc<Stream>) {
        self.waiters
            .retain(|waiter| !Arc::ptr_eq(&waiter.stream, stream));
        self.cancel_waiters
            .retain(|waiter| !Arc::ptr_eq(waiter, stream));
    }

    /// The request's connection is gone; so is the job, soon.
    pub fn detach(&mut self) {
        self.attached = None;
        self.sending = None;
        self.cancel(Cause::Cancelled, None);
    }

    /// Does what its timers say.
    pub fn check_timers(&mut self, now: Instant) {
        if self.deadline.is_some_and(|at| at <= now) && self.exit.is_none() && self.stop.is_none() {
            self.cancel(Cause::Timeout, None);
        }
        self.waiters.retain(|waiter| {
            let late = waiter.until.is_some_and(|until| until <= now);
            if late {
                waiter.stream.fail(&Failure::new(
                    Code::TimedOut,
                    "the job has not ended within the time of the wait",
                ));
            }
            !late
        });
    }

    pub fn read_log(&self, channel: u8, offset: u64, limit: usize, stream: &Stream) {
        let output = &self.outputs[usize::from(channel == ERRORS)];
        let piece = output.log.read(offset, limit);
        stream.push_data(channel, &piece.bytes);
        let total = output.log.total();
        let eof = output.pipe.is_none() && piece.offset + piece.bytes.len() as u64 == total;
        stream.respond(&JobPiece {
            offset: piece.offset,
            length: piece.bytes.len(),
            total,
            eof,
            gap: piece.gap,
        });
    }
}
