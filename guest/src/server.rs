//! The loop: one thread that waits for hosts, jobs, workers and signals, and moves what can be moved.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read};
use rustix::net::sockopt::{
    set_socket_recv_buffer_size_force, set_socket_send_buffer_size,
    set_socket_send_buffer_size_force,
};
use rustix::process::{
    DumpableBehavior, Resource, getgid, getpid, getrlimit, getuid, set_dumpable_behavior, setrlimit,
};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_bytes::Bytes;

use crate::closed;
use crate::connect;
use crate::connection::{Connection, Guest};
use crate::files::{Workers, path::Root};
use crate::jobs::{Jobs, open_null};
use crate::lasting::Sessions;
use crate::messages::{self, GuestHello, PROTOCOL};
use crate::nursery::Nursery;
use crate::outbox::Waker;
use crate::zygote::Findings;
use crate::{reaper, sys, tree};

const SOCKET_BUFFER: usize = 4 << 20;
const MAX_CONNECTIONS: usize = 64;
/// How long an engine may take to close the network of a sandbox that has begun.
const CLOSING: Duration = Duration::from_secs(30);
/// How long the jobs of a guest that ends may take to die.
const LAST_WAIT: Duration = Duration::from_secs(5);
/// How often memory is looked after while nothing happens.
const REST: Duration = Duration::from_millis(200);

/// What `serve` was asked for.
pub struct Options {
    pub root: std::ffi::OsString,
    pub stream: Option<OwnedFd>,
    pub listen: bool,
    /// What must not be reached before anybody is listened to.
    pub closed_to: Option<SocketAddr>,
    /// Only answer requests that look at files.
    pub reader: bool,
    /// Resolve paths without `openat2`, as where the kernel lacks it.
    pub without_openat2: bool,
    /// Know the processes of a job by marks, as where the kernel has no child subreaper.
    pub without_subreaper: bool,
}

#[derive(Clone, Copy)]
enum Source {
    Signals,
    Waker,
    Listener,
    Lasting,
    Zygote,
    Reserve,
    Connection(u32),
    Control(u32),
    Output(u32, usize),
    Input(u32),
}

struct Server {
    jobs: Jobs,
    workers: Workers,
    connections: BTreeMap<u32, Connection>,
    last_connection: u32,
    /// The connection that is the guest's life.
    life: Option<u32>,
    listener: Option<OwnedFd>,
    lasting: Option<Lasting>,
    signals: OwnedFd,
    waker: Arc<Waker>,
    hello: Vec<u8>,
    reader: bool,
    /// The guest ends, at the latest then.
    ending: Option<Instant>,
    rested: bool,
}

/// Hosts whose connections outlive the stream below them.
struct Lasting {
    listener: OwnedFd,
    sessions: Sessions,
    arrived: Receiver<OwnedFd>,
}

