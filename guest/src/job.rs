//! One job: its pipes, its logs, its end.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, ioctl_fionread, read, write};
use rustix::pipe::fcntl_setpipe_size;
use serde_bytes::{ByteBuf, Bytes};

use crate::control::{self, Exit, Order, Report};
use crate::frames::{ERRORS, MAX_DATA, OUTPUT};
use crate::log::Log;
use crate::messages::{
    Background, Cause, Failure, JobEntry, JobPiece, Kept, Nothing, Outcome, Sent, Started,
};
use crate::stream::Stream;
use crate::sys::Stage;

/// How long after the kill a result is waited for; then it is given without the leader's end.
const LAST_PATIENCE: Duration = Duration::from_secs(10);
/// A pipe that fills is made this large.
const LARGE_PIPE: usize = 1 << 20;
/// A read of this size says that more is coming.
const MUCH: usize = 1 << 16;
/// Reads of one pipe before others get their turn.
const TURN: usize = 4;
const TIMEOUT_CODE: i32 = 124;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Plain,
    Follow,
    Background,
}

/// One output of a job.
pub struct Output {
    pipe: Option<OwnedFd>,
    pub log: Log,
    /// What the pipe held when the leader ended and is still to be read into the result.
    due: Option<usize>,
    /// The pipe has something, or its end.
    pub ready: bool,
    grown: bool,
    /// The host was told that no more follows.
    told: bool,
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
    fn read(&mut self, buffer: &mut Vec<u8>, limit: usize) -> Option<usize> {
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

    fn close(&mut self) {
        self.pipe = None;
        self.due = self.due.map(|_| 0);
    }

    fn kept(&self) -> Kept {
        Kept {
            total: self.log.total(),
            head: self.log.head(),
            tail: self.log.tail(),
        }
    }
}

/// Who waits for the result.
struct Waiter {
    stream: Arc<Stream>,
    until: Option<Instant>,
}

/// Output that was sealed but not yet granted credit.
struct Sending {
    offsets: [u64; 2],
    ends: [u64; 2],
}

pub struct Job {
    pub id: u32,
    mode: Mode,
    /// The reaper's control socket; nothing when the job is over.
    pub control: Option<OwnedFd>,
    pub reaper: i32,
    pub pid: i32,
    /// The reaper has ended although the job had not.
    pub lost: bool,
    attached: Option<Arc<Stream>>,
    pub stdin: Option<OwnedFd>,
    stdin_queue: VecDeque<Vec<u8>>,
    stdin_ended: bool,
    pub outputs: [Output; 2],
    started: Instant,
    started_us: u64,
    deadline: Option<Instant>,
    grace: Duration,
    stop: Option<Cause>,
    /// It was cancelled: output no longer waits for credit.
    hurry: bool,
    give_up: Option<Instant>,
    exit: Option<Exit>,
    pub outcome: Option<Outcome>,
    sending: Option<Sending>,
    /// It went on after its request was answered.
    outlived: bool,
    waiters: Vec<Waiter>,
    cancel_waiters: Vec<Arc<Stream>>,
    signal_waiters: VecDeque<Arc<Stream>>,
    label: Option<ByteBuf>,
    command: ByteBuf,
}

/// What a request asks of a new job.
pub struct Plan {
    pub id: u32,
    pub mode: Mode,
    pub control: OwnedFd,
    pub reaper: i32,
    pub stdin: Option<OwnedFd>,
    pub outputs: [Output; 2],
    pub started_us: u64,
    pub deadline: Option<Duration>,
    pub grace: Duration,
    pub label: Option<ByteBuf>,
    pub command: ByteBuf,
}

impl Job {
    pub fn new(plan: Plan, stream: Arc<Stream>) -> Self {
        let started = Instant::now();
        Self {
            id: plan.id,
            mode: plan.mode,
            control: Some(plan.control),
            reaper: plan.reaper,
            pid: 0,
            lost: false,
            attached: Some(stream),
            stdin: plan.stdin,
            stdin_queue: VecDeque::new(),
            stdin_ended: false,
            outputs: plan.outputs,
            started,
            started_us: plan.started_us,
            deadline: plan
                .deadline
                .and_then(|deadline| started.checked_add(deadline)),
            grace: plan.grace,
            stop: None,
            hurry: false,
            give_up: None,
            exit: None,
            outcome: None,
            sending: None,
            outlived: false,
            waiters: Vec::new(),
            cancel_waiters: Vec::new(),
            signal_waiters: VecDeque::new(),
            label: plan.label,
            command: plan.command,
        }
    }

