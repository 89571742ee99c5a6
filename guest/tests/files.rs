//! Files, over the protocol, with both ways of resolving paths.

mod common;

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use common::{Folder, Guest, bin, get, map, number, text, word};
use rmpv::Value;

fn both(test: impl Fn(&mut Guest)) {
    for options in [&[][..], &["--no-openat2"]] {
        let mut guest = Guest::with(options);
        let capabilities = get(&guest.hello, "capabilities")
            .as_array()
            .unwrap()
            .clone();
        let expected = options.is_empty() && kernel_has_openat2();
        assert_eq!(capabilities.contains(&text("openat2")), expected);
        test(&mut guest);
    }
}

fn kernel_has_openat2() -> bool {
    let rules = rustix::fs::ResolveFlags::BENEATH;
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::openat2(
        rustix::fs::CWD,
        ".",
        flags,
        rustix::fs::Mode::empty(),
        rules,
    )
    .is_ok()
}

fn on(op: &str, path: impl AsRef<[u8]>) -> Value {
    map([("op", text(op)), ("path", bin(path))])
}

fn write(guest: &mut Guest, request: &Value, content: &[u8]) -> common::Reply {
    let stream = guest.link.open(request);
    guest.link.input(stream, content);
    guest.link.finish(stream)
}

fn read(guest: &mut Guest, path: &str) -> Result<Vec<u8>, String> {
    let reply = guest.link.call(&on("fs.read", path));
    if reply.end.is_ok() {
        Ok(reply.out)
    } else {
        Err(reply.code())
    }
}

#[test]
fn what_is_written_is_read_and_keeps_its_mode() {
    both(|guest| {
        let entry = write(
            guest,
            &map([
                ("op", text("fs.write")),
                ("path", bin("a/b")),
                ("parents", Value::from(true)),
            ]),
            b"one\r\ntwo\r\n",
        )
        .ok();
        assert_eq!(
            (
                word(&entry, "kind"),
                number(&entry, "mode"),
                get(&entry, "created").as_bool()
            ),
            ("file", 0o644, Some(true))
        );
        fs::set_permissions(guest.path("a/b"), fs::Permissions::from_mode(0o751)).unwrap();
        write(guest, &on("fs.write", "a/b"), b"three").ok();
        assert_eq!(read(guest, "a/b"), Ok(b"three".to_vec()));
        assert_eq!(
            fs::metadata(guest.path("a/b"))
                .unwrap()
                .permissions()
                .mode()
                & 0o7777,
            0o751
        );
        assert_eq!(fs::read_dir(guest.path("a")).unwrap().count(), 1);
    });
}

#[test]
fn a_change_in_between_refuses_the_write() {
    both(|guest| {
        write(guest, &on("fs.write", "f"), b"one").ok();
        let version = get(&guest.link.call(&on("fs.read", "f")).ok(), "version").clone();
        fs::write(guest.path("f"), "by another").unwrap();
        let request = map([
            ("op", text("fs.write")),
            ("path", bin("f")),
            ("expect", version),
        ]);
        assert_eq!(write(guest, &request, b"two").code(), "changed");
        assert_eq!(fs::read(guest.path("f")).unwrap(), b"by another");
        let request = map([
            ("op", text("fs.write")),
            ("path", bin("f")),
            ("create", Value::from(true)),
        ]);
        assert_eq!(write(guest, &request, b"two").code(), "exists");
        let request = map([
            ("op", text("fs.write")),
            ("path", bin("g")),
            ("size", Value::from(5)),
        ]);
        assert_eq!(write(guest, &request, b"two").code(), "short");
        assert_eq!(
            fs::read_dir(&guest.folder.0).unwrap().count(),
            1,
            "a draft was left"
        );
    });
}