/// Serves until the stream closes or a signal says so.
pub fn run(options: Options) -> Result<(), (i32, String)> {
    let internal = |errno: Errno| (70, errno.to_string());
    check_closed(options.closed_to)?;
    sys::tune_allocator();
    let null = open_null().map_err(internal)?;
    sys::settle_standard_streams(std::os::fd::AsFd::as_fd(&null), false);
    sys::ignore_signal(libc::SIGPIPE);
    let root = Root::open(&options.root, options.without_openat2).map_err(|errno| {
        (
            69,
            format!("cannot open {}: {errno}", options.root.display()),
        )
    })?;
    let limit = getrlimit(Resource::Nofile);
    let (nursery, findings) = if options.reader {
        (Nursery::closed(limit), Findings::default())
    } else {
        Nursery::new(limit, !options.without_subreaper).map_err(internal)?
    };
    // Everything below is best effort: jobs need many descriptors, the guest is to outlive them when memory runs out.
    let _ = setrlimit(
        Resource::Nofile,
        rustix::process::Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
    let _ = std::fs::write("/proc/self/oom_score_adj", "-900");
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let subreaper = findings.subreaper && reaper::become_subreaper().is_ok();
    let watched = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
    sys::set_mask(&watched);
    let signals = sys::signal_fd(&watched).map_err(|error| (70, error.to_string()))?;
    let waker = Arc::new(Waker(
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(internal)?,
    ));
    let mut capabilities = Vec::new();
    let pidfd = rustix::process::pidfd_open(getpid(), rustix::process::PidfdFlags::empty()).is_ok();
    let found = [
        ("openat2", root.has_openat2()),
        ("pidfd", pidfd),
        ("children", tree::children_file()),
        ("subreaper", subreaper),
        ("marks", findings.marks),
        ("landlock_signals", findings.isolated),
    ];
    capabilities.extend(
        found
            .iter()
            .filter(|(_, works)| *works)
            .map(|(name, _)| *name),
    );
    let mut instance = [0; 16];
    getrandom(&mut instance, GetRandomFlags::empty()).map_err(internal)?;
    let hello = messages::encode(&GuestHello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION"),
        capabilities: &capabilities,
        instance: Bytes::new(&instance),
        pid: std::process::id(),
        uid: getuid().as_raw(),
        gid: getgid().as_raw(),
        root: Bytes::new(&root.path),
    });
    let listen =
        |lasting| connect::listen(lasting).map_err(|errno| (69, format!("cannot listen: {errno}")));
    let (listener, lasting) = if options.listen {
        let (sender, arrived) = std::sync::mpsc::channel();
        let lasting = Lasting {
            listener: listen(true)?,
            sessions: Sessions::new(sender, waker.clone()),
            arrived,
        };
        (Some(listen(false)?), Some(lasting))
    } else {
        (None, None)
    };
    let root = Arc::new(root);
    let mut server = Server {
        jobs: Jobs::new(nursery, root.clone(), null),
        workers: Workers::new(root),
        connections: BTreeMap::new(),
        last_connection: 0,
        life: None,
        listener,
        lasting,
        signals,
        waker,
        hello,
        reader: options.reader,
        ending: None,
        rested: true,
    };
    if let Some(stream) = options.stream {
        server.life = Some(server.accept(stream));
    }
    server.flush();
    server.jobs.nursery.prepare();
    server.workers.prepare();
    server.serve().map_err(internal)
}

fn check_closed(address: Option<SocketAddr>) -> Result<(), (i32, String)> {
    match address {
        Some(open) if !closed::wait(open, CLOSING) => {
            Err((77, format!("the network is open: {} answers", open.ip())))
        }
        _ => Ok(()),
    }
}

