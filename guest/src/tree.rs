//! The processes of a job, and their end.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::{mark, sys};

/// How the processes of this process's job are known.
#[derive(Clone, Copy)]
pub enum Family {
    /// They are its descendants, orphans included.
    Below,
    /// They bear this mark.
    Marked(u64),
}

impl Family {
    /// All of them but this process.
    pub fn members(self) -> Vec<i32> {
        match self {
            Self::Below => descendants(),
            Self::Marked(mark) => mark::members(|other| other == mark),
        }
    }

    /// Signals each once; returns how many were reached.
    pub fn signal(self, signal: i32) -> u32 {
        self.members()
            .iter()
            .map(|pid| u32::from(sys::kill(*pid, signal)))
            .sum()
    }
}

/// More sweeps than any tree that cannot outrun them needs.
const MAX_SWEEPS: usize = 64;

/// All descendants of this process, nearest first.
fn descendants() -> Vec<i32> {
    below(std::process::id().cast_signed())
}

/// All descendants of `root`, nearest first.
pub fn below(root: i32) -> Vec<i32> {
    let children = finder();
    let mut seen = HashSet::from([root]);
    let mut found = Vec::new();
    let mut next = VecDeque::from([root]);
    while let Some(parent) = next.pop_front() {
        for child in children(parent) {
            if seen.insert(child) {
                found.push(child);
                next.push_back(child);
            }
        }
    }
    found
}

/// The children of one process.
pub fn children(of: i32) -> Vec<i32> {
    finder()(of)
}

/// How to find children: the kernel's list, or else one look at all processes.
fn finder() -> impl Fn(i32) -> Vec<i32> {
    let pairs = if children_file() { None } else { Some(scan()) };
    move |parent| match &pairs {
        None => listed_children(parent),
        Some(pairs) => pairs
            .iter()
            .filter(|(_, of)| *of == parent)
            .map(|(pid, _)| *pid)
            .collect(),
    }
}

/// Whether the kernel lists the children of a process.
pub fn children_file() -> bool {
    let pid = std::process::id();
    fs::metadata(format!("/proc/{pid}/task/{pid}/children")).is_ok()
}

fn listed_children(pid: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let lists = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_ascii_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<i32>>()
        })
        .collect()
}

/// Every process with its parent.
fn scan() -> Vec<(i32, i32)> {
    pids()
        .into_iter()
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect()
}

/// Every process that `/proc` shows.
pub fn pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            std::str::from_utf8(entry.file_name().as_bytes())
                .ok()?
                .parse()
                .ok()
        })
        .collect()
}

/// The parent of a process; 0 when it is outside this PID namespace.
pub fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, a parenthesis included.
    let behind_name = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(stat.get(behind_name + 1..)?).ok()?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Stops what `list` gives until it gives nothing new, so that no fork outruns the kill, then kills all of it.
pub fn kill(list: impl Fn() -> Vec<i32>) {
    let mut stopped = HashSet::new();
    for _ in 0..MAX_SWEEPS {
        let fresh: Vec<i32> = list()
            .into_iter()
            .filter(|pid| !stopped.contains(pid))
            .collect();
        if fresh.is_empty() {
            break;
        }
        for pid in fresh {
            sys::kill(pid, libc::SIGSTOP);
            stopped.insert(pid);
        }
    }
    for pid in stopped {
        sys::kill(pid, libc::SIGKILL);
    }
}
