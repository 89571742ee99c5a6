//! The reaper of one job at a time: it starts the leader, adopts every orphan of the job, and ends the whole tree when told to. When
//! nothing is left of the job it waits for the next one, so that commands in a row cost no fork but their own.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{getpid, set_child_subreaper};

use crate::control::{self, Command, Exit, Order, Reaper, Report};
use crate::mark;
use crate::sys::{self, Launch, Reaped, Stage};
use crate::tree::{self, Family};

pub const STAGE_FORK: u8 = Stage::Fork as u8;
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// A command that ends within this time is reported in one message.
const PATIENCE: Duration = Duration::from_millis(2);
/// How often a kill is repeated while something of the tree is left.
const KILL_AGAIN: Duration = Duration::from_millis(10);
/// How often orphans are looked for where their end is not told to the reaper.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Adopts the orphans among this process's descendants from now on.
pub fn become_subreaper() -> Result<(), Errno> {
    set_child_subreaper(Some(getpid()))
}

/// The body of a freshly forked reaper; `marks`: orphans do not come to it, and are known by their mark.
pub fn main(control: OwnedFd, marks: bool) -> ! {
    let code = run(control, marks).map_or(70, |()| 0);
    std::process::exit(code)
}

fn run(control: OwnedFd, marks: bool) -> std::io::Result<()> {
    let control = sys::keep_only(control)?;
    sys::set_mask(&[libc::SIGCHLD]);
    let mark = marks.then(mark::enter).transpose()?;
    if mark.is_none() {
        // Without it, orphans land on the guest, which ends them with the job.
        let _ = become_subreaper();
    }
    let family = mark.map_or(Family::Below, Family::Marked);
    let signals = sys::signal_fd(&[libc::SIGCHLD])?;
    let pid = getpid().as_raw_nonzero().get();
    control::send(
        &control,
        &control::encode(&Report {
            ready: Some(Reaper { pid, mark }),
            ..Report::default()
        }),
        &[],
        SendFlags::empty(),
    )?;
    let mut message = vec![0; control::MAX_MESSAGE];
    loop {
        let (size, fds) = control::receive(&control, &mut message, RecvFlags::empty())?;
        if size == 0 {
            return Ok(());
        }
        let order = control::decode(&message[..size]);
        while sys::next_signal(&signals).is_some() {}
        let started = Instant::now();
        match start(order, fds) {
            Ok(Some(leader)) => {
                if !Job::new(&control, &signals, family, leader, started).watch() {
                    return Ok(());
                }
            }
            // It was meant for the job before.
            Ok(None) => {}
            Err((stage, errno)) => control::send(
                &control,
                &control::encode(&Report {
                    failed: Some((stage as u8, errno)),
                    gone: true,
                    ..Report::default()
                }),
                &[],
                SendFlags::empty(),
            )?,
        }
    }
}

/// Starts the leader; nothing when the order was not to start one.
fn start(order: Option<Order>, mut fds: Vec<OwnedFd>) -> Result<Option<i32>, (Stage, i32)> {
    let setup = (Stage::Setup, libc::EPROTO);
    let command = match order {
        Some(Order::Start(command)) => command,
        Some(Order::StartFromFile) => match fds.pop().and_then(read_command) {
            Some(Order::Start(command)) => command,
            _ => return Err(setup),
        },
        _ => return Ok(None),
    };
    let [cwd, stdin, stdout, stderr] = fds.as_slice() else {
        return Err(setup);
    };
    let strings = |list: &[serde_bytes::ByteBuf]| -> Result<Vec<CString>, (Stage, i32)> {
        list.iter()
            .map(|string| CString::new(string.as_slice()).map_err(|_| (Stage::Exec, libc::EINVAL)))
            .collect()
    };
    let argv = strings(&command.argv)?;
    let launch = Launch {
        programs: &programs(&command)?,
        argv: &argv,
        env: &strings(&command.env)?,
        cwd: cwd.as_fd(),
        streams: [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
    };
    sys::launch(&launch).map(Some)
}

fn read_command(file: OwnedFd) -> Option<Order> {
    let mut file = File::from(file);
    let mut bytes = Vec::new();
    file.rewind().ok()?;
    file.read_to_end(&mut bytes).ok()?;
    control::decode(&bytes)
}

/// The paths to try for the program: itself, or its name below each folder of `PATH`.
fn programs(command: &Command) -> Result<Vec<CString>, (Stage, i32)> {
    let name = command.argv.first().ok_or((Stage::Exec, libc::ENOENT))?;
    let path = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| (Stage::Exec, libc::EINVAL));
    if name.is_empty() {
        return Err((Stage::Exec, libc::ENOENT));
    }
    if name.contains(&b'/') {
        return Ok(vec![path(name.to_vec())?]);
    }
    let folders = command
        .env
        .iter()
        .find_map(|entry| entry.strip_prefix(b"PATH="))
        .unwrap_or(DEFAULT_PATH);
    folders
        .split(|byte| *byte == b':')
        .map(|folder| if folder.is_empty() { b"." } else { folder })
        .map(|folder| path([folder, b"/", name].concat()))
        .collect()
}

