//! The table of jobs, and the requests about them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::RecvFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use serde_bytes::ByteBuf;

use crate::control::{self, Command, Report};
use crate::files::path::Root;
use crate::frames::{ERRORS, INITIAL_CREDIT, OUTPUT};
use crate::job::{Job, Mode, Output, Plan};
use crate::messages::{
    Cause, Code, Environment, Exec, Failure, JobCancel, JobForget, JobRead, JobSignal, JobTable,
    JobWait, Nothing, decode,
};
use crate::nursery::Nursery;
use crate::stream::Stream;
use crate::sys::Stage;

const MAX_ALIVE: usize = 1024;
const MAX_FINISHED: usize = 64;
const MAX_FINISHED_LOGS: usize = 32 << 20;
const DEFAULT_KEPT: usize = 512 << 10;
const MAX_KEPT: usize = 16 << 20;
const DEFAULT_GRACE: Duration = Duration::from_secs(2);
const MAX_COMMAND: usize = 256;
const MAX_SIGNAL: i32 = 64;
/// How soon a sweep for orphans is repeated.
const SWEEP_AGAIN: Duration = Duration::from_millis(10);

pub struct Jobs {
    pub table: BTreeMap<u32, Job>,
    pub nursery: Nursery,
    root: Arc<Root>,
    null: OwnedFd,
    born: Instant,
    last: u32,
    scratch: Vec<u8>,
    /// When orphans are looked for.
    sweep: Option<Instant>,
}

impl Jobs {
    pub fn new(nursery: Nursery, root: Arc<Root>, null: OwnedFd) -> Self {
        Self {
            table: BTreeMap::new(),
            nursery,
            root,
            null,
            born: Instant::now(),
            last: 0,
            scratch: Vec::new(),
            sweep: None,
        }
    }

    /// Starts a command for `stream`; the job's id where one was made.
    pub fn exec(&mut self, stream: &Arc<Stream>, payload: &[u8], env: &Environment) -> Option<u32> {
        match decode::<Exec>(payload).and_then(|exec| self.start(stream, exec, env)) {
            Ok(job) => Some(job),
            Err(failure) => {
                stream.fail(&failure);
                None
            }
        }
    }