    /// Something of it is left.
    pub fn is_alive(&self) -> bool {
        self.control.is_some() || self.lost
    }

    /// Nothing more will be asked of it: it belonged to one request, and was over when that was answered.
    pub fn is_spent(&self) -> bool {
        let kept = self.mode == Mode::Background || self.outlived;
        !self.is_alive() && self.attached.is_none() && !(kept && self.outcome.is_some())
    }

    /// Memory of its logs.
    pub fn kept(&self) -> usize {
        self.outputs.iter().map(|output| output.log.kept()).sum()
    }

    pub fn is_attached_to(&self, stream: &Arc<Stream>) -> bool {
        self.attached
            .as_ref()
            .is_some_and(|attached| Arc::ptr_eq(attached, stream))
    }

    // What it waits for

    /// The pipe of an output, when it is to be read now.
    pub fn readable(&self, index: usize) -> Option<&OwnedFd> {
        let output = &self.outputs[index];
        let pipe = output.pipe.as_ref()?;
        // What came behind the leader's end waits until the result is sealed.
        if output.due == Some(0) && self.outcome.is_none() {
            return None;
        }
        let started = self.mode == Mode::Follow || self.pid != 0;
        let free = match self.following() {
            Some(stream) => Self::allowance(stream, index) > 0,
            None => self.sending.is_none(),
        };
        (started && free).then_some(pipe)
    }

    pub fn writable(&self) -> Option<&OwnedFd> {
        if self.stdin_queue.is_empty() {
            None
        } else {
            self.stdin.as_ref()
        }
    }

    /// The stream that output goes to as it is made.
    fn following(&self) -> Option<&Arc<Stream>> {
        self.attached
            .as_ref()
            .filter(|_| self.mode == Mode::Follow && !self.hurry)
    }

    fn allowance(stream: &Stream, index: usize) -> usize {
        if stream.outbox.has_room() {
            stream.credit(channel(index)).min(MAX_DATA)
        } else {
            0
        }
    }

    pub fn next_timer(&self) -> Option<Instant> {
        let deadline = self
            .deadline
            .filter(|_| self.exit.is_none() && self.stop.is_none());
        let give_up = self.give_up.filter(|_| self.outcome.is_none());
        let waits = self.waiters.iter().filter_map(|waiter| waiter.until);
        waits.chain(deadline).chain(give_up).min()
    }

    // What happens to it

    pub fn hear(&mut self, report: &Report) {
        if let Some(reaper) = report.ready {
            self.reaper = reaper;
        }
        if let Some((stage, errno)) = report.failed {
            self.fail(&Failure::not_started(stage_from(stage), errno));
        }
        if let Some(pid) = report.started {
            self.pid = pid;
            self.tell_started();
        }
        if let Some(sent) = report.sent
            && let Some(stream) = self.signal_waiters.pop_front()
        {
            stream.respond(&Sent { sent });
        }
        if let Some(exit) = report.exited {
            self.exit = Some(exit);
            if self.stop.is_none() {
                self.fall_due();
            }
        }
        if report.gone {
            self.end();
        }
    }

    fn tell_started(&mut self) {
        let (job, pid) = (self.id, self.pid);
        if self.mode == Mode::Background {
            if let Some(stream) = self.attached.take() {
                stream.respond(&Background { job, pid });
            }
        } else if let Some(stream) = &self.attached {
            stream.event(&Started {
                event: "started",
                job,
                pid,
            });
        }
    }

    /// The request is answered with a failure; there is no job.
    fn fail(&mut self, failure: &Failure) {
        if let Some(stream) = self.attached.take() {
            stream.fail(failure);
        }
    }

    /// Whatever there was is gone.
    pub fn end(&mut self) {
        self.control = None;
        self.lost = false;
        self.stdin = None;
        self.stdin_queue.clear();
        for stream in self.cancel_waiters.drain(..) {
            stream.respond(&Nothing {});
        }
        for stream in self.signal_waiters.drain(..) {
            stream.respond(&Sent { sent: 0 });
        }
        if self.pid != 0
            && self.outcome.is_none()
            && self.outputs.iter().all(|output| output.due.is_none())
        {
            self.fall_due();
        }
    }