struct Job<'a> {
    control: &'a OwnedFd,
    /// The guest is there to give orders.
    ordered: bool,
    signals: &'a OwnedFd,
    family: Family,
    /// Orphans are left, whose end makes no signal.
    orphans: bool,
    leader: i32,
    started: Instant,
    /// When what is left of the job is killed.
    kill_at: Option<Instant>,
    report: Report,
}

impl<'a> Job<'a> {
    fn new(
        control: &'a OwnedFd,
        signals: &'a OwnedFd,
        family: Family,
        leader: i32,
        started: Instant,
    ) -> Self {
        let report = Report {
            started: Some(leader),
            ..Report::default()
        };
        Self {
            control,
            ordered: true,
            signals,
            family,
            orphans: false,
            leader,
            started,
            kill_at: None,
            report,
        }
    }

    /// Stays until nothing of the job is left; false when the guest is gone.
    fn watch(mut self) -> bool {
        // A short command ends while this waits; then one message says all.
        sys::wait_for_child_signal(PATIENCE);
        loop {
            self.reap();
            let gone = self.report.gone;
            self.tell();
            if gone {
                return self.ordered;
            }
            self.wait();
            if self.kill_at.is_some_and(|at| at <= Instant::now()) {
                tree::kill(|| self.family.members());
                self.kill_at = Some(Instant::now() + KILL_AGAIN);
            }
        }
    }

    /// Takes every child that has ended.
    fn reap(&mut self) {
        loop {
            match sys::reap() {
                Reaped::Child(ended) if ended.pid == self.leader => {
                    self.report.exited = Some(Exit {
                        code: ended.code(),
                        signal: ended.signal(),
                        duration_us: u64::try_from(self.started.elapsed().as_micros())
                            .unwrap_or(u64::MAX),
                        user_us: ended.user_us,
                        system_us: ended.system_us,
                        peak_kb: ended.peak_kb,
                    });
                }
                Reaped::Child(_) => {}
                Reaped::Running => return,
                Reaped::Nobody => {
                    self.look_for_orphans();
                    return;
                }
            }
        }
    }

    fn look_for_orphans(&mut self) {
        if let Family::Marked(_) = self.family {
            self.orphans = !self.family.members().is_empty();
        }
        self.report.gone = !self.orphans;
    }

    /// Sends what has happened. When the guest is gone, its jobs end too.
    fn tell(&mut self) {
        let report = std::mem::take(&mut self.report);
        if report != Report::default()
            && control::send(
                self.control,
                &control::encode(&report),
                &[],
                SendFlags::empty(),
            )
            .is_err()
        {
            self.desert();
        }
    }

    /// Waits for a child's end, an order, or the time of the kill.
    fn wait(&mut self) {
        let look = self.orphans.then_some(LOOK_AGAIN);
        let left = self
            .kill_at
            .map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.into_iter().chain(look).min();
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [
            PollFd::new(self.signals, PollFlags::IN),
            PollFd::new(self.control, PollFlags::IN),
        ];
        let watched = if self.ordered { 2 } else { 1 };
        if poll(&mut fds[..watched], timeout.as_ref()).is_err() {
            return;
        }
        let ordered = !fds[1].revents().is_empty();
        while sys::next_signal(self.signals).is_some() {}
        if ordered {
            self.obey();
        }
    }

    fn obey(&mut self) {
        let mut message = [0; control::MAX_REPORT];
        let size = match control::receive(self.control, &mut message, RecvFlags::DONTWAIT) {
            Ok((size @ 1.., _)) => size,
            Err(Errno::AGAIN) => return,
            _ => return self.desert(),
        };
        match control::decode(&message[..size]) {
            Some(Order::Signal { signal, tree: true }) => {
                self.report.sent = Some(self.family.signal(signal));
            }
            Some(Order::Signal {
                signal,
                tree: false,
            }) => {
                let sent =
                    self.family.members().contains(&self.leader) && sys::kill(self.leader, signal);
                self.report.sent = Some(u32::from(sent));
            }
            Some(Order::Cancel { grace_ms }) => self.end(Duration::from_millis(grace_ms)),
            _ => {}
        }
    }

    fn desert(&mut self) {
        self.ordered = false;
        self.end(Duration::ZERO);
    }

    /// Asks the whole tree to end, and makes it after `grace`. The earlier of two ends counts.
    fn end(&mut self, grace: Duration) {
        let at = Instant::now() + grace;
        if self.kill_at.is_some_and(|earlier| earlier <= at) {
            return;
        }
        self.kill_at = Some(at);
        if !grace.is_zero() {
            self.family.signal(libc::SIGTERM);
            // A stopped process would not hear it.
            self.family.signal(libc::SIGCONT);
        }
    }
}
