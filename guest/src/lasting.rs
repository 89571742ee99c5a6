//! Connections that outlive the stream below them: where an engine's stream breaks, the host dials again and nothing is lost or done twice.
//!
//! A relay (`connect --lasting`) brings a connection of this kind: a preamble, then records. Each session is a thread that copies
//! between the relay of the moment and a socket pair whose other end is a connection like any other. What the host has not
//! acknowledged is kept, bounded, and told again to the next relay that knows the session's secret.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

use crate::outbox::Waker;

const MAGIC: &[u8; 8] = b"b4-last1";
const SECRET: usize = 32;
const PREAMBLE: usize = MAGIC.len() + 1 + SECRET + 8;
const HEADER: usize = 5;
const DATA: u8 = 0;
const ACK: u8 = 1;
const BYE: u8 = 2;
/// Bytes that the host has not acknowledged; past it the guest is not read.
const KEPT: usize = 4 << 20;
/// Received bytes that are acknowledged at once.
const ACK_EVERY: u64 = 256 << 10;
const PIECE: usize = 64 << 10;
const MAX_RECORD: usize = 1 << 20;
const MAX_SESSIONS: usize = 64;
/// How long a relay may take to say which session it is of.
const PREAMBLE_TIME: Duration = Duration::from_secs(10);
/// How long a session waits for the next relay.
const LINGER: Duration = Duration::from_secs(60);

type Secret = [u8; SECRET];

/// A relay that was let in: it says how far the host has heard.
struct Arrival {
    relay: OwnedFd,
    heard: u64,
}

struct Door {
    arrivals: Mutex<Vec<Arrival>>,
    wake: OwnedFd,
}

/// The sessions of one guest.
#[derive(Clone)]
pub struct Sessions {
    doors: Arc<Mutex<BTreeMap<Secret, Arc<Door>>>>,
    connections: Sender<OwnedFd>,
    waker: Arc<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sessions {
    /// New connections are handed to `connections`, and the loop is woken for them.
    pub fn new(connections: Sender<OwnedFd>, waker: Arc<Waker>) -> Self {
        Self {
            doors: Arc::default(),
            connections,
            waker,
        }
    }

    /// Lets a relay in, in a thread of its own; one that says nothing sensible is closed.
    pub fn admit(&self, relay: OwnedFd) {
        let sessions = self.clone();
        // Without memory for a thread the relay is closed, and its host dials again.
        let _ = std::thread::Builder::new()
            .stack_size(128 << 10)
            .spawn(move || sessions.introduce(relay));
    }

    fn introduce(&self, relay: OwnedFd) {
        let Some((resumes, secret, heard)) = preamble(&relay) else {
            return;
        };
        if resumes {
            let door = lock(&self.doors).get(&secret).cloned();
            match door {
                Some(door) => door.enter(Arrival { relay, heard }),
                None => refuse(&relay),
            }
        } else if let Err(relay) = self.begin(secret, relay) {
            refuse(&relay);
        }
    }

    fn begin(&self, secret: Secret, relay: OwnedFd) -> Result<(), OwnedFd> {
        let pair = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        );
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (Ok((ours, theirs)), Ok(wake)) = (pair, wake) else {
            return Err(relay);
        };
        let door = Arc::new(Door {
            arrivals: Mutex::default(),
            wake,
        });
        {
            let mut doors = lock(&self.doors);
            if doors.len() >= MAX_SESSIONS || doors.contains_key(&secret) {
                return Err(relay);
            }
            doors.insert(secret, door.clone());
        }
        if self.connections.send(theirs).is_err() {
            return Err(relay);
        }
        self.waker.wake();
        door.enter(Arrival { relay, heard: 0 });
        Session::new(ours, door).run();
        lock(&self.doors).remove(&secret);
        Ok(())
    }
}