    fn start(
        &mut self,
        stream: &Arc<Stream>,
        exec: Exec,
        env: &Environment,
    ) -> Result<u32, Failure> {
        if self.table.values().filter(|job| job.is_alive()).count() >= MAX_ALIVE {
            return Err(Failure::new(Code::Busy, "too many jobs are alive"));
        }
        let bound = |kept: Option<usize>| -> Result<usize, Failure> {
            let kept = kept.unwrap_or(DEFAULT_KEPT);
            if kept <= MAX_KEPT {
                Ok(kept)
            } else {
                Err(Failure::new(
                    Code::Protocol,
                    "head and tail are at most 16,777,216 bytes",
                ))
            }
        };
        let (head, tail) = (bound(exec.head)?, bound(exec.tail)?);
        let mode = match (exec.background, exec.follow) {
            (true, false) => Mode::Background,
            (false, follow) => {
                if follow {
                    Mode::Follow
                } else {
                    Mode::Plain
                }
            }
            (true, true) => {
                return Err(Failure::new(
                    Code::Protocol,
                    "a command either follows or runs in the background",
                ));
            }
        };
        let scripted = exec.shell.is_some();
        let argv = argv(exec.argv, exec.shell)?;
        let command = as_given(if scripted { &argv[2..] } else { &argv });
        let cwd = match &exec.cwd {
            None => None,
            Some(cwd) => Some(self.root.directory(cwd)?),
        };
        let setup = |errno: Errno| Failure::not_started(Stage::Setup, errno.raw_os_error());
        let (stdout, stdout_end) = pipe(OFlags::NONBLOCK).map_err(setup)?;
        let errors = if exec.merge {
            None
        } else {
            Some(pipe(OFlags::NONBLOCK).map_err(setup)?)
        };
        let (stderr, stderr_end) = errors.unzip();
        let (stdin_end, stdin) = if exec.stdin {
            Some(pipe_with(PipeFlags::CLOEXEC).map_err(setup)?)
        } else {
            None
        }
        .unzip();
        if let Some(stdin) = &stdin {
            rustix::fs::fcntl_setfl(stdin, OFlags::NONBLOCK).map_err(setup)?;
        }
        let fds = [
            cwd.as_ref().unwrap_or(&self.root.fd).as_fd(),
            stdin_end.as_ref().unwrap_or(&self.null).as_fd(),
            stdout_end.as_fd(),
            stderr_end.as_ref().unwrap_or(&stdout_end).as_fd(),
        ];
        let command_to_start = Command {
            argv,
            env: merged(env, &exec.env),
        };
        let (control, reaper) = self
            .nursery
            .start(command_to_start, fds)
            .map_err(|errno| Failure::not_started(Stage::Fork, errno.raw_os_error()))?;
        self.last += 1;
        let plan = Plan {
            id: self.last,
            mode,
            control,
            reaper,
            stdin,
            outputs: [
                Output::new(Some(stdout), head, tail),
                Output::new(stderr, head, tail),
            ],
            started_us: u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX),
            deadline: exec.deadline_ms.map(Duration::from_millis),
            grace: exec.grace_ms.map_or(DEFAULT_GRACE, Duration::from_millis),
            label: exec.label,
            command,
        };
        self.table.insert(self.last, Job::new(plan, stream.clone()));
        Ok(self.last)
    }

    /// Answers a `job.…` request; a failure is for the caller to send. The job's id when the answer comes later.
    pub fn request(
        &mut self,
        op: &str,
        stream: &Arc<Stream>,
        payload: &[u8],
    ) -> Result<Option<u32>, Failure> {
        match op {
            "job.list" => {
                let jobs = self
                    .table
                    .values()
                    .filter(|job| job.pid != 0)
                    .map(Job::entry)
                    .collect();
                stream.respond(&JobTable { jobs });
            }
            "job.wait" => {
                let wait: JobWait = decode(payload)?;
                self.find(wait.job)?
                    .wait(stream, wait.timeout_ms.map(Duration::from_millis));
                return Ok(Some(wait.job));
            }
            "job.read" => {
                let read: JobRead = decode(payload)?;
                if !matches!(read.channel, OUTPUT | ERRORS) {
                    return Err(Failure::new(Code::Protocol, "channel is 1 or 2"));
                }
                let limit = usize::try_from(read.limit)
                    .unwrap_or(usize::MAX)
                    .min(INITIAL_CREDIT);
                self.find(read.job)?
                    .read_log(read.channel, read.offset, limit, stream);
            }
            "job.signal" => {
                let signal: JobSignal = decode(payload)?;
                if !(0..=MAX_SIGNAL).contains(&signal.signal) {
                    return Err(Failure::new(Code::Invalid, "signals are 0 to 64"));
                }
                self.find(signal.job)?
                    .signal(signal.signal, signal.tree, stream);
            }
            "job.cancel" => {
                let cancel: JobCancel = decode(payload)?;
                if self.is_forgotten(cancel.job) {
                    stream.respond(&Nothing {});
                    return Ok(None);
                }
                let job = self.find(cancel.job)?;
                job.cancel(Cause::Cancelled, cancel.grace_ms.map(Duration::from_millis));
                job.answer_when_gone(stream);
                return Ok(Some(cancel.job));
            }
            "job.forget" => {
                let JobForget { job } = decode(payload)?;
                if self.find(job)?.is_alive() {
                    return Err(Failure::new(Code::Busy, format!("job {job} is alive")));
                }
                self.table.remove(&job);
                stream.respond(&Nothing {});
            }
            _ => {
                return Err(Failure::new(
                    Code::Unknown,
                    format!("there is no operation {op:.32}"),
                ));
            }
        }
        Ok(None)
    }

    /// There was such a job, and nothing of it is left.
    fn is_forgotten(&self, id: u32) -> bool {
        (1..=self.last).contains(&id) && !self.table.contains_key(&id)
    }

    fn find(&mut self, id: u32) -> Result<&mut Job, Failure> {
        self.table
            .get_mut(&id)
            .filter(|job| job.pid != 0)
            .ok_or_else(|| Failure::no_job(id))
    }

    /// The host gives up the request `stream`, which started or waits for job `id`.
    pub fn cancel(&mut self, id: u32, stream: &Arc<Stream>, grace: Option<Duration>) {
        let Some(job) = self.table.get_mut(&id) else {
            return;
        };
        if job.is_attached_to(stream) {
            job.cancel(Cause::Cancelled, grace);
        } else {
            job.unwait(stream);
            stream.fail(&crate::stream::cancelled());
        }
    }

    /// The connection of `stream` has ended.
    pub fn desert(&mut self, id: u32, stream: &Arc<Stream>) {
        if let Some(job) = self.table.get_mut(&id) {
            if job.is_attached_to(stream) {
                job.detach();
            } else {
                job.unwait(stream);
            }
        }
    }

    /// Reads the reports of one job's reaper.
    pub fn hear(&mut self, id: u32) {
        let Some(job) = self.table.get_mut(&id) else {
            return;
        };
        let Some(control) = &job.control else { return };
        let mut message = [0; control::MAX_REPORT];
        match control::receive(control, &mut message, RecvFlags::DONTWAIT) {
            Ok((size @ 1.., _)) => {
                if let Some(report) = control::decode::<Report>(&message[..size]) {
                    if report.gone
                        && let Some(control) = job.control.take()
                    {
                        self.nursery.take_back(control, job.reaper);
                    }
                    job.hear(&report);
                }
            }
            Err(Errno::AGAIN) => {}
            _ => {
                job.lose();
                self.nursery.distrust();
                self.sweep = Some(Instant::now());
            }
        }
    }

    /// A child of the guest has ended or was left to it.
    pub fn child_ended(&mut self) {
        self.sweep = Some(Instant::now());
    }

    /// Moves every job as far as it goes, and forgets what is over.
    pub fn advance(&mut self, now: Instant) {
        for job in self.table.values_mut() {
            job.check_timers(now);
            job.advance(&mut self.scratch);
        }
        self.sweep_orphans(now);
        self.table.retain(|_, job| !job.is_spent());
        self.evict();
        if self.table.values().all(|job| !job.is_alive()) {
            self.scratch = Vec::new();
        }
    }

    fn sweep_orphans(&mut self, now: Instant) {
        if self.sweep.is_none_or(|at| at > now) {
            return;
        }
        let reapers: Vec<i32> = self
            .table
            .values()
            .filter(|job| job.control.is_some())
            .map(|job| job.reaper)
            .chain(self.nursery.reserve_pid())
            .collect();
        if !self.nursery.clear_orphans(&reapers) {
            self.sweep = Some(now + SWEEP_AGAIN);
            return;
        }
        self.sweep = None;
        for job in self.table.values_mut().filter(|job| job.lost) {
            job.end();
            job.advance(&mut self.scratch);
        }
    }

    fn evict(&mut self) {
        let finished: Vec<(u32, usize)> = self
            .table
            .values()
            .filter(|job| !job.is_alive() && job.outcome.is_some())
            .map(|job| (job.id, job.kept()))
            .collect();
        let mut count = finished.len();
        let mut kept: usize = finished.iter().map(|(_, kept)| kept).sum();
        for (id, size) in finished {
            if count <= MAX_FINISHED && kept <= MAX_FINISHED_LOGS {
                break;
            }
            self.table.remove(&id);
            count -= 1;
            kept -= size;
        }
    }

    /// When something is to be done although nothing happens.
    pub fn next_timer(&self) -> Option<Instant> {
        self.table
            .values()
            .filter_map(Job::next_timer)
            .chain(self.sweep)
            .chain(self.nursery.next_timer())
            .min()
    }

    /// Ends every job at once.
    pub fn cancel_all(&mut self) {
        for job in self.table.values_mut().filter(|job| job.is_alive()) {
            job.cancel(Cause::Cancelled, Some(Duration::ZERO));
        }
    }

    pub fn any_alive(&self) -> bool {
        self.table.values().any(Job::is_alive)
    }
}

