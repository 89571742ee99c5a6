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

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Dev, FileType, Gid, Mode, OFlags, Uid};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, pidfd_open};
use rustix::thread::{UnshareFlags, set_thread_gid, set_thread_groups, set_thread_uid};

const USAGE: i32 = 64;
const UNAVAILABLE: i32 = 69;
/// Covered by a private tmpfs; it exists everywhere, and bubblewrap covers it again inside.
const STAGING: &str = "/tmp";
const TUN: &str = "/dev/net/tun";
const NETWORK_DEADLINE: Duration = Duration::from_secs(5);
const REMOVAL_DEADLINE: Duration = Duration::from_secs(5);
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

/// Bind the sources below a tmpfs that only this process and its children see.
fn stage(options: &Options) -> Outcome<()> {
    unshare(UnshareFlags::NEWNS).step("private mount namespace")?;
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .step("private mounts")?;
    let mut sources: Vec<(OwnedFd, &Path)> = Vec::new();
    for (source, target) in &options.stages {
        let file = rustix::fs::open(source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .step("open what to stage")?;
        sources.push((file, target));
    }
    mount(
        "b4-staging",
        STAGING,
        "tmpfs",
        MountFlags::NOSUID,
        Some(c"mode=0711,size=1m"),
    )
    .step("staging folder")?;
    for (source, target) in &sources {
        bind(source, target).step("bind into the staging folder")?;
    }
    if options.tun {
        provide_tun().step("tun device")?;
    }
    Ok(())
}

fn bind(source: &OwnedFd, target: &Path) -> io::Result<()> {
    let parent = target.parent().unwrap_or(Path::new(STAGING));
    if FileType::from_raw_mode(rustix::fs::fstat(source)?.st_mode) == FileType::Directory {
        fs::create_dir_all(target)?;
    } else {
        fs::create_dir_all(parent)?;
        File::create(target)?;
    }
    Ok(mount_bind_recursive(
        format!("/proc/self/fd/{}", source.as_raw_fd()),
        target,
    )?)
}

/// Distributions make the device usable for everyone; where it is not, pasta gets a node of its own.
fn provide_tun() -> io::Result<()> {
    let node = Path::new(STAGING).join("tun");
    let device: Dev = rustix::fs::makedev(10, 200);
    rustix::fs::mknodat(
        CWD,
        &node,
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        device,
    )?;
    rustix::fs::chmod(&node, Mode::from_raw_mode(0o666))?;
    Ok(mount_bind_recursive(&node, TUN)?)
}

/// The safe form is deprecated because of `FILES`, which is never asked for here.
#[allow(deprecated)]
fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}

fn supervise(options: &Options) -> Outcome<i32> {
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
fn own_words(options: &[&str]) -> Vec<OsString> {
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

fn connect_pasta(options: &Options, ready: &mut UnixStream, sandbox: &Child) -> Outcome<Child> {
    ready
        .set_read_timeout(Some(NETWORK_DEADLINE))
        .step("deadline")?;
    ready.read_exact(&mut [0]).step("network namespace")?;
    let mut words = own_words(&["--die-with-parent"]);
    words.extend(options.pasta.iter().cloned());
    for (option, kind) in [("--userns", "user"), ("--netns", "net")] {
        words.extend([
            option.into(),
            format!("/proc/{}/ns/{kind}", sandbox.id()).into(),
        ]);
    }
    command_as_user(options, &words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .step("cannot run pasta")
}

/// In the sandbox's process before bubblewrap: namespaces of its own, told to the parent on stdout, then wait until pasta set them up.
fn connect_network() -> Outcome<()> {
    let (uid, gid) = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET).step("network namespace")?;
    fs::write("/proc/self/setgroups", "deny").step("groups of the network namespace")?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
        .step("group map of the network namespace")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))
        .step("user map of the network namespace")?;
    let mut stdout = io::stdout();
    stdout
        .write_all(b"r")
        .and_then(|()| stdout.flush())
        .step("tell the launcher")?;
    let null = File::options()
        .write(true)
        .open("/dev/null")
        .step("/dev/null")?;
    rustix::stdio::dup2_stdout(&null).step("stdout")?;
    let started = Instant::now();
    while !has_route().step("read the routes")? {
        if started.elapsed() > NETWORK_DEADLINE {
            return Err(Failure("pasta did not connect the network in time".into()));
        }
        sleep(STEP);
    }
    Ok(())
}

/// A route that is not the loopback's, of either family.
fn has_route() -> io::Result<bool> {
    let four = fs::read_to_string("/proc/self/net/route")?;
    let six = fs::read_to_string("/proc/self/net/ipv6_route").unwrap_or_default();
    let default = |line: &str| {
        line.starts_with("00000000000000000000000000000000 00 ")
            && !line.trim_end().ends_with(" lo")
    };
    Ok(four.lines().count() > 1 || six.lines().any(default))
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
