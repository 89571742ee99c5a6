//! Where reapers come from: the zygote, a reaper in reserve, and what is to be done when either is killed.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Rlimit;

use crate::control::{self, Command, Order, Reaper, Report};
use crate::mark;
use crate::sys::{self, Reaped};
use crate::tree;
use crate::zygote::{Findings, Zygote};

/// After a command took the reserve: most end sooner, and their reaper is the next reserve.
const AFTER_START: Duration = Duration::from_millis(10);
const AFTER_FAILURE: Duration = Duration::from_millis(100);

pub struct Nursery {
    zygote: Option<Zygote>,
    limit: Rlimit,
    subreapers: bool,
    /// Marks of reapers that were killed: what bears one is to end.
    orphaned: Vec<u64>,
    /// No command is ever started here.
    closed: bool,
    /// A reaper that waits for its first order, so that a command costs one fork.
    reserve: Option<Reserve>,
    /// No reaper is put in reserve before.
    not_before: Instant,
}

struct Reserve {
    control: OwnedFd,
    reaper: Reaper,
}

impl Nursery {
    pub fn new(limit: Rlimit, subreapers: bool) -> Result<(Self, Findings), Errno> {
        let (zygote, findings) = Zygote::start(limit, subreapers)?;
        Ok((
            Self {
                zygote: Some(zygote),
                limit,
                subreapers,
                orphaned: Vec::new(),
                closed: false,
                reserve: None,
                not_before: Instant::now(),
            },
            findings,
        ))
    }

    /// One for a guest that runs no commands.
    pub fn closed(limit: Rlimit) -> Self {
        Self {
            zygote: None,
            limit,
            subreapers: false,
            orphaned: Vec::new(),
            closed: true,
            reserve: None,
            not_before: Instant::now(),
        }
    }

    pub fn zygote(&self) -> Option<&OwnedFd> {
        self.zygote.as_ref().map(|zygote| &zygote.socket)
    }

    pub fn reserve(&self) -> Option<&OwnedFd> {
        self.reserve.as_ref().map(|reserve| &reserve.control)
    }

    /// The zygote has ended: the next reaper comes from a new one.
    pub fn lose_zygote(&mut self) {
        self.zygote = None;
    }

    /// A reaper was killed: who did it may have killed these too, and they are not asked any more.
    pub fn distrust(&mut self, killed: Reaper) {
        self.orphaned.extend(killed.mark);
        self.zygote = None;
        self.reserve = None;
    }

    /// Reads what the reaper in reserve says: that it is ready, or that it is none.
    pub fn hear_reserve(&mut self) {
        let Some(reserve) = &mut self.reserve else {
            return;
        };
        let mut message = [0; control::MAX_REPORT];
        let received = control::receive(&reserve.control, &mut message, RecvFlags::DONTWAIT);
        let report = received
            .ok()
            .and_then(|(size, _)| control::decode::<Report>(&message[..size]));
        if let Some(Report {
            ready: Some(reaper),
            ..
        }) = report
        {
            reserve.reaper = reaper;
        } else {
            self.reserve = None;
            self.not_before = Instant::now() + AFTER_FAILURE;
        }
    }

    /// Makes sure that a reaper is in reserve. Without one, the next command only takes longer.
    pub fn prepare(&mut self) {
        if !self.closed && self.reserve.is_none() && self.not_before <= Instant::now() {
            self.reserve = self.reaper().ok().map(|control| Reserve {
                control,
                reaper: Reaper::default(),
            });
        }
    }

    /// When a reaper is to be put in reserve.
    pub fn next_timer(&self) -> Option<Instant> {
        (!self.closed && self.reserve.is_none()).then_some(self.not_before)
    }

    /// Puts the reaper of a job that is over in reserve; a surplus one ends.
    pub fn take_back(&mut self, control: OwnedFd, reaper: Reaper) {
        self.reserve.get_or_insert(Reserve { control, reaper });
    }

    fn reaper(&mut self) -> Result<OwnedFd, Errno> {
        if let Some(zygote) = &self.zygote {
            match zygote.reaper() {
                Err(Errno::PIPE | Errno::CONNRESET) => {}
                other => return other,
            }
        }
        let (zygote, _) = Zygote::start(self.limit, self.subreapers)?;
        self.zygote.insert(zygote).reaper()
    }

    /// Hands a command to a reaper; returns its control socket and what is known of it.
    pub fn start(
        &mut self,
        command: Command,
        fds: [BorrowedFd<'_>; 4],
    ) -> Result<(OwnedFd, Reaper), Errno> {
        let message = control::encode(&Order::Start(command));
        self.not_before = Instant::now() + AFTER_START;
        if let Some(Reserve { control, reaper }) = self.reserve.take()
            && send_command(&control, &message, fds).is_ok()
        {
            return Ok((control, reaper));
        }
        let control = self.reaper()?;
        send_command(&control, &message, fds)?;
        Ok((control, Reaper::default()))
    }

    pub fn reserve_pid(&self) -> Option<i32> {
        self.reserve.as_ref().map(|reserve| reserve.reaper.pid)
    }

    /// Reaps what has ended and kills what landed here because its reaper was killed; false when something is still left.
    /// `reapers` are those of running jobs.
    pub fn clear_orphans(&mut self, reapers: &[i32]) -> bool {
        while let Reaped::Child(_) = sys::reap() {}
        let me = std::process::id().cast_signed();
        let zygote = self.zygote.as_ref().map_or(0, |zygote| zygote.pid);
        let orphans = || -> Vec<i32> {
            let unknown = tree::children(me)
                .into_iter()
                .filter(|pid| *pid != zygote && !reapers.contains(pid));
            unknown
                .flat_map(|pid| [vec![pid], tree::below(pid)].concat())
                .collect()
        };
        tree::kill(orphans);
        while let Reaped::Child(_) = sys::reap() {}
        let clear = orphans().is_empty();
        self.clear_marked() && clear
    }

    fn clear_marked(&mut self) -> bool {
        if self.orphaned.is_empty() {
            return true;
        }
        let marked = || mark::members(|mark| self.orphaned.contains(&mark));
        tree::kill(marked);
        let clear = marked().is_empty();
        if clear {
            self.orphaned.clear();
        }
        clear
    }
}

fn send_command(reaper: &OwnedFd, message: &[u8], fds: [BorrowedFd<'_>; 4]) -> Result<(), Errno> {
    if message.len() <= control::MAX_MESSAGE {
        return control::send(reaper, message, &fds, SendFlags::DONTWAIT);
    }
    let mut file = File::from(rustix::fs::memfd_create("command", MemfdFlags::CLOEXEC)?);
    file.write_all(message)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let [cwd, stdin, stdout, stderr] = fds;
    control::send(
        reaper,
        &control::encode(&Order::StartFromFile),
        &[cwd, stdin, stdout, stderr, file.as_fd()],
        SendFlags::DONTWAIT,
    )
}