fn argv(argv: Option<Vec<ByteBuf>>, shell: Option<ByteBuf>) -> Result<Vec<ByteBuf>, Failure> {
    match (argv, shell) {
        (Some(argv), None) if !argv.is_empty() => Ok(argv),
        (None, Some(script)) => Ok(vec![
            ByteBuf::from(*b"/bin/sh"),
            ByteBuf::from(*b"-c"),
            script,
        ]),
        _ => Err(Failure::new(
            Code::Protocol,
            "a command is either an argv with a program or a shell script",
        )),
    }
}

/// The environment as the kernel takes it: what the request names laid over the connection's.
fn merged(base: &Environment, over: &Environment) -> Vec<ByteBuf> {
    let kept = base.iter().filter(|(name, _)| !over.contains_key(*name));
    kept.chain(over)
        .map(|(name, value)| ByteBuf::from([name, &b"="[..], value].concat()))
        .collect()
}

/// A command as the list of jobs shows it: the script, or the words of the argv; the beginning of a long one.
fn as_given(words: &[ByteBuf]) -> ByteBuf {
    let mut text = Vec::new();
    for word in words {
        if !text.is_empty() {
            text.push(b' ');
        }
        text.extend_from_slice(&word[..word.len().min(MAX_COMMAND)]);
        if text.len() >= MAX_COMMAND {
            text.truncate(MAX_COMMAND);
            break;
        }
    }
    ByteBuf::from(text)
}

/// A pipe: the guest's end to read from, with `flags`, and the job's end. All numbers are above 2.
fn pipe(flags: OFlags) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&ours, flags)?;
    Ok((ours, theirs))
}

/// Opens `/dev/null` above the standard descriptors.
pub fn open_null() -> Result<OwnedFd, Errno> {
    let null = rustix::fs::open(
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    fcntl_dupfd_cloexec(null, 3)
}
