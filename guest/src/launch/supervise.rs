//! bubblewrap's parent: it ends the sandbox with the supervisor, and removes the control groups.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::launch::network::connect_pasta;
use crate::launch::{Cgroup, Failure, Options, Outcome, STEP, Step, command_as_user};

const REMOVAL_DEADLINE: Duration = Duration::from_secs(5);

pub fn supervise(options: &Options) -> Outcome<i32> {
    let parent = watch_parent(options.parent)?;
    let started = start(options);
    if started.is_err() {
        remove_cgroups(&options.cgroups);
    }
    let (mut sandbox, pasta) = started?;
    let status = wait(&parent, &mut sandbox, pasta).step("wait");
    remove_cgroups(&options.cgroups);
    let status = status?;
    Ok(status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

fn watch_parent(expected: Option<u32>) -> Outcome<OwnedFd> {
    let parent =
        rustix::process::getppid().ok_or_else(|| Failure("the supervisor is gone".into()))?;
    let watched = pidfd_open(parent, PidfdFlags::empty()).step("watch the supervisor")?;
    let still = rustix::process::getppid();
    if still != Some(parent)
        || expected.is_some_and(|pid| i64::from(pid) != i64::from(parent.as_raw_pid()))
    {
        return Err(Failure("the supervisor is gone".into()));
    }
    Ok(watched)
}

fn start(options: &Options) -> Outcome<(Child, Option<Child>)> {
    if options.pasta.is_empty() {
        let sandbox = spawn_inside(options, &mut command_as_user(options, &options.command))?;
        return Ok((sandbox, None));
    }
    let (mut ours, theirs) = UnixStream::pair().step("socket pair")?;
    let mut words = own_words(&["--die-with-parent", "--connect-network"]);
    words.extend(options.command.iter().cloned());
    let mut sandbox = spawn_inside(
        options,
        command_as_user(options, &words).stdout(OwnedFd::from(theirs)),
    )?;
    let connected = connect_pasta(options, &mut ours, &sandbox);
    if connected.is_err() {
        end(&mut sandbox);
    }
    Ok((sandbox, Some(connected?)))
}

/// The command line that runs this program again as another stage.
pub fn own_words(options: &[&str]) -> Vec<OsString> {
    ["/proc/self/exe", "launch"]
        .iter()
        .chain(options)
        .chain(&["--"])
        .map(OsString::from)
        .collect()
}

/// Spawn within the control groups and leave them again: this process must be able to remove them.
fn spawn_inside(options: &Options, command: &mut Command) -> Outcome<Child> {
    let joined = options
        .cgroups
        .iter()
        .try_for_each(|cgroup| fs::write(&cgroup.join, "0"));
    let spawned = joined
        .step("join the control groups")
        .and_then(|()| command.spawn().step("cannot run the command"));
    for cgroup in &options.cgroups {
        fs::write(&cgroup.leave, "0").step("leave the control groups")?;
    }
    spawned
}

/// Until the sandbox ends; the end of the supervisor or of pasta ends it.
fn wait(parent: &OwnedFd, sandbox: &mut Child, pasta: Option<Child>) -> io::Result<ExitStatus> {
    let watched = pidfd_open(Pid::from_child(sandbox), PidfdFlags::empty())?;
    let network = pasta
        .as_ref()
        .map(|child| pidfd_open(Pid::from_child(child), PidfdFlags::empty()))
        .transpose()?;
    let mut events = vec![
        PollFd::new(&watched, PollFlags::IN),
        PollFd::new(parent, PollFlags::IN),
    ];
    events.extend(network.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
    while let Err(error) = poll(&mut events, None) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    if events[0].revents().is_empty() {
        end(sandbox);
    }
    if let Some(mut pasta) = pasta {
        end(&mut pasta);
    }
    sandbox.wait()
}

fn end(child: &mut Child) {
    // Neither can fail for a child of ours that has not been waited for.
    let _ = child.kill();
    let _ = child.wait();
}

/// A control group can be removed once the kernel has let go of its last process; what is left in it is killed.
fn remove_cgroups(cgroups: &[Cgroup]) {
    let started = Instant::now();
    for directory in cgroups.iter().filter_map(|cgroup| cgroup.join.parent()) {
        while fs::remove_dir(directory).is_err_and(|error| {
            error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error())
        }) {
            kill_members(directory);
            if started.elapsed() > REMOVAL_DEADLINE {
                break;
            }
            sleep(STEP);
        }
    }
}

fn kill_members(directory: &Path) {
    let members = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    for pid in members
        .lines()
        .filter_map(|line| line.parse().ok())
        .filter_map(Pid::from_raw)
    {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}
