//! `b4-guest launch`: what happens on the host between the supervisor and bubblewrap.
//!
//! Started by root it opens a private mount namespace, binds what the sandbox needs into a staging folder (so that an unprivileged user
//! reaches it below any 0700 parent), joins the sandbox's control groups and runs bubblewrap as that user. With `--pasta` it makes a
//! network namespace and has pasta connect it. It stays as bubblewrap's parent: it ends the sandbox when the supervisor dies and removes
//! the control groups. Where nothing has to be watched it sets the limits and becomes the command.
//!
//! Options, then `--`, then the command:
//! `--parent PID`, `--uid N`, `--gid N`, `--stage SOURCE NAME`, `--tun`, `--cgroup JOIN_FILE LEAVE_FILE`, `--rlimit NAME N`,
//! `--pasta WORD` (once per word of its command line), and for the stages it starts itself `--connect-network`, `--die-with-parent`.

mod network;
mod stage;
mod supervise;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{Gid, Uid};
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

use crate::launch::network::connect_network;
use crate::launch::stage::stage;
use crate::launch::supervise::supervise;

const USAGE: i32 = 64;
const UNAVAILABLE: i32 = 69;
/// Covered by a private tmpfs; it exists everywhere, and bubblewrap covers it again inside.
const STAGING: &str = "/tmp";
const STEP: Duration = Duration::from_millis(1);

/// What failed and why, for the last line of stderr.
struct Failure(String);

type Outcome<T> = Result<T, Failure>;

trait Step<T> {
    fn step(self, what: &str) -> Outcome<T>;
}

impl<T, E: std::fmt::Display> Step<T> for Result<T, E> {
    fn step(self, what: &str) -> Outcome<T> {
        self.map_err(|error| Failure(format!("{what}: {error}")))
    }
}

struct Cgroup {
    join: PathBuf,
    leave: PathBuf,
}

#[derive(Default)]
struct Options {
    parent: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    stages: Vec<(PathBuf, PathBuf)>,
    tun: bool,
    cgroups: Vec<Cgroup>,
    limits: Vec<(Resource, u64)>,
    pasta: Vec<OsString>,
    connect_network: bool,
    die_with_parent: bool,
    command: Vec<OsString>,
}

/// Run with the words behind `launch`; returns the exit code unless the process became the command.
pub fn main(arguments: &[OsString]) -> i32 {
    let Some(options) = parse(arguments) else {
        eprintln!("b4-guest launch: bad arguments");
        return USAGE;
    };
    match launch(&options) {
        Ok(code) => code,
        Err(Failure(reason)) => {
            eprintln!("b4-guest launch: {reason}");
            UNAVAILABLE
        }
    }
}

fn parse(arguments: &[OsString]) -> Option<Options> {
    let mut options = Options::default();
    let mut words = arguments.iter().cloned();
    loop {
        let word = words.next()?;
        match word.to_str()? {
            "--" => break,
            "--parent" => options.parent = Some(number(&words.next()?)?),
            "--uid" => options.uid = Some(number(&words.next()?)?),
            "--gid" => options.gid = Some(number(&words.next()?)?),
            "--stage" => options
                .stages
                .push((words.next()?.into(), Path::new(STAGING).join(words.next()?))),
            "--tun" => options.tun = true,
            "--cgroup" => options.cgroups.push(Cgroup {
                join: words.next()?.into(),
                leave: words.next()?.into(),
            }),
            "--rlimit" => options
                .limits
                .push((resource(&words.next()?)?, number(&words.next()?)?)),
            "--pasta" => options.pasta.push(words.next()?),
            "--connect-network" => options.connect_network = true,
            "--die-with-parent" => options.die_with_parent = true,
            _ => return None,
        }
    }
    options.command = words.collect();
    (!options.command.is_empty()).then_some(options)
}

fn number<T: std::str::FromStr>(word: &OsStr) -> Option<T> {
    word.to_str()?.parse().ok()
}

fn resource(name: &OsStr) -> Option<Resource> {
    match name.to_str()? {
        "core" => Some(Resource::Core),
        "data" => Some(Resource::Data),
        "nproc" => Some(Resource::Nproc),
        _ => None,
    }
}

fn launch(options: &Options) -> Outcome<i32> {
    if options.die_with_parent {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .step("death signal")?;
    }
    if options.connect_network {
        connect_network()?;
    }
    for (resource, value) in &options.limits {
        let limit = Rlimit {
            current: Some(*value),
            maximum: Some(*value),
        };
        rustix::process::setrlimit(*resource, limit).step("resource limit")?;
    }
    if !options.stages.is_empty() || options.tun {
        stage(options)?;
    }
    if options.cgroups.is_empty() && options.pasta.is_empty() {
        become_user(options)?;
        return Err(command(&options.command).exec()).step("cannot run the command");
    }
    supervise(options)
}

fn command(words: &[OsString]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

fn become_user(options: &Options) -> Outcome<()> {
    if let Some(gid) = options.gid {
        set_thread_groups(&[]).step("supplementary groups")?;
        set_thread_gid(Gid::from_raw(gid)).step("group")?;
    }
    if let Some(uid) = options.uid {
        set_thread_uid(Uid::from_raw(uid)).step("user")?;
    }
    Ok(())
}

/// As `become_user`, in the child. The standard library drops supplementary groups when root changes the user.
fn command_as_user(options: &Options, words: &[OsString]) -> Command {
    let mut command = command(words);
    if let Some(gid) = options.gid {
        command.gid(gid);
    }
    if let Some(uid) = options.uid {
        command.uid(uid);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn options_end_at_the_command() {
        let options = parse(&words(
            "--uid 70 --stage /srv/a work --rlimit nproc 9 -- bwrap --uid 1000",
        ))
        .unwrap();
        assert_eq!(options.uid, Some(70));
        assert_eq!(
            options.stages,
            [(PathBuf::from("/srv/a"), PathBuf::from("/tmp/work"))]
        );
        assert_eq!(options.command, words("bwrap --uid 1000"));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in [
            "",
            "--",
            "--uid x -- true",
            "--uid",
            "--rlimit fsize 1 -- true",
            "--unknown -- true",
            "true",
        ] {
            assert!(parse(&words(text)).is_none(), "{text}");
        }
    }
}