impl Server {
    fn accept(&mut self, socket: OwnedFd) -> u32 {
        // Best effort: a larger buffer only saves wake-ups.
        if set_socket_send_buffer_size_force(&socket, SOCKET_BUFFER).is_err() {
            let _ = set_socket_send_buffer_size(&socket, SOCKET_BUFFER);
        }
        let _ = set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER);
        self.last_connection += 1;
        self.connections.insert(
            self.last_connection,
            Connection::new(socket, &self.hello, self.waker.clone()),
        );
        self.last_connection
    }

    fn serve(&mut self) -> Result<(), Errno> {
        loop {
            for source in self.wait()? {
                self.handle(source);
            }
            self.jobs.advance(Instant::now());
            self.flush();
            match self.ending {
                Some(at)
                    if at <= Instant::now()
                        || !self.jobs.any_alive()
                        || std::process::id() == 1 =>
                {
                    return Ok(());
                }
                Some(_) => {}
                None => self.jobs.nursery.prepare(),
            }
        }
    }

    /// Waits until something can be done, and says what.
    fn wait(&mut self) -> Result<Vec<Source>, Errno> {
        let timer = self.jobs.next_timer().into_iter().chain(self.ending).min();
        let left = timer.map(|at| at.saturating_duration_since(Instant::now()));
        let patience = match left {
            None if self.rested => None,
            Some(left) if self.rested || left < REST => Some(left),
            _ => Some(REST),
        };
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let mut sources = Vec::new();
        let mut fds = Vec::new();
        self.list(|source, fd, flags| {
            sources.push(source);
            fds.push(PollFd::new(fd, flags));
        });
        let count = match poll(&mut fds, timeout.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(error),
        };
        let ready = sources
            .iter()
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(source, _)| *source)
            .collect();
        drop(fds);
        let idle = count == 0 && patience == Some(REST);
        if idle {
            self.connections.values_mut().for_each(Connection::rest);
        }
        self.rested = idle || (self.rested && count == 0);
        Ok(ready)
    }

    fn list<'a>(&'a self, mut add: impl FnMut(Source, &'a OwnedFd, PollFlags)) {
        add(Source::Signals, &self.signals, PollFlags::IN);
        add(Source::Waker, &self.waker.0, PollFlags::IN);
        if let Some(listener) = self
            .listener
            .as_ref()
            .filter(|_| self.connections.len() < MAX_CONNECTIONS)
        {
            add(Source::Listener, listener, PollFlags::IN);
        }
        if let Some(lasting) = &self.lasting {
            add(Source::Lasting, &lasting.listener, PollFlags::IN);
        }
        if let Some(zygote) = self.jobs.nursery.zygote() {
            add(Source::Zygote, zygote, PollFlags::IN);
        }
        if let Some(reserve) = self.jobs.nursery.reserve() {
            add(Source::Reserve, reserve, PollFlags::IN);
        }
        for (id, connection) in &self.connections {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, connection.outbox.has_room());
            flags.set(PollFlags::OUT, connection.outbox.is_waiting());
            add(Source::Connection(*id), &connection.socket, flags);
        }
        for (id, job) in &self.jobs.table {
            if let Some(control) = &job.control {
                add(Source::Control(*id), control, PollFlags::IN);
            }
            for index in 0..2 {
                if let Some(pipe) = job.readable(index) {
                    add(Source::Output(*id, index), pipe, PollFlags::IN);
                }
            }
            if let Some(stdin) = job.writable() {
                add(Source::Input(*id), stdin, PollFlags::OUT);
            }
        }
    }

    fn handle(&mut self, source: Source) {
        match source {
            Source::Signals => {
                while let Some(signal) = sys::next_signal(&self.signals) {
                    if signal == libc::SIGCHLD {
                        self.jobs.child_ended();
                    } else {
                        self.end();
                    }
                }
            }
            Source::Waker => {
                // Only the wake-up matters.
                let _ = read(&self.waker.0, &mut [0; 8]);
                while let Some(socket) = self
                    .lasting
                    .as_ref()
                    .and_then(|lasting| lasting.arrived.try_recv().ok())
                {
                    self.accept(socket);
                }
            }
            Source::Listener => {
                if let Some(socket) = self.listener.as_ref().and_then(connect::accept) {
                    self.accept(socket);
                }
            }
            Source::Lasting => {
                if let Some(lasting) = &self.lasting
                    && let Some(relay) = connect::accept(&lasting.listener)
                {
                    lasting.sessions.admit(relay);
                }
            }
            Source::Zygote => self.jobs.nursery.lose_zygote(),
            Source::Reserve => self.jobs.nursery.hear_reserve(),
            Source::Connection(id) => self.handle_connection(id),
            Source::Control(id) => self.jobs.hear(id),
            Source::Output(id, index) => {
                if let Some(job) = self.jobs.table.get_mut(&id) {
                    job.outputs[index].ready = true;
                }
            }
            Source::Input(id) => {
                if let Some(job) = self.jobs.table.get_mut(&id) {
                    job.flush_stdin();
                }
            }
        }
    }

    fn handle_connection(&mut self, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let open = !connection.outbox.has_room()
            || connection.receive(&mut Guest {
                jobs: &mut self.jobs,
                workers: &mut self.workers,
                reader: self.reader,
            });
        if !open {
            self.close(id);
        }
    }

    fn close(&mut self, id: u32) {
        if let Some(mut connection) = self.connections.remove(&id) {
            connection.close(&mut self.jobs);
        }
        if self.life == Some(id) {
            self.end();
        }
    }

    /// Ends every job, then the guest. Hosts learn of it by the end of their connections: nobody of them cancelled anything.
    fn end(&mut self) {
        self.listener = None;
        self.lasting = None;
        for (_, mut connection) in std::mem::take(&mut self.connections) {
            connection.close(&mut self.jobs);
        }
        self.jobs.cancel_all();
        self.ending
            .get_or_insert_with(|| Instant::now() + LAST_WAIT);
    }

    fn flush(&mut self) {
        let broken: Vec<u32> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.outbox.flush().is_err())
            .map(|(id, _)| *id)
            .collect();
        for id in broken {
            self.close(id);
        }
    }
}
