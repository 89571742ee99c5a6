//! The guest's own socket: `serve --listen` accepts on it, `connect` relays its standard streams to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec, read, write};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    listen as listen_on, shutdown, socket_with, socketpair,
};
use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{getpid, getuid};

use crate::tree;

/// In the abstract namespace, which Landlock closes to jobs and which needs no writable place.
const NAME: &[u8] = b"b4-guest";
/// For connections that outlive their relay.
const LASTING: &[u8] = b"b4-guest-lasting";
const BACKLOG: i32 = 16;
const BUFFER: usize = 256 << 10;
/// What Linux lets anybody ask for; the engine's reader is then woken a quarter as often.
const PIPE: usize = 1 << 20;
const TRY_AGAIN: Duration = Duration::from_millis(5);
const UNAVAILABLE: i32 = 69;

fn socket(lasting: bool) -> Result<(OwnedFd, SocketAddrUnix), Errno> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let name = if lasting { LASTING } else { NAME };
    Ok((socket, SocketAddrUnix::new_abstract_name(name)?))
}

/// Listens for hosts, or for those whose connections are to last.
pub fn listen(lasting: bool) -> Result<OwnedFd, Errno> {
    let (socket, address) = socket(lasting)?;
    bind(&socket, &address)?;
    listen_on(&socket, BACKLOG)?;
    Ok(socket)
}

/// Takes the next connection, if it comes from a host: the same user, started from outside this PID namespace.
///
/// gVisor gives a socket's own process as its peer. There a job may connect as well; it can do no more that way than it can by itself.
pub fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    let socket = accept_with(listener, SocketFlags::CLOEXEC).ok()?;
    let peer = socket_peercred(&socket).ok()?;
    let from_outside = tree::parent(peer.pid.as_raw_nonzero().get()) == Some(0);
    let unknown = peer.pid == getpid();
    (peer.uid == getuid() && (from_outside || unknown)).then_some(socket)
}

/// Relays standard input and output to the guest until either ends.
pub fn relay(timeout: Duration, lasting: bool) -> Result<(), (i32, String)> {
    let guest = dial(timeout, lasting)
        .map_err(|errno| (UNAVAILABLE, format!("no guest answers: {errno}")))?;
    pump(rustix::stdio::stdin(), rustix::stdio::stdout(), &guest)
        .map_err(|errno| (70, errno.to_string()))
}

/// Relays between the standard streams and a guest in this very process; returns the guest's end.
pub fn relayed() -> Result<OwnedFd, Errno> {
    // The guest settles the standard streams for itself.
    let input = fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let output = fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    std::thread::spawn(move || {
        // It ends the process, or the guest does that by itself.
        let _ = pump(input.as_fd(), output.as_fd(), &theirs);
    });
    Ok(ours)
}

/// Copies both ways until either stream ends, and ends the process then.
fn pump(input: BorrowedFd<'_>, output: BorrowedFd<'_>, guest: &OwnedFd) -> Result<(), Errno> {
    // Nothing is said before the host was heard: it may still be taking over the stream from whoever opened it.
    wait(input, PollFlags::IN)?;
    // No pipe, or a smaller limit: slower, nothing else.
    let _ = fcntl_setpipe_size(output, PIPE);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // What failed shows in the other direction.
            let _ = copy(input, guest.as_fd());
            let _ = shutdown(guest, Shutdown::Write);
        });
        let _ = copy(guest.as_fd(), output);
        std::process::exit(0)
    })
}

fn dial(timeout: Duration, lasting: bool) -> Result<OwnedFd, Errno> {
    let until = Instant::now() + timeout;
    loop {
        let (socket, address) = socket(lasting)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(_) if Instant::now() < until => std::thread::sleep(TRY_AGAIN),
            Err(errno) => return Err(errno),
        }
    }
}

fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let size = match read(from, &mut buffer[..]) {
            Ok(0) => return Ok(()),
            Ok(size) => size,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {
                wait(from, PollFlags::IN)?;
                continue;
            }
            Err(errno) => return Err(errno),
        };
        let mut rest = &buffer[..size];
        while !rest.is_empty() {
            match write(to, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait(to, PollFlags::OUT)?,
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// The other holder of a standard stream may have made it non-blocking.
fn wait(fd: BorrowedFd<'_>, flags: PollFlags) -> Result<(), Errno> {
    poll(&mut [PollFd::from_borrowed_fd(fd, flags)], None).map(drop)
}