#[test]
fn nothing_leads_out() {
    let secret = Folder::new();
    fs::write(secret.0.join("secret"), "secret").unwrap();
    both(|guest| {
        let outside = secret.0.to_str().unwrap().to_owned();
        fs::create_dir(guest.path("in")).unwrap();
        symlink(secret.0.join("secret"), guest.path("absolute")).unwrap();
        symlink(format!("../..{outside}/secret"), guest.path("in/relative")).unwrap();
        symlink(&secret.0, guest.path("folder")).unwrap();
        symlink(secret.0.join("none"), guest.path("dangling")).unwrap();
        symlink("/proc/self/root", guest.path("magic")).unwrap();
        let magic = format!("magic{outside}/secret");
        let up = format!("in/../..{outside}/secret");
        for path in [
            "absolute",
            "in/relative",
            "folder/secret",
            "dangling",
            &magic,
            &up,
            "..",
            &format!("{outside}/secret"),
        ] {
            for op in ["fs.read", "fs.stat", "fs.list", "fs.lines"] {
                let mut request = on(op, path);
                if let Value::Map(pairs) = &mut request {
                    pairs.extend([
                        (text("first"), Value::from(1)),
                        (text("limit"), Value::from(10)),
                    ]);
                }
                assert_eq!(guest.link.call(&request).code(), "outside", "{op} {path}");
            }
            assert_eq!(
                write(guest, &on("fs.write", path), b"x").code(),
                "outside",
                "{path}"
            );
        }
        for path in [&up, &format!("folder/{}", "new"), &format!("{outside}/new")] {
            assert_eq!(
                guest.link.call(&on("fs.mkdir", path)).code(),
                "outside",
                "{path}"
            );
            assert_eq!(
                guest.link.call(&on("fs.remove", path)).code(),
                "outside",
                "{path}"
            );
        }
        let cwd = map([
            ("op", text("exec")),
            ("shell", bin("true")),
            ("cwd", bin("folder")),
        ]);
        assert_eq!(guest.link.call(&cwd).code(), "outside");
        assert_eq!(fs::read_dir(&secret.0).unwrap().count(), 1);
        assert_eq!(fs::read(secret.0.join("secret")).unwrap(), b"secret");
    });
}

#[test]
fn links_that_stay_inside_are_followed() {
    both(|guest| {
        fs::create_dir_all(guest.path("a/b")).unwrap();
        fs::write(guest.path("a/b/f"), "f").unwrap();
        symlink(guest.path("a"), guest.path("absolute")).unwrap();
        symlink("../a/b", guest.path("a/again")).unwrap();
        for path in [
            "absolute/b/f",
            "a/again/f",
            "absolute/again/f",
            "a/b/../b/f",
            guest.path("a/b/f").to_str().unwrap(),
        ] {
            assert_eq!(read(guest, path), Ok(b"f".to_vec()), "{path}");
        }
        symlink("circle", guest.path("circle")).unwrap();
        assert_eq!(read(guest, "circle"), Err("loop".to_owned()));
        symlink("nothing", guest.path("dangling")).unwrap();
        assert_eq!(read(guest, "dangling"), Err("not_found".to_owned()));
        assert_eq!(
            guest.link.call(&on("fs.mkdir", "dangling")).code(),
            "exists"
        );
    });
}

#[test]
fn only_regular_files_are_read_and_nothing_blocks() {
    both(|guest| {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            guest.path("fifo"),
            rustix::fs::FileType::Fifo,
            0o644.into(),
            0,
        )
        .unwrap();
        let socket = std::os::unix::net::UnixListener::bind(guest.path("socket")).unwrap();
        fs::create_dir(guest.path("folder")).unwrap();
        for (path, code) in [
            ("fifo", "not_regular"),
            ("socket", "not_regular"),
            ("folder", "is_directory"),
            ("none", "not_found"),
            ("fifo/x", "not_directory"),
        ] {
            assert_eq!(read(guest, path), Err(code.to_owned()), "{path}");
        }
        for path in ["fifo", "socket"] {
            assert_eq!(
                write(guest, &on("fs.write", path), b"x").code(),
                "not_regular",
                "{path}"
            );
        }
        drop(socket);
    });
}

#[test]
fn any_name_is_a_name() {
    both(|guest| {
        let names = [
            &b"new\nline"[..],
            b"\xff\xfe",
            b" ",
            b"-rf",
            "\u{1f980}".as_bytes(),
        ];
        for name in names {
            write(guest, &on("fs.write", name), name).ok();
        }
        let reply = guest.link.call(&on("fs.list", "."));
        let mut listed: Vec<Vec<u8>> = reply
            .events
            .iter()
            .flat_map(|event| get(event, "entries").as_array().unwrap().clone())
            .map(|entry| get(&entry, "name").as_slice().unwrap().to_vec())
            .collect();
        let mut sorted = names.map(<[u8]>::to_vec);
        sorted.sort();
        assert_eq!(listed, sorted);
        listed.clear();
        for name in names {
            assert!(
                guest
                    .folder
                    .0
                    .join(std::ffi::OsString::from_vec(name.to_vec()))
                    .exists()
            );
            assert_eq!(
                number(&guest.link.call(&on("fs.remove", name)).ok(), "removed"),
                1
            );
        }
    });
}

