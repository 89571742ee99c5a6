//! The connection itself: what breaks it, and who may open one.

mod common;

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use b4_guest::frames::Kind;
use common::{BINARY, Folder, Guest, Link, bin, eventually, get, map, packed, runs, text, word};
use rmpv::Value;

#[test]
fn the_guest_greets_without_waiting() {
    let guest = Guest::start();
    assert_eq!(get(&guest.hello, "protocol").as_i64(), Some(1));
    assert_eq!(
        get(&guest.hello, "pid").as_i64(),
        Some(i64::from(guest.child.id()))
    );
    assert_eq!(get(&guest.hello, "instance").as_slice().unwrap().len(), 16);
    assert_eq!(
        get(&guest.hello, "root").as_slice(),
        guest.folder.0.to_str().map(str::as_bytes)
    );
}

#[test]
fn what_is_malformed_ends_the_connection_with_a_word() {
    let hello = packed(&map([
        ("protocol", Value::from(1)),
        ("env", Value::Map(vec![])),
    ]));
    let greeting = b4_guest::frames::encode(Kind::Hello, 0, &hello);
    let other = packed(&map([
        ("protocol", Value::from(2)),
        ("env", Value::Map(vec![])),
    ]));
    let cases: [(&str, Vec<u8>); 6] = [
        ("no frame", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("too large", vec![0xff; 9]),
        (
            "a request before the hello",
            b4_guest::frames::encode(Kind::Request, 1, &packed(&map([("op", text("job.list"))]))),
        ),
        (
            "another protocol",
            b4_guest::frames::encode(Kind::Hello, 0, &other),
        ),
        ("a second hello", [&greeting[..], &greeting].concat()),
        (
            "a frame of the guest",
            [
                &greeting[..],
                &b4_guest::frames::encode(Kind::Response, 1, &[0x80]),
            ]
            .concat(),
        ),
    ];
    for (what, bytes) in cases {
        let mut guest = Guest::silent(&[]);
        assert_eq!(guest.link.frame().unwrap().kind, Kind::Hello);
        guest.link.raw(&bytes);
        let frame = guest
            .link
            .frame()
            .unwrap_or_else(|| panic!("{what}: no word"));
        assert_eq!((frame.kind, frame.stream), (Kind::Error, 0), "{what}");
        assert_eq!(word(&frame.message(), "code"), "protocol", "{what}");
        assert!(guest.link.frame().is_none(), "{what}");
        assert_eq!(guest.ended(), Some(0), "{what}");
    }
}

#[test]
fn a_bad_request_is_refused_and_the_next_is_served() {
    let mut guest = Guest::start();
    for (request, code) in [
        (map([("op", text("no.such"))]), "unknown"),
        (map([("op", text("exec"))]), "protocol"),
        (
            map([("op", text("fs.read")), ("path", bin("a\0b"))]),
            "invalid",
        ),
        (map([("op", text("fs.read")), ("path", bin(""))]), "invalid"),
        (
            map([("op", text("fs.read")), ("path", bin("x".repeat(4_097)))]),
            "invalid",
        ),
        (
            map([("op", text("fs.read")), ("path", Value::from(3))]),
            "protocol",
        ),
    ] {
        assert_eq!(guest.link.call(&request).code(), code, "{request}");
    }
    assert_eq!(guest.link.shell("echo ok").stdout(), "ok\n");
}

#[test]
fn no_more_than_256_requests_are_open() {
    let mut guest = Guest::start();
    let wait = map([
        ("op", text("exec")),
        ("shell", bin("exec sleep 60")),
        ("background", Value::from(true)),
    ]);
    let id = get(&guest.link.call(&wait).ok(), "job").clone();
    let wait = map([("op", text("job.wait")), ("job", id.clone())]);
    let streams: Vec<u32> = (0..256).map(|_| guest.link.open(&wait)).collect();
    assert_eq!(guest.link.call(&wait).code(), "busy");
    for stream in streams {
        guest.link.send(Kind::Cancel, stream, &[0x80]);
        assert_eq!(guest.link.finish(stream).code(), "cancelled");
    }
    guest
        .link
        .call(&map([("op", text("job.cancel")), ("job", id)]))
        .ok();
}

#[test]
fn usage_is_told_with_its_code() {
    for (arguments, code) in [
        (&["version"][..], 0),
        (&[], 64),
        (&["serve"], 64),
        (&["serve", "--root", "/"], 64),
        (&["serve", "--root", "/", "--stream", "77"], 64),
        (&["connect", "--timeout-ms", "1"], 69),
    ] {
        let done = Command::new(BINARY)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {done:?}");
        assert_eq!(done.stderr.is_empty(), code == 0);
    }
}

/// Standard streams of a relay, as one stream.
struct Pipes(ChildStdin, ChildStdout);

impl Read for Pipes {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.1.read(buffer)
    }
}

impl Write for Pipes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// A guest that listens, in namespaces of its own.
struct Listening {
    unshare: Child,
    pid: String,
    _folder: Folder,
}

impl Listening {
    fn start() -> Self {
        let folder = Folder::new();
        let unshare = Command::new("unshare")
            .args([
                "--user",
                "--map-root-user",
                "--net",
                "--pid",
                "--fork",
                "--mount-proc",
                "--kill-child",
            ])
            .args([BINARY, "serve", "--listen", "--root"])
            .arg(&folder.0)
            .spawn()
            .unwrap();
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let mut pid = String::new();
        eventually("the guest's start", || {
            std::fs::read_to_string(&children)
                .unwrap_or_default()
                .trim()
                .clone_into(&mut pid);
            let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
            exe.is_ok_and(|exe| exe == std::path::Path::new(BINARY))
        });
        Self {
            unshare,
            pid,
            _folder: folder,
        }
    }

    fn relay(&self) -> (Child, Link<Pipes>) {
        let mut child = Command::new("timeout")
            .args([
                "20",
                "nsenter",
                "--preserve-credentials",
                "--user",
                "--net",
                "--pid",
                "--mount",
                "--target",
                &self.pid,
                BINARY,
                "connect",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pipes = Pipes(child.stdin.take().unwrap(), child.stdout.take().unwrap());
        (child, Link::new(pipes))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

#[test]
fn a_relay_from_outside_is_served_and_one_from_inside_is_not() {
    let listening = Listening::start();
    let (mut first, mut link) = listening.relay();
    link.greet();
    let started = map([
        ("op", text("exec")),
        ("shell", bin("echo up; exec sleep 60")),
        ("background", Value::from(true)),
    ]);
    let pid = get(&link.call(&started).ok(), "job").clone();
    let inside = Value::Array([BINARY, "connect", "--timeout-ms", "500"].map(bin).to_vec());
    let reply = link.call(&map([
        ("op", text("exec")),
        ("argv", inside),
        ("deadline_ms", Value::from(10_000)),
    ]));
    assert!(reply.out.is_empty(), "a job was greeted by the guest");
    assert_eq!(word(&reply.ok(), "cause"), "exit");
    drop(link);
    assert!(first.wait().unwrap().success());
    // Background jobs outlive the connection that started them.
    let (mut second, mut link) = listening.relay();
    link.greet();
    let list = link.call(&map([("op", text("job.list"))])).ok();
    let jobs = get(&list, "jobs").as_array().unwrap();
    assert_eq!(
        (get(&jobs[0], "job"), get(&jobs[0], "alive").as_bool()),
        (&pid, Some(true))
    );
    drop(link);
    second.wait().unwrap();
    let guest: i64 = listening.pid.parse().unwrap();
    assert!(runs(guest));
    drop(listening);
    eventually("the guest's end", || !runs(guest));
}
