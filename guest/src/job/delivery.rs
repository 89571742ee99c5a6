//! How a job's output and its result reach whoever asked for them.

use std::sync::Arc;
use std::time::Instant;

use rustix::io::ioctl_fionread;

use crate::frames::MAX_DATA;
use crate::job::output::MUCH;
use crate::job::{Job, Mode, Sending, channel, micros};
use crate::messages::{Cause, Outcome};
use crate::stream::Stream;

/// Reads of one pipe before others get their turn.
const TURN: usize = 4;
const TIMEOUT_CODE: i32 = 124;

impl Job {
    /// The stream that output goes to as it is made.
    pub(super) fn following(&self) -> Option<&Arc<Stream>> {
        self.attached
            .as_ref()
            .filter(|_| self.mode == Mode::Follow && !self.hurry)
    }

    pub(super) fn allowance(stream: &Stream, index: usize) -> usize {
        if stream.outbox.has_room() {
            stream.credit(channel(index)).min(MAX_DATA)
        } else {
            0
        }
    }

    /// Moves what can be moved: reads pipes, seals and sends the result. `scratch` is for output that is only kept.
    pub fn advance(&mut self, scratch: &mut Vec<u8>) {
        for index in 0..2 {
            self.read_output(index, scratch);
        }
        let due = self.outputs.iter().all(|output| output.due == Some(0));
        if self.outcome.is_none() && (due || self.give_up.is_some_and(|at| at <= Instant::now())) {
            self.seal();
        }
        self.send_sealed();
        if !self.is_alive() && self.outcome.is_some() && self.sending.is_none() {
            self.outputs
                .iter_mut()
                .for_each(|output| output.drain(scratch));
        }
    }

    fn read_output(&mut self, index: usize, scratch: &mut Vec<u8>) {
        let output = &mut self.outputs[index];
        if !std::mem::take(&mut output.ready) && output.due.is_none_or(|due| due == 0) {
            return;
        }
        for _ in 0..TURN {
            let Some(pipe) = self.readable(index) else {
                break;
            };
            let held = usize::try_from(ioctl_fionread(pipe).unwrap_or(0))
                .unwrap_or(MAX_DATA)
                .clamp(1, MAX_DATA);
            let read = if let Some(stream) = self.following().cloned() {
                let limit = held.min(Self::allowance(&stream, index));
                let mut buffer = stream.outbox.buffer(limit);
                let read = self.outputs[index].read(&mut buffer, limit);
                if read.is_some() {
                    stream.outbox.push(stream.data(channel(index), buffer));
                }
                read
            } else {
                scratch.clear();
                self.outputs[index].read(scratch, held)
            };
            if read.is_none_or(|size| size < MUCH) {
                break;
            }
        }
        self.tell_end(index);
    }

    fn tell_end(&mut self, index: usize) {
        if self.mode == Mode::Follow
            && let Some(stream) = &self.attached
            && !self.outputs[index].told
            && self.outputs[index].pipe.is_none()
        {
            self.outputs[index].told = true;
            stream.end_channel(channel(index));
        }
    }

    fn seal(&mut self) {
        let exit = self.exit;
        let signal = exit.and_then(|exit| exit.signal);
        let cause = match self.stop {
            _ if exit.is_none() => Cause::Lost,
            Some(stop) => stop,
            None if signal.is_some() => Cause::Signal,
            None => Cause::Exit,
        };
        let died = 128 + signal.unwrap_or(libc::SIGKILL);
        let exit_code = match cause {
            Cause::Timeout => TIMEOUT_CODE,
            _ => exit.and_then(|exit| exit.code).unwrap_or(died),
        };
        let outcome = Outcome {
            job: self.id,
            cause,
            exit_code,
            duration_us: exit
                .map_or_else(|| micros(self.started.elapsed()), |exit| exit.duration_us),
            user_us: exit.map_or(0, |exit| exit.user_us),
            system_us: exit.map_or(0, |exit| exit.system_us),
            peak_kb: exit.map_or(0, |exit| exit.peak_kb),
            stdout: self.outputs[0].kept(),
            stderr: self.outputs[1].kept(),
            signal,
        };
        self.outcome = Some(outcome);
        for waiter in self.waiters.drain(..) {
            waiter.stream.respond(&outcome);
        }
        match (&self.attached, self.mode) {
            (Some(stream), Mode::Follow) => {
                for index in 0..2 {
                    if !self.outputs[index].told {
                        self.outputs[index].told = true;
                        stream.end_channel(channel(index));
                    }
                }
                stream.respond(&outcome);
                self.attached = None;
                self.outlived = self.is_alive();
            }
            (Some(_), Mode::Plain) => {
                let ends = [outcome.stdout.total, outcome.stderr.total];
                self.sending = Some(Sending {
                    offsets: [0, 0],
                    ends,
                });
            }
            _ => {}
        }
    }

    /// Sends the kept output of a plain request as credit comes, then its result.
    fn send_sealed(&mut self) {
        let (Some(sending), Some(stream), Some(outcome)) =
            (&mut self.sending, &self.attached, &self.outcome)
        else {
            return;
        };
        for (index, output) in self.outputs.iter().enumerate() {
            while sending.offsets[index] < sending.ends[index] {
                let credit = stream.credit(channel(index)).min(MAX_DATA);
                if credit == 0 || !stream.outbox.has_room() {
                    return;
                }
                let piece = output.log.read(sending.offsets[index], credit);
                if piece.bytes.is_empty() {
                    sending.offsets[index] = sending.ends[index];
                    break;
                }
                sending.offsets[index] = piece.offset + piece.bytes.len() as u64;
                stream.push_data(channel(index), &piece.bytes);
            }
        }
        stream.respond(outcome);
        self.attached = None;
        self.sending = None;
        self.outlived = self.is_alive();
    }
}