#[test]
fn many_entries_come_in_pages() {
    let mut guest = Guest::start();
    for at in 0..20_000 {
        fs::File::create(guest.path(&format!("f{at:05}"))).unwrap();
    }
    let (mut after, mut seen, mut pages) = (None, 0, 0);
    loop {
        let mut request = map([
            ("op", text("fs.list")),
            ("path", bin(".")),
            ("limit", Value::from(7_000)),
        ]);
        if let (Value::Map(pairs), Some(name)) = (&mut request, after.take()) {
            pairs.push((text("after"), name));
        }
        let reply = guest.link.call(&request);
        let entries: Vec<Value> = reply
            .events
            .iter()
            .flat_map(|event| get(event, "entries").as_array().unwrap().clone())
            .collect();
        for entry in &entries {
            assert_eq!(
                get(entry, "name").as_slice(),
                Some(format!("f{seen:05}").as_bytes())
            );
            seen += 1;
        }
        pages += 1;
        after = entries.last().map(|entry| get(entry, "name").clone());
        if get(&reply.ok(), "more").as_bool() == Some(false) {
            break;
        }
    }
    assert_eq!((seen, pages), (20_000, 3));
}

#[test]
fn trees_are_walked_renamed_and_removed() {
    both(|guest| {
        fs::create_dir_all(guest.path("t/d/e")).unwrap();
        fs::write(guest.path("t/d/f"), "f").unwrap();
        symlink("..", guest.path("t/up")).unwrap();
        let reply = guest.link.call(&map([
            ("op", text("fs.walk")),
            ("path", bin("t")),
            ("limit", Value::from(10)),
        ]));
        let paths: Vec<String> = reply
            .events
            .iter()
            .flat_map(|event| get(event, "entries").as_array().unwrap().clone())
            .map(|entry| {
                String::from_utf8(get(&entry, "path").as_slice().unwrap().to_vec()).unwrap()
            })
            .collect();
        assert_eq!(paths, ["d", "d/e", "d/f", "up"]);
        let walk = map([
            ("op", text("fs.walk")),
            ("path", bin("t")),
            ("limit", Value::from(3)),
        ]);
        assert_eq!(guest.link.call(&walk).code(), "too_many");
        let rename = map([
            ("op", text("fs.rename")),
            ("from", bin("t")),
            ("to", bin("u")),
        ]);
        guest.link.call(&rename).ok();
        assert_eq!(guest.link.call(&on("fs.remove", "u")).code(), "not_empty");
        let remove = map([
            ("op", text("fs.remove")),
            ("path", bin("u")),
            ("recursive", Value::from(true)),
        ]);
        assert_eq!(number(&guest.link.call(&remove).ok(), "removed"), 5);
        assert_eq!(fs::read_dir(&guest.folder.0).unwrap().count(), 0);
    });
}

/// The paths, what the files hold, and the end.
fn tree(guest: &mut Guest, limits: [(&str, Value); 4]) -> Result<(Vec<String>, Vec<u8>), Value> {
    let [one, two, three, four] = limits;
    let reply = guest
        .link
        .call(&map([("op", text("fs.tree")), one, two, three, four]));
    let end = reply.end?;
    let paths = reply
        .events
        .iter()
        .flat_map(|event| get(event, "entries").as_array().unwrap().clone())
        .map(|entry| String::from_utf8(get(&entry, "path").as_slice().unwrap().to_vec()).unwrap())
        .collect();
    assert_eq!(get(&end, "length").as_u64(), Some(reply.out.len() as u64));
    Ok((paths, reply.out))
}