    /// The reaper is gone without a word: what it left is being killed.
    pub fn lose(&mut self) {
        self.control = None;
        if self.pid == 0 && self.reaper == 0 {
            self.fail(&Failure::not_started(Stage::Fork, libc::EAGAIN));
            return;
        }
        if self.pid == 0 {
            // It was there and had its order: the command may have run.
            self.pid = self.reaper;
            self.tell_started();
        }
        self.lost = true;
    }

    /// What the pipes hold now belongs to the result, and no more.
    fn fall_due(&mut self) {
        for output in &mut self.outputs {
            let held = output
                .pipe
                .as_ref()
                .map_or(0, |pipe| ioctl_fionread(pipe).unwrap_or(0));
            output.due = Some(usize::try_from(held).unwrap_or(usize::MAX));
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
            self.drain(scratch);
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

    /// All writers are gone: what is left in the pipes goes to the log.
    fn drain(&mut self, scratch: &mut Vec<u8>) {
        for output in &mut self.outputs {
            for _ in 0..=LARGE_PIPE / MAX_DATA {
                scratch.clear();
                if output.read(scratch, MAX_DATA).is_none() {
                    break;
                }
            }
            output.close();
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

    // What is asked of it

    /// More stdin; `None` ends it.
    pub fn feed(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) if self.stdin.is_some() && !self.stdin_ended => {
                let rest = if self.stdin_queue.is_empty() {
                    self.write_stdin(bytes)
                } else {
                    bytes
                };
                if !rest.is_empty() {
                    let rest = rest.to_vec();
                    self.stdin_queue.push_back(rest);
                }
            }
            Some(bytes) => self.consume(bytes.len()),
            None => self.stdin_ended = true,
        }
        self.close_stdin();
    }

    /// Writes what the pipe takes of the queued stdin.
    pub fn flush_stdin(&mut self) {
        while let Some(chunk) = self.stdin_queue.pop_front() {
            let rest = self.write_stdin(&chunk);
            if !rest.is_empty() {
                let rest = rest.to_vec();
                self.stdin_queue.push_front(rest);
                return;
            }
        }
        self.close_stdin();
    }

    fn write_stdin<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        while !bytes.is_empty() {
            let Some(pipe) = &self.stdin else { break };
            match write(pipe, bytes) {
                Ok(size) => {
                    bytes = &bytes[size..];
                    self.consume(size);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return bytes,
                // Nobody reads any more: the rest is dropped.
                Err(_) => self.stdin = None,
            }
        }
        self.consume(bytes.len());
        &[]
    }

    fn close_stdin(&mut self) {
        if self.stdin_ended && self.stdin_queue.is_empty() {
            self.stdin = None;
        }
    }

    fn consume(&self, size: usize) {
        if let Some(stream) = &self.attached
            && let Some(frame) = stream.consume(size)
        {
            stream.outbox.push(frame);
        }
    }

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
        match &self.outcome {
            Some(outcome) => stream.respond(outcome),
            None => {
                let until = patience.and_then(|patience| Instant::now().checked_add(patience));
                self.waiters.push(Waiter {
                    stream: stream.clone(),
                    until,
                });
            }
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
                    crate::messages::Code::TimedOut,
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

    pub fn entry(&self) -> JobEntry<'_> {
        JobEntry {
            job: self.id,
            pid: self.pid,
            running: self.exit.is_none() && self.is_alive(),
            alive: self.is_alive(),
            started_us: self.started_us,
            cause: self.outcome.map(|outcome| outcome.cause),
            exit_code: self.outcome.map(|outcome| outcome.exit_code),
            label: self.label.as_ref().map(|label| Bytes::new(label)),
            command: Bytes::new(&self.command),
        }
    }
}

fn channel(index: usize) -> u8 {
    if index == 0 { OUTPUT } else { ERRORS }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn stage_from(byte: u8) -> Stage {
    [Stage::Cwd, Stage::Exec, Stage::Fork, Stage::Setup]
        .into_iter()
        .find(|stage| *stage as u8 == byte)
        .unwrap_or(Stage::Setup)
}
