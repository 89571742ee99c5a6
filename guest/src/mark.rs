//! Which processes belong to a job where the kernel has no child subreaper and hands orphans to PID 1 (gVisor before 2023).
//!
//! The job's reaper enters a user namespace of its own and drops a random part of the capability bounding set in it. What is left is the
//! job's mark: every descendant inherits it, `/proc/PID/status` shows it, and only another user namespace would change it, which a
//! filter refuses. The user keeps its number, and nobody in the namespace holds a capability.

use std::fs;

use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, WaitOptions, getgid, getuid, set_dumpable_behavior, waitpid,
};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
};

use crate::{sys, tree};

/// More looks at the processes than a handover between two of them takes.
const MAX_LOOKS: usize = 64;

/// Enters a marked namespace and returns the mark.
pub fn enter() -> std::io::Result<u64> {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    if uid == 0 {
        // Root of a user namespace has every capability in it, and could drop more.
        return Err(std::io::ErrorKind::Unsupported.into());
    }
    let before = own().ok_or(Errno::NOSYS)?;
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    sys::enter_user_namespace()?;
    // The maps of a process that is not dumpable belong to root.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    // Where the file is missing, or the right, the map of one group is allowed without.
    let _ = fs::write("/proc/self/setgroups", "deny");
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    drop_from_bounding_set(u64::from_ne_bytes(bytes));
    sys::refuse_user_namespaces()?;
    let none = CapabilitySet::empty();
    set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?;
    own()
        .filter(|mark| *mark != before)
        .ok_or_else(|| Errno::NOSYS.into())
}

/// Drops the capabilities whose bits are set in `dropped`, as far as this kernel has them.
fn drop_from_bounding_set(dropped: u64) {
    for bit in (0..u64::BITS).map(|number| 1 << number) {
        if dropped & bit != 0 {
            let _ = remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(bit));
        }
    }
}

/// Whether processes can be marked here; tried in a child.
pub fn works() -> bool {
    match sys::fork() {
        Ok(None) => std::process::exit(i32::from(enter().is_err())),
        Ok(Some(pid)) => waitpid(Pid::from_raw(pid), WaitOptions::empty())
            .ok()
            .flatten()
            .is_some_and(|(_, status)| status.exit_status() == Some(0)),
        Err(_) => false,
    }
}

/// The mark of this process.
fn own() -> Option<u64> {
    of(std::process::id().cast_signed())
}

/// The mark of a process; nothing when it is gone.
pub fn of(pid: i32) -> Option<u64> {
    Status::read(pid).map(|status| status.mark)
}

/// All processes but this one whose mark `belongs`. A process that ended during the look may have handed over to one that was not
/// looked at, so an empty result is only given by a look without.
pub fn members(belongs: impl Fn(u64) -> bool) -> Vec<i32> {
    let me = std::process::id().cast_signed();
    for _ in 0..MAX_LOOKS {
        let mut found = Vec::new();
        let mut settled = true;
        for pid in tree::pids().into_iter().filter(|pid| *pid != me) {
            match Status::read(pid) {
                Some(status) if !belongs(status.mark) => {}
                Some(status) if status.ended => settled = false,
                Some(_) => found.push(pid),
                None => settled = false,
            }
        }
        if settled || !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

struct Status {
    mark: u64,
    ended: bool,
}

impl Status {
    fn read(pid: i32) -> Option<Self> {
        let text = fs::read(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &[u8]| {
            text.split(|byte| *byte == b'\n')
                .find_map(|line| line.strip_prefix(name))
                .map(<[u8]>::trim_ascii)
        };
        let mark = std::str::from_utf8(field(b"CapBnd:")?).ok()?;
        Some(Self {
            mark: u64::from_str_radix(mark, 16).ok()?,
            ended: matches!(field(b"State:")?.first(), Some(b'Z' | b'X')),
        })
    }
}
