//! What an unprivileged user could not reach, bound where it can.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Dev, FileType, Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change};
use rustix::thread::UnshareFlags;

use crate::launch::{Options, Outcome, STAGING, Step};

const TUN: &str = "/dev/net/tun";

/// Bind the sources below a tmpfs that only this process and its children see.
pub fn stage(options: &Options) -> Outcome<()> {
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
pub fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}
