//! A host for tests: it starts the real guest and speaks frames with it. Every wait ends after `PATIENCE`.
#![allow(dead_code)] // each test binary uses its part

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use b4_guest::frames::{self, Kind};
use rmpv::Value;

pub const PATIENCE: Duration = Duration::from_secs(20);
/// Whom ordinary guests run as when the tests are root.
pub const NOBODY: u32 = 65534;
pub const BINARY: &str = env!("CARGO_BIN_EXE_b4-guest");

static NUMBER: AtomicU32 = AtomicU32::new(0);

pub fn text(value: &str) -> Value {
    Value::from(value)
}

pub fn bin(bytes: impl AsRef<[u8]>) -> Value {
    Value::Binary(bytes.as_ref().to_vec())
}

pub fn map<const N: usize>(pairs: [(&str, Value); N]) -> Value {
    Value::Map(
        pairs
            .into_iter()
            .map(|(key, value)| (text(key), value))
            .collect(),
    )
}

pub fn get<'a>(value: &'a Value, key: &str) -> &'a Value {
    value
        .as_map()
        .and_then(|pairs| pairs.iter().find(|(name, _)| name.as_str() == Some(key)))
        .map_or(&Value::Nil, |(_, value)| value)
}

pub fn number(value: &Value, key: &str) -> i64 {
    get(value, key)
        .as_i64()
        .unwrap_or_else(|| panic!("no number {key:?} in {value}"))
}

pub fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    get(value, key)
        .as_str()
        .unwrap_or_else(|| panic!("no text {key:?} in {value}"))
}

pub fn packed(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

/// A folder of its own, removed at the end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        let name = format!(
            "b4-guest-test-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        let _ = std::fs::remove_file(self.0.with_extension("guest"));
    }
}

#[derive(Debug)]
pub struct Frame {
    pub kind: Kind,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn message(&self) -> Value {
        rmpv::decode::read_value(&mut self.payload.as_slice()).unwrap()
    }
}

/// What a request came to.
#[derive(Debug)]
pub struct Reply {
    pub events: Vec<Value>,
    pub out: Vec<u8>,
    pub err: Vec<u8>,
    pub end: Result<Value, Value>,
}

impl Reply {
    pub fn ok(self) -> Value {
        self.end.unwrap_or_else(|error| panic!("refused: {error}"))
    }

    pub fn code(&self) -> String {
        match &self.end {
            Ok(value) => panic!("not refused: {value}"),
            Err(error) => word(error, "code").to_owned(),
        }
    }

    pub fn stdout(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }
}

/// One end of the protocol, over any stream.
pub struct Link<S> {
    pub stream: S,
    buffer: Vec<u8>,
    next: u32,
}

