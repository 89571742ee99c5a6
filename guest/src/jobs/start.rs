//! From a request to a job with its pipes and its reaper.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use serde_bytes::ByteBuf;

use crate::control::Command;
use crate::job::{Job, Mode, Output, Plan};
use crate::jobs::Jobs;
use crate::messages::{Code, Environment, Exec, Failure};
use crate::stream::Stream;
use crate::sys::Stage;

const MAX_ALIVE: usize = 1024;
const DEFAULT_KEPT: usize = 512 << 10;
const MAX_KEPT: usize = 16 << 20;
const DEFAULT_GRACE: Duration = Duration::from_secs(2);
const MAX_COMMAND: usize = 256;

impl Jobs {
    pub(super) fn start(
        &mut self,
        stream: &Arc<Stream>,
        exec: Exec,
        env: &Environment,
    ) -> Result<u32, Failure> {
        if self.table.values().filter(|job| job.is_alive()).count() >= MAX_ALIVE {
            return Err(Failure::new(Code::Busy, "too many jobs are alive"));
        }
        let (head, tail) = (bound(exec.head)?, bound(exec.tail)?);
        let mode = mode(&exec)?;
        let scripted = exec.shell.is_some();
        let argv = argv(exec.argv, exec.shell)?;
        let command = as_given(if scripted { &argv[2..] } else { &argv });
        let cwd = match &exec.cwd {
            None => None,
            Some(cwd) => Some(self.root.directory(cwd)?),
        };
        let pipes = Pipes::new(exec.stdin, exec.merge)
            .map_err(|errno| Failure::not_started(Stage::Setup, errno.raw_os_error()))?;
        let [stdin_end, stdout_end, stderr_end] = &pipes.ends;
        let stdout_fd = stdout_end.as_ref().unwrap_or(&self.null);
        let fds = [
            cwd.as_ref().unwrap_or(&self.root.fd).as_fd(),
            stdin_end.as_ref().unwrap_or(&self.null).as_fd(),
            stdout_fd.as_fd(),
            stderr_end.as_ref().unwrap_or(stdout_fd).as_fd(),
        ];
        let to_start = Command {
            argv,
            env: merged(env, &exec.env),
        };
        let (control, reaper) = self
            .nursery
            .start(to_start, fds)
            .map_err(|errno| Failure::not_started(Stage::Fork, errno.raw_os_error()))?;
        self.last += 1;
        let [stdin, stdout, stderr] = pipes.ours;
        let plan = Plan {
            id: self.last,
            mode,
            control,
            reaper,
            stdin,
            outputs: [
                Output::new(stdout, head, tail),
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
}

fn bound(kept: Option<usize>) -> Result<usize, Failure> {
    let kept = kept.unwrap_or(DEFAULT_KEPT);
    if kept > MAX_KEPT {
        return Err(Failure::new(
            Code::Protocol,
            "head and tail are at most 16,777,216 bytes",
        ));
    }
    Ok(kept)
}

fn mode(exec: &Exec) -> Result<Mode, Failure> {
    match (exec.background, exec.follow) {
        (true, false) => Ok(Mode::Background),
        (false, true) => Ok(Mode::Follow),
        (false, false) => Ok(Mode::Plain),
        (true, true) => Err(Failure::new(
            Code::Protocol,
            "a command either follows or runs in the background",
        )),
    }
}

/// The pipes of one job for stdin, stdout and stderr: the guest's ends, which never block, and the job's. All numbers are above 2.
struct Pipes {
    ours: [Option<OwnedFd>; 3],
    ends: [Option<OwnedFd>; 3],
}

impl Pipes {
    /// Without `stdin` there is none; with `merge` stderr goes where stdout goes.
    fn new(stdin: bool, merge: bool) -> Result<Self, Errno> {
        let input = stdin.then(|| pipe_with(PipeFlags::CLOEXEC)).transpose()?;
        let (stdin_end, stdin) = input.unzip();
        let (stdout, stdout_end) = Some(pipe_with(PipeFlags::CLOEXEC)?).unzip();
        let errors = (!merge)
            .then(|| pipe_with(PipeFlags::CLOEXEC))
            .transpose()?;
        let (stderr, stderr_end) = errors.unzip();
        let ours = [stdin, stdout, stderr];
        for pipe in ours.iter().flatten() {
            rustix::fs::fcntl_setfl(pipe, OFlags::NONBLOCK)?;
        }
        Ok(Self {
            ours,
            ends: [stdin_end, stdout_end, stderr_end],
        })
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

/// Opens `/dev/null` above the standard descriptors.
pub fn open_null() -> Result<OwnedFd, Errno> {
    let null = rustix::fs::open(
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    fcntl_dupfd_cloexec(null, 3)
}