impl Door {
    fn enter(&self, arrival: Arrival) {
        lock(&self.arrivals).push(arrival);
        // The only failure is a counter that is full: then the session is already awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

fn preamble(relay: &OwnedFd) -> Option<(bool, Secret, u64)> {
    set_socket_timeout(relay, Timeout::Recv, Some(PREAMBLE_TIME)).ok()?;
    let mut bytes = [0; PREAMBLE];
    let mut filled = 0;
    while filled < PREAMBLE {
        match recv(relay, &mut bytes[filled..], RecvFlags::empty()) {
            Ok((_, 0)) => return None,
            Ok((_, size)) => filled += size,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    let (magic, rest) = bytes.split_at(MAGIC.len());
    let (mode, rest) = rest.split_first()?;
    let (secret, heard) = rest.split_at(SECRET);
    if magic != MAGIC || *mode > 1 {
        return None;
    }
    Some((
        *mode == 1,
        secret.try_into().ok()?,
        u64::from_be_bytes(heard.try_into().ok()?),
    ))
}

fn reply(known: bool, received: u64) -> Vec<u8> {
    let mut bytes = vec![u8::from(!known)];
    bytes.extend_from_slice(&received.to_be_bytes());
    bytes
}

fn refuse(relay: &OwnedFd) {
    // Nine bytes fit into a fresh socket; a host that is gone needs none.
    let _ = send(relay, &reply(false, 0), SendFlags::NOSIGNAL);
}

struct Session {
    door: Arc<Door>,
    guest: OwnedFd,
    guest_open: bool,
    relay: Option<OwnedFd>,
    /// When there was no relay any more.
    alone_since: Instant,
    over: bool,
    /// From the guest, from `base` on.
    log: VecDeque<u8>,
    base: u64,
    /// How much of the guest's bytes the present relay was given.
    told: u64,
    /// Being written to the present relay.
    out: VecDeque<u8>,
    /// From the host, for the guest.
    inward: VecDeque<u8>,
    received: u64,
    acknowledged: u64,
    /// The rest of a record that the present relay has not brought wholly.
    partial: Vec<u8>,
    scratch: Vec<u8>,
}

impl Session {
    fn new(guest: OwnedFd, door: Arc<Door>) -> Self {
        Self {
            door,
            guest,
            guest_open: true,
            relay: None,
            alone_since: Instant::now(),
            over: false,
            log: VecDeque::new(),
            base: 0,
            told: 0,
            out: VecDeque::new(),
            inward: VecDeque::new(),
            received: 0,
            acknowledged: 0,
            partial: Vec::new(),
            scratch: vec![0; PIECE],
        }
    }

    fn end_of_log(&self) -> u64 {
        self.base + self.log.len() as u64
    }

    fn run(mut self) {
        while !self.over && self.step().is_ok() {}
    }

    fn step(&mut self) -> Result<(), Errno> {
        self.fill();
        if !self.guest_open && self.out.is_empty() && self.told == self.end_of_log() {
            // The guest has ended this connection, and the host has been told all of it.
            self.over = true;
            return Ok(());
        }
        let mut guest_flags = PollFlags::empty();
        guest_flags.set(PollFlags::IN, self.guest_open && self.log.len() < KEPT);
        guest_flags.set(PollFlags::OUT, self.guest_open && !self.inward.is_empty());
        let mut fds = vec![PollFd::new(&self.door.wake, PollFlags::IN)];
        if !guest_flags.is_empty() {
            fds.push(PollFd::new(&self.guest, guest_flags));
        }
        if let Some(relay) = &self.relay {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, self.inward.len() < MAX_RECORD);
            flags.set(PollFlags::OUT, !self.out.is_empty());
            fds.push(PollFd::new(relay, flags));
        }
        let left = LINGER.saturating_sub(self.alone_since.elapsed());
        let timeout = match self.relay {
            Some(_) => None,
            None => Timespec::try_from(left).ok(),
        };
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if self.relay.is_none() && self.alone_since.elapsed() >= LINGER {
            self.over = true;
            return Ok(());
        }
        // Everything is tried: what would block says so.
        let _ = read(&self.door.wake, &mut [0; 8]);
        self.take_arrivals();
        self.read_guest();
        self.read_relay();
        self.write_guest();
        self.fill();
        self.write_relay();
        Ok(())
    }

    /// The newest relay replaces the one before; what that one was told and did not pass on is told again.
    fn take_arrivals(&mut self) {
        let arrivals = std::mem::take(&mut *lock(&self.door.arrivals));
        for arrival in arrivals {
            if arrival.heard < self.base || arrival.heard > self.end_of_log() {
                refuse(&arrival.relay);
                continue;
            }
            self.acknowledge(arrival.heard);
            self.told = arrival.heard;
            self.out = reply(true, self.received).into();
            self.acknowledged = self.received;
            self.partial.clear();
            self.relay = Some(arrival.relay);
        }
    }

    fn lose_relay(&mut self) {
        self.relay = None;
        self.alone_since = Instant::now();
        self.out.clear();
        self.partial.clear();
    }

    fn acknowledge(&mut self, heard: u64) {
        let size = usize::try_from(heard.saturating_sub(self.base)).unwrap_or(usize::MAX);
        let size = size.min(self.log.len());
        self.log.drain(..size);
        self.base += size as u64;
    }

    /// Puts the next records into `out` when it is empty.
    fn fill(&mut self) {
        if self.relay.is_none() || !self.out.is_empty() {
            return;
        }
        if self.received - self.acknowledged >= ACK_EVERY {
            self.acknowledged = self.received;
            self.out.extend(header(ACK, 8));
            self.out.extend(self.received.to_be_bytes());
        }
        let from = usize::try_from(self.told - self.base).unwrap_or(usize::MAX);
        let size = self.log.len().saturating_sub(from).min(PIECE);
        if size > 0 {
            self.out.extend(header(DATA, size));
            let (front, back) = self.log.as_slices();
            let split = front.len();
            if from < split {
                self.out.extend(&front[from..split.min(from + size)]);
            }
            if from + size > split {
                self.out
                    .extend(&back[from.saturating_sub(split)..from + size - split]);
            }
            self.told += size as u64;
        }
    }

    fn read_guest(&mut self) {
        while self.guest_open && self.log.len() < KEPT {
            match recv(&self.guest, &mut self.scratch[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => self.guest_open = false,
                Ok((_, size)) => {
                    self.log.extend(&self.scratch[..size]);
                    if size < PIECE {
                        return;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.guest_open = false,
            }
        }
    }

    fn write_guest(&mut self) {
        while self.guest_open && !self.inward.is_empty() {
            let (front, _) = self.inward.as_slices();
            match send(
                &self.guest,
                front,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(size) => drop(self.inward.drain(..size)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.guest_open = false,
            }
        }
        if !self.guest_open {
            self.inward.clear();
        }
    }

    fn write_relay(&mut self) {
        while let Some(relay) = &self.relay {
            let (front, _) = self.out.as_slices();
            if front.is_empty() {
                return;
            }
            match send(relay, front, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(size) => drop(self.out.drain(..size)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.lose_relay(),
            }
        }
    }

    fn read_relay(&mut self) {
        while self.inward.len() < MAX_RECORD {
            let Some(relay) = &self.relay else { return };
            match recv(relay, &mut self.scratch[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => self.lose_relay(),
                Ok((_, size)) => {
                    self.partial.extend_from_slice(&self.scratch[..size]);
                    if self.take_records().is_none() {
                        // It does not speak the protocol: the session is not to be trusted any more.
                        self.over = true;
                        return;
                    }
                    if size < PIECE {
                        return;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.lose_relay(),
            }
        }
    }

    fn take_records(&mut self) -> Option<()> {
        let partial = std::mem::take(&mut self.partial);
        let mut rest = &partial[..];
        while let Some((head, tail)) = rest.split_at_checked(HEADER) {
            let size = usize::try_from(u32::from_be_bytes(head[1..].try_into().ok()?)).ok()?;
            if size > MAX_RECORD {
                return None;
            }
            let Some((content, after)) = tail.split_at_checked(size) else {
                break;
            };
            match head[0] {
                DATA => {
                    self.received += size as u64;
                    self.inward.extend(content);
                }
                ACK => self.acknowledge(u64::from_be_bytes(content.try_into().ok()?)),
                BYE => self.over = true,
                _ => return None,
            }
            rest = after;
        }
        self.partial = rest.to_vec();
        Some(())
    }
}

fn header(kind: u8, size: usize) -> impl Iterator<Item = u8> {
    let size = u32::try_from(size).unwrap_or(u32::MAX);
    std::iter::once(kind).chain(size.to_be_bytes())
}