impl<S: Read + Write> Link<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            next: 1,
        }
    }

    /// Exchanges hellos and returns the guest's.
    pub fn greet(&mut self) -> Value {
        let env = Value::Map(vec![
            (bin("PATH"), bin("/usr/local/bin:/usr/bin:/bin")),
            (bin("BASE"), bin("base")),
        ]);
        self.send(
            Kind::Hello,
            0,
            &packed(&map([("protocol", Value::from(1)), ("env", env)])),
        );
        let hello = self.frame().expect("a hello");
        assert_eq!((hello.kind, hello.stream), (Kind::Hello, 0));
        hello.message()
    }

    pub fn send(&mut self, kind: Kind, stream: u32, payload: &[u8]) {
        self.raw(&frames::encode(kind, stream, payload));
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next frame; nothing at the end of the connection.
    pub fn frame(&mut self) -> Option<Frame> {
        let mut chunk = vec![0; 1 << 16];
        loop {
            if let Some((frame, size)) = frames::decode(&self.buffer).expect("a sound frame") {
                let frame = Frame {
                    kind: frame.kind,
                    stream: frame.stream,
                    payload: frame.payload.to_vec(),
                };
                self.buffer.drain(..size);
                return Some(frame);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(size) => self.buffer.extend_from_slice(&chunk[..size]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no frame within {PATIENCE:?}: {error}"),
            }
        }
    }

    pub fn open(&mut self, request: &Value) -> u32 {
        let stream = self.next;
        self.next += 1;
        self.send(Kind::Request, stream, &packed(request));
        stream
    }

    /// Reads until the end of `stream`. Output is granted as it comes.
    pub fn finish(&mut self, stream: u32) -> Reply {
        let mut reply = Reply {
            events: Vec::new(),
            out: Vec::new(),
            err: Vec::new(),
            end: Ok(Value::Nil),
        };
        loop {
            let frame = self.frame().expect("an answer before the end");
            if frame.stream != stream {
                assert_eq!(frame.kind, Kind::Pong, "unexpected {frame:?}");
                continue;
            }
            match frame.kind {
                Kind::Event => reply.events.push(frame.message()),
                Kind::Data => {
                    let content = &frame.payload[1..];
                    if frame.payload[0] == frames::OUTPUT {
                        reply.out.extend_from_slice(content);
                    } else {
                        reply.err.extend_from_slice(content);
                    }
                    let size = u32::try_from(content.len()).unwrap();
                    self.raw(&frames::encode_credit(stream, frame.payload[0], size));
                }
                Kind::End | Kind::Credit => {}
                Kind::Response => {
                    reply.end = Ok(frame.message());
                    return reply;
                }
                Kind::Error => {
                    reply.end = Err(frame.message());
                    return reply;
                }
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    pub fn call(&mut self, request: &Value) -> Reply {
        let stream = self.open(request);
        self.finish(stream)
    }

    pub fn shell(&mut self, script: &str) -> Reply {
        self.call(&map([("op", text("exec")), ("shell", bin(script))]))
    }

    /// Sends input as credit allows, then its end.
    pub fn input(&mut self, stream: u32, mut bytes: &[u8]) {
        let mut credit = frames::INITIAL_CREDIT;
        while !bytes.is_empty() {
            while credit == 0 {
                let frame = self.frame().expect("credit");
                assert_eq!(frame.stream, stream);
                if frame.kind == Kind::Credit {
                    credit += frames::credit(&frame.payload[1..]) as usize;
                }
            }
            let size = bytes.len().min(credit).min(frames::MAX_DATA);
            self.send(
                Kind::Data,
                stream,
                &[&[frames::INPUT], &bytes[..size]].concat(),
            );
            bytes = &bytes[size..];
            credit -= size;
        }
        self.send(Kind::End, stream, &[frames::INPUT]);
    }
}

/// A guest on a socket pair, in a workspace of its own.
pub struct Guest {
    pub link: Link<UnixStream>,
    pub child: Child,
    pub folder: Folder,
    pub hello: Value,
}

impl Guest {
    pub fn start() -> Self {
        Self::with(&[])
    }

    pub fn with(options: &[&str]) -> Self {
        let mut guest = Self::silent(options);
        guest.hello = guest.link.greet();
        guest
    }

    /// One that was not greeted yet.
    pub fn silent(options: &[&str]) -> Self {
        Self::spawn("serve", options, &mut Command::new(BINARY), Folder::new())
    }

    /// One that only reads, in a workspace that is there already.
    pub fn reader(folder: Folder) -> Self {
        let mut guest = Self::spawn("read", &[], &mut Command::new(BINARY), folder);
        guest.hello = guest.link.greet();
        guest
    }

    /// One that runs as an ordinary user, also when the tests run as root.
    pub fn ordinary(options: &[&str]) -> Self {
        let folder = Folder::new();
        let mut command = Command::new(BINARY);
        if rustix::process::getuid().is_root() {
            // The build may lie where only root may go.
            let binary = folder.0.with_extension("guest");
            std::fs::copy(BINARY, &binary).unwrap();
            std::os::unix::fs::chown(&folder.0, Some(NOBODY), Some(NOBODY)).unwrap();
            command = Command::new(binary);
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut guest = Self::spawn("serve", options, &mut command, folder);
        guest.hello = guest.link.greet();
        guest
    }

    fn spawn(mode: &str, options: &[&str], command: &mut Command, folder: Folder) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        ours.set_write_timeout(Some(PATIENCE)).unwrap();
        let child = command
            .args([mode, "--stream", "0", "--root"])
            .arg(&folder.0)
            .args(options)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            link: Link::new(ours),
            child,
            folder,
            hello: Value::Nil,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    pub fn rss_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Waits for the guest's end and returns its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("the guest's end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks again and again, for no longer than `PATIENCE`.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process runs; one that has ended and was not waited for does not.
pub fn runs(pid: i64) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat[stat.rfind(')').unwrap()..].starts_with(") Z"))
}

pub fn pid_in(path: &Path) -> i64 {
    std::fs::read_to_string(path)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}
