//! Messages between the guest, its zygote and its reapers: one datagram each over socket pairs, descriptors beside them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_bytes::ByteBuf;

/// Longest datagram; a longer command travels in a memory file.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// Longer than any report or finding.
pub const MAX_REPORT: usize = 256;
const MAX_FDS: usize = 8;

/// The command of a job. Its descriptors, in order: working directory, stdin, stdout, stderr, and, for a long command, the memory
/// file that holds it.
#[derive(Serialize, Deserialize)]
pub struct Command {
    pub argv: Vec<ByteBuf>,
    pub env: Vec<ByteBuf>,
}

/// What the guest tells a reaper.
#[derive(Serialize, Deserialize)]
pub enum Order {
    Start(Command),
    StartFromFile,
    Signal { signal: i32, tree: bool },
    Cancel { grace_ms: u64 },
}

/// A reaper, as the guest knows it.
#[derive(Serialize, Deserialize, Default, Debug, Clone, Copy, PartialEq)]
pub struct Reaper {
    /// 0 until it has said that it is ready.
    pub pid: i32,
    /// What its job's processes bear where orphans do not come to it.
    pub mark: Option<u64>,
}

/// What a reaper tells the guest: whatever has happened since the last report.
#[derive(Serialize, Deserialize, Default, Debug, PartialEq)]
pub struct Report {
    pub ready: Option<Reaper>,
    pub failed: Option<(u8, i32)>,
    pub started: Option<i32>,
    pub exited: Option<Exit>,
    pub sent: Option<u32>,
    /// Nothing of the job is left.
    pub gone: bool,
}

#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub duration_us: u64,
    pub user_us: u64,
    pub system_us: u64,
    pub peak_kb: u64,
}

/// A connected pair of control sockets.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// Sends one datagram.
pub fn send(
    socket: impl AsFd,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(message)], &mut control, flags))
        .map(drop)
}

/// Receives one datagram of at most the buffer's size; 0 bytes at the end of the connection.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let mut receive = || {
        rustix::io::retry_on_intr(|| {
            recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)
        })
    };
    // A peer that ended without reading all is told first, and once; what it had sent before is still there.
    let got = receive().or_else(|errno| match errno {
        Errno::CONNRESET => receive(),
        other => Err(other),
    })?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok((got.bytes, rights.flatten().collect()))
}

/// Encodes a control message.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    rmp_serde::to_vec(message).unwrap_or_default()
}

/// Decodes a control message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    rmp_serde::from_slice(bytes).ok()
}
