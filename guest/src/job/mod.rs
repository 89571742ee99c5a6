//! One job: its pipes, its logs, its end.

mod delivery;
mod input;
mod output;
mod requests;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_bytes::{ByteBuf, Bytes};

use crate::control::{Exit, Reaper, Report};
use crate::frames::{ERRORS, OUTPUT};
use crate::job::input::Input;
pub use crate::job::output::Output;
use crate::messages::{Background, Cause, Failure, JobEntry, Nothing, Outcome, Sent, Started};
use crate::stream::Stream;
use crate::sys::Stage;

/// How long after the kill a result is waited for; then it is given without the leader's end.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Plain,
    Follow,
    Background,
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
    pub reaper: Reaper,
    pub pid: i32,
    /// The reaper has ended although the job had not.
    pub lost: bool,
    attached: Option<Arc<Stream>>,
    stdin: Input,
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
    pub reaper: Reaper,
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
            stdin: Input::new(plan.stdin),
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
        self.stdin.writable()
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
                self.outputs.iter_mut().for_each(Output::fall_due);
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
        self.stdin.close();
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
            self.outputs.iter_mut().for_each(Output::fall_due);
        }
    }

    /// The reaper is gone without a word: what it left is being killed.
    pub fn lose(&mut self) {
        self.control = None;
        if self.pid == 0 && self.reaper.pid == 0 {
            self.fail(&Failure::not_started(Stage::Fork, libc::EAGAIN));
            return;
        }
        if self.pid == 0 {
            // It was there and had its order: the command may have run.
            self.pid = self.reaper.pid;
            self.tell_started();
        }
        self.lost = true;
    }

    // What is asked of it

    /// More stdin; `None` ends it.
    pub fn feed(&mut self, bytes: Option<&[u8]>) {
        let taken = self.stdin.feed(bytes);
        self.consume(taken);
    }

    /// Writes what the pipe takes of the queued stdin.
    pub fn flush_stdin(&mut self) {
        let taken = self.stdin.flush();
        self.consume(taken);
    }

    fn consume(&self, size: usize) {
        if size > 0
            && let Some(stream) = &self.attached
            && let Some(frame) = stream.consume(size)
        {
            stream.outbox.push(frame);
        }
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
