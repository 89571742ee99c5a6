//! One host connection: its frames in, its streams, and which job or worker each belongs to.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::files::{self, Workers};
use crate::frames::{self, Frame, INPUT, Kind};
use crate::jobs::Jobs;
use crate::messages::{self, Cancel, Code, Environment, Failure, HostHello, Op, PROTOCOL};
use crate::outbox::{Outbox, Waker};
use crate::stream::Stream;

const MAX_STREAMS: usize = 256;
const READ_SIZE: usize = 256 << 10;
/// An idle connection keeps no larger buffer than this.
const SMALL_BUFFER: usize = 16 << 10;

/// Whom a stream's frames go to.
#[derive(Clone, Copy)]
enum Route {
    Job(u32),
    Files,
    /// It was answered at once.
    Nobody,
}

pub struct Connection {
    pub socket: Arc<OwnedFd>,
    pub outbox: Arc<Outbox>,
    received: Vec<u8>,
    env: Option<Environment>,
    last_stream: u32,
    streams: BTreeMap<u32, (Arc<Stream>, Route)>,
}

/// What frames act upon.
pub struct Guest<'a> {
    pub jobs: &'a mut Jobs,
    pub workers: &'a mut Workers,
    /// It only looks at files.
    pub reader: bool,
}

impl Connection {
    pub fn new(socket: OwnedFd, hello: &[u8], waker: Arc<Waker>) -> Self {
        let socket = Arc::new(socket);
        let outbox = Arc::new(Outbox::new(socket.clone(), waker));
        outbox.push(frames::encode(Kind::Hello, 0, hello));
        Self {
            socket,
            outbox,
            received: Vec::new(),
            env: None,
            last_stream: 0,
            streams: BTreeMap::new(),
        }
    }

    /// Reads what has come and acts on it; false at the end of the connection.
    pub fn receive(&mut self, guest: &mut Guest<'_>) -> bool {
        let room = if self.received.capacity() > SMALL_BUFFER {
            READ_SIZE
        } else {
            SMALL_BUFFER / 2
        };
        self.received.reserve(room);
        match recv(
            &self.socket,
            spare_capacity(&mut self.received),
            RecvFlags::DONTWAIT,
        ) {
            Ok((_, 0)) => return false,
            Ok((_, size)) if size >= SMALL_BUFFER / 2 => self.received.reserve(READ_SIZE),
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        }
        let received = std::mem::take(&mut self.received);
        let result = self.act_on(&received, guest);
        self.received = received;
        match result {
            Ok(used) => {
                self.received.drain(..used);
                true
            }
            Err(failure) => {
                self.outbox
                    .push(frames::encode(Kind::Error, 0, &messages::encode(&failure)));
                // The host may be gone already.
                let _ = self.outbox.flush();
                false
            }
        }
    }

    /// Acts on every whole frame; returns how many bytes they took.
    fn act_on(&mut self, received: &[u8], guest: &mut Guest<'_>) -> Result<usize, Failure> {
        let mut used = 0;
        while let Some((frame, size)) = frames::decode(&received[used..]).map_err(protocol)? {
            self.take(&frame, guest)?;
            used += size;
        }
        Ok(used)
    }

    fn take(&mut self, frame: &Frame<'_>, guest: &mut Guest<'_>) -> Result<(), Failure> {
        if (frame.kind == Kind::Hello) != self.env.is_none() {
            return Err(protocol("a connection begins with one HELLO"));
        }
        match frame.kind {
            Kind::Hello => {
                let hello: HostHello = messages::decode(frame.payload)?;
                if hello.protocol != PROTOCOL {
                    return Err(protocol("this guest speaks protocol 1"));
                }
                self.env = Some(hello.env);
            }
            Kind::Request => self.open(frame, guest)?,
            Kind::Data | Kind::End | Kind::Credit => self.feed(frame, guest)?,
            Kind::Cancel => {
                let cancel: Cancel = messages::decode(frame.payload)?;
                if let Some((stream, route)) = self.find(frame.stream)? {
                    match route {
                        Route::Job(job) => guest.jobs.cancel(
                            job,
                            &stream,
                            cancel.grace_ms.map(Duration::from_millis),
                        ),
                        _ => stream.cancel(),
                    }
                }
            }
            Kind::Ping => self
                .outbox
                .push(frames::encode(Kind::Pong, 0, frame.payload)),
            Kind::Pong => {}
            Kind::Response | Kind::Error | Kind::Event => {
                return Err(protocol("only the guest sends this frame"));
            }
        }
        Ok(())
    }

