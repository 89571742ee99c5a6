//! The zygote forks a reaper for every job, from a small process that never has threads.
//!
//! It and all its descendants live in one Landlock domain where the kernel has it: jobs can signal each other there, but not the
//! guest, which stays outside.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getpid, set_dumpable_behavior, setrlimit,
};
use serde::{Deserialize, Serialize};

use crate::control::{self, Report};
use crate::{mark, reaper, sys};

/// How much likelier than the guest a job is to be chosen when memory runs out.
const JOB_OOM_SCORE: &str = "500";

/// The guest's end of its zygote.
pub struct Zygote {
    pub socket: OwnedFd,
    pub pid: i32,
}

/// What the zygote found when it started.
#[derive(Serialize, Deserialize, Default, Clone, Copy)]
pub struct Findings {
    /// The guest is out of the jobs' reach.
    pub isolated: bool,
    /// Orphans can be adopted.
    pub subreaper: bool,
    /// They cannot, and are known by the mark of their job.
    pub marks: bool,
}

impl Zygote {
    /// Forks a zygote and waits for its word. `limit` is what jobs get as their limit of descriptors; without `subreapers` none is tried.
    pub fn start(limit: Rlimit, subreapers: bool) -> Result<(Self, Findings), Errno> {
        let (ours, theirs) = control::pair()?;
        let guest = getpid().as_raw_nonzero().get();
        match sys::fork().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))? {
            None => {
                drop(ours);
                let code = serve(theirs, guest, limit, subreapers).map_or(70, |()| 0);
                std::process::exit(code)
            }
            Some(pid) => {
                drop(theirs);
                let mut message = [0; control::MAX_REPORT];
                let (size, _) = control::receive(&ours, &mut message, RecvFlags::empty())?;
                let findings = control::decode(&message[..size]).ok_or(Errno::PIPE)?;
                Ok((Self { socket: ours, pid }, findings))
            }
        }
    }

    /// Asks for a reaper and returns the guest's end of it; orders may be sent to it at once.
    pub fn reaper(&self) -> Result<OwnedFd, Errno> {
        let (ours, theirs) = control::pair()?;
        control::send(&self.socket, b"f", &[theirs.as_fd()], SendFlags::DONTWAIT)?;
        Ok(ours)
    }
}

fn serve(socket: OwnedFd, guest: i32, limit: Rlimit, subreapers: bool) -> std::io::Result<()> {
    let socket = sys::keep_only(socket)?;
    sys::reset_signals();
    setrlimit(Resource::Nofile, limit)?;
    // Best effort: /proc may be absent, and then the kernel's own choice stands.
    let _ = std::fs::write("/proc/self/oom_score_adj", JOB_OOM_SCORE);
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let isolated = sys::enter_signal_scope().is_ok() && sys::probe_signal(guest) == libc::EPERM;
    let subreaper = subreapers && reaper::become_subreaper().is_ok();
    let findings = Findings {
        isolated,
        subreaper,
        marks: !subreaper && mark::works(),
    };
    // Its ended reapers need no attention.
    sys::ignore_signal(libc::SIGCHLD);
    control::send(
        &socket,
        &control::encode(&findings),
        &[],
        SendFlags::empty(),
    )?;
    let mut message = [0; control::MAX_REPORT];
    loop {
        let (size, mut fds) = control::receive(&socket, &mut message, RecvFlags::empty())?;
        if size == 0 {
            return Ok(());
        }
        let Some(theirs) = fds.pop() else { continue };
        match sys::fork() {
            Ok(None) => {
                sys::default_signal(libc::SIGCHLD);
                reaper::main(theirs, findings.marks)
            }
            Ok(Some(_)) => {}
            Err(error) => {
                let report = Report {
                    failed: Some((reaper::STAGE_FORK, error.raw_os_error().unwrap_or(0))),
                    ..Report::default()
                };
                // The guest reads the same from the closed socket.
                let _ = control::send(&theirs, &control::encode(&report), &[], SendFlags::empty());
            }
        }
    }
}