fn within(path: &str, limit: u64, max_file: u64, max_total: u64) -> [(&'static str, Value); 4] {
    [
        ("path", bin(path)),
        ("limit", Value::from(limit)),
        ("max_file", Value::from(max_file)),
        ("max_total", Value::from(max_total)),
    ]
}

#[test]
fn a_tree_comes_with_what_its_files_hold() {
    both(|guest| {
        let big = vec![b'x'; 700_000];
        fs::create_dir_all(guest.path("t/d")).unwrap();
        fs::write(guest.path("t/a"), &big).unwrap();
        fs::write(guest.path("t/d/b"), "second").unwrap();
        fs::write(guest.path("t/e"), "").unwrap();
        symlink("a", guest.path("t/z")).unwrap();
        let (paths, out) = tree(guest, within("t", 5, 700_000, 700_006)).unwrap();
        assert_eq!(paths, ["a", "d", "d/b", "e", "z"]);
        assert_eq!(out, [&big[..], b"second"].concat());
        for (limits, code, path) in [
            (within("t", 4, 700_000, 700_006), "too_many", None),
            (within("t", 5, 699_999, 700_006), "too_large", Some("a")),
            (within("t", 5, 700_000, 700_005), "too_large", Some("d/b")),
            (within("none", 5, 1, 1), "not_found", None),
            (within("t/a", 5, 1, 1), "not_directory", None),
        ] {
            let failure = tree(guest, limits).unwrap_err();
            assert_eq!(word(&failure, "code"), code);
            assert_eq!(get(&failure, "path").as_slice(), path.map(str::as_bytes));
        }
    });
}

#[test]
fn a_reader_answers_nothing_else() {
    let folder = Folder::new();
    fs::write(folder.0.join("f"), "x").unwrap();
    let mut reader = Guest::reader(folder);
    assert_eq!(read(&mut reader, "f").unwrap(), b"x");
    assert_eq!(tree(&mut reader, within(".", 9, 9, 9)).unwrap().1, b"x");
    for op in [
        "exec",
        "job.list",
        "job.cancel",
        "fs.write",
        "fs.mkdir",
        "fs.remove",
        "fs.rename",
        "none",
    ] {
        assert_eq!(reader.link.call(&on(op, "f")).code(), "unknown", "{op}");
    }
    assert_eq!(fs::read(reader.path("f")).unwrap(), b"x");
}

fn record(kind: u8, path: &str, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(u16::try_from(path.len()).unwrap().to_be_bytes());
    bytes.extend((content.len() as u64).to_be_bytes());
    bytes.extend(path.as_bytes());
    bytes.extend(content);
    bytes
}

/// The bundle of two files in the specification, and its digest.
fn two_files() -> (Vec<u8>, Vec<u8>) {
    let mut input = record(0, "README.md", b"# hi\n");
    input.extend(record(1, "bin/run.sh", b"#!/bin/sh\necho ok\n"));
    let digest = "deedbddc57d3f71a4ba6b2eba2d742007de1b9deb26caf56409e3b54bc1d4b8a";
    let bytes = (0..32)
        .map(|at| u8::from_str_radix(&digest[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    (input, bytes)
}

fn seed(guest: &mut Guest, digest: &[u8], input: &[u8]) -> common::Reply {
    let request = map([("op", text("fs.seed")), ("digest", bin(digest))]);
    let stream = guest.link.open(&request);
    guest.link.input(stream, input);
    guest.link.finish(stream)
}

#[test]
fn a_workspace_is_seeded_and_every_byte_is_checked() {
    both(|guest| {
        fs::create_dir_all(guest.path("old/deep")).unwrap();
        symlink("/etc", guest.path("bin")).unwrap();
        let (mut input, digest) = two_files();
        input.extend(record(2, "deps", b"/opt/deps"));
        input.extend(record(3, ".git/HEAD", b"ref: refs/heads/main\n"));
        let answer = seed(guest, &digest, &input).ok();
        assert_eq!(
            (number(&answer, "files"), number(&answer, "bytes")),
            (2, 23)
        );
        assert!(!guest.path("old").exists());
        assert_eq!(fs::read(guest.path("README.md")).unwrap(), b"# hi\n");
        let mode = |path| fs::metadata(guest.path(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(
            (
                mode("README.md"),
                mode("bin/run.sh"),
                mode("bin"),
                mode(".git/HEAD")
            ),
            (0o644, 0o755, 0o755, 0o644)
        );
        assert_eq!(
            fs::read_link(guest.path("deps")).unwrap().to_str(),
            Some("/opt/deps")
        );
    });
}

#[test]
fn what_differs_from_its_digest_leaves_an_empty_workspace() {
    both(|guest| {
        let (good, digest) = two_files();
        let mut off: Vec<(Vec<u8>, &str)> = vec![
            (good.replace(b"# hi\n", b"# ho\n"), "changed"),
            (good.replace(b"README.md", b"README.mf"), "changed"),
            (good[..good.len() - 1].to_vec(), "short"),
            (good[..5].to_vec(), "short"),
            (Vec::new(), "changed"),
        ];
        let mut executable = good.clone();
        executable[0] = 1;
        off.push((executable, "changed"));
        for path in ["../x", "/x", "a//b", "a/./b", ".", ""] {
            off.push(([good.clone(), record(3, path, b"x")].concat(), "invalid"));
        }
        off.push(([good.clone(), record(9, "x", b"x")].concat(), "protocol"));
        off.push((
            [good.clone(), record(0, "README.md", b"x")].concat(),
            "exists",
        ));
        off.push((
            [good.clone(), record(3, "README.md/x", b"x")].concat(),
            "not_directory",
        ));
        // A link of the record before leads nowhere.
        let link = [record(2, "out", b"/tmp"), record(3, "out/x", b"x")].concat();
        off.push(([good.clone(), link].concat(), "not_directory"));
        for (input, code) in off {
            assert_eq!(seed(guest, &digest, &input).code(), code);
            assert_eq!(fs::read_dir(guest.path(".")).unwrap().count(), 0);
        }
        seed(guest, &digest, &good).ok();
    });
}

trait Replace {
    fn replace(&self, old: &[u8], new: &[u8]) -> Vec<u8>;
}

impl Replace for Vec<u8> {
    fn replace(&self, old: &[u8], new: &[u8]) -> Vec<u8> {
        let at = self
            .windows(old.len())
            .position(|part| part == old)
            .unwrap();
        [&self[..at], new, &self[at + old.len()..]].concat()
    }
}