    fn open(&mut self, frame: &Frame<'_>, guest: &mut Guest<'_>) -> Result<(), Failure> {
        if frame.stream <= self.last_stream {
            return Err(protocol("stream numbers increase"));
        }
        self.last_stream = frame.stream;
        self.streams.retain(|_, (stream, _)| !stream.has_ended());
        let stream = Arc::new(Stream::new(frame.stream, self.outbox.clone()));
        if self.streams.len() >= MAX_STREAMS {
            stream.fail(&Failure::new(Code::Busy, "256 requests are open"));
            return Ok(());
        }
        let Op { op } = match messages::decode(frame.payload) {
            Ok(op) => op,
            Err(failure) => {
                stream.fail(&failure);
                return Ok(());
            }
        };
        if guest.reader && !files::READS.contains(&op.as_str()) {
            let reason = format!("a reader has no operation {op:.32}");
            stream.fail(&Failure::new(Code::Unknown, reason));
            return Ok(());
        }
        let route = if op == "exec" {
            let env = self.env.get_or_insert_default();
            guest
                .jobs
                .exec(&stream, frame.payload, env)
                .map_or(Route::Nobody, Route::Job)
        } else if op.starts_with("fs.") {
            guest.workers.submit(&op, &stream, frame.payload);
            Route::Files
        } else {
            match guest.jobs.request(&op, &stream, frame.payload) {
                Ok(job) => job.map_or(Route::Nobody, Route::Job),
                Err(failure) => {
                    stream.fail(&failure);
                    Route::Nobody
                }
            }
        };
        if !stream.has_ended() {
            self.streams.insert(frame.stream, (stream, route));
        }
        Ok(())
    }

    fn feed(&mut self, frame: &Frame<'_>, guest: &mut Guest<'_>) -> Result<(), Failure> {
        let (channel, content) = frame.channel();
        if (channel == INPUT) == (frame.kind == Kind::Credit) {
            return Err(protocol(
                "the host sends on channel 0 and receives on the others",
            ));
        }
        let Some((stream, route)) = self.find(frame.stream)? else {
            return Ok(());
        };
        match (frame.kind, route) {
            (Kind::Credit, _) => stream.add_credit(channel, frames::credit(content)),
            (Kind::Data, _) if !stream.spend(content.len()) => {
                return Err(protocol("more data than granted"));
            }
            (Kind::Data, Route::Files) => stream.put_input(content),
            (_, Route::Files) => stream.end_input(),
            (kind, Route::Job(job)) => {
                if let Some(job) = guest
                    .jobs
                    .table
                    .get_mut(&job)
                    .filter(|job| job.is_attached_to(&stream))
                {
                    job.feed((kind == Kind::Data).then_some(content));
                }
            }
            (_, Route::Nobody) => {}
        }
        Ok(())
    }

    /// An open stream; nothing when it has ended.
    fn find(&self, id: u32) -> Result<Option<(Arc<Stream>, Route)>, Failure> {
        if id > self.last_stream {
            return Err(protocol("the stream was never opened"));
        }
        Ok(self
            .streams
            .get(&id)
            .filter(|(stream, _)| !stream.has_ended())
            .cloned())
    }

    /// Gives memory back when nothing is going on.
    pub fn rest(&mut self) {
        self.streams.retain(|_, (stream, _)| !stream.has_ended());
        if self.streams.is_empty()
            && self.received.is_empty()
            && self.received.capacity() > SMALL_BUFFER
        {
            self.received = Vec::new();
            self.outbox.trim();
        }
    }

    /// Ends everything that hangs on the connection.
    pub fn close(&mut self, jobs: &mut Jobs) {
        self.outbox.close();
        for (stream, route) in self.streams.values() {
            stream.cancel();
            if let Route::Job(job) = route {
                jobs.desert(*job, stream);
            }
        }
        self.streams.clear();
    }
}

fn protocol(reason: &str) -> Failure {
    Failure::new(Code::Protocol, reason)
}
