//! The open network: a namespace of its own, which pasta connects from outside.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::thread::UnshareFlags;

use crate::launch::stage::unshare;
use crate::launch::supervise::own_words;
use crate::launch::{Failure, Options, Outcome, STEP, Step, command_as_user};

const NETWORK_DEADLINE: Duration = Duration::from_secs(5);

pub fn connect_pasta(options: &Options, ready: &mut UnixStream, sandbox: &Child) -> Outcome<Child> {
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
pub fn connect_network() -> Outcome<()> {
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
