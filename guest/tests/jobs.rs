//! Commands, over the protocol, against the real guest.

mod common;

use b4_guest::frames::{self, Kind};
use common::{Guest, bin, eventually, get, map, number, packed, pid_in, runs, text, word};
use rmpv::Value;

fn exec<const N: usize>(script: &str, more: [(&str, Value); N]) -> Value {
    let mut request = map([("op", text("exec")), ("shell", bin(script))]);
    let Value::Map(pairs) = &mut request else {
        unreachable!()
    };
    pairs.extend(more.into_iter().map(|(key, value)| (text(key), value)));
    request
}

fn read_log(id: i64, offset: i64, limit: i64) -> Value {
    map([
        ("op", text("job.read")),
        ("job", Value::from(id)),
        ("channel", Value::from(1)),
        ("offset", Value::from(offset)),
        ("limit", Value::from(limit)),
    ])
}

fn job(op: &str, id: i64) -> Value {
    map([("op", text(op)), ("job", Value::from(id))])
}

#[test]
fn a_result_has_code_output_and_counts() {
    let mut guest = Guest::start();
    let reply = guest.link.shell("echo out; echo err >&2; exit 7");
    assert_eq!(
        (&reply.out[..], &reply.err[..]),
        (&b"out\n"[..], &b"err\n"[..])
    );
    let result = reply.ok();
    assert_eq!(
        (word(&result, "cause"), number(&result, "exit_code")),
        ("exit", 7)
    );
    assert_eq!(number(get(&result, "stdout"), "total"), 4);
    assert!(number(&result, "peak_kb") > 0 && number(&result, "duration_us") > 0);
}

#[test]
fn arguments_environment_and_folder_are_as_asked() {
    let mut guest = Guest::start();
    std::fs::create_dir(guest.path("sub")).unwrap();
    let argv = Value::Array(
        ["sh", "-c", "echo $0:$BASE:$NEW; pwd", "a b"]
            .map(bin)
            .to_vec(),
    );
    let env = Value::Map(vec![(bin("NEW"), bin("new"))]);
    let request = map([
        ("op", text("exec")),
        ("argv", argv),
        ("env", env),
        ("cwd", bin("sub")),
    ]);
    let reply = guest.link.call(&request);
    assert_eq!(
        reply.stdout(),
        format!("a b:base:new\n{}\n", guest.path("sub").display())
    );
}

#[test]
fn what_cannot_start_says_at_which_stage() {
    let mut guest = Guest::start();
    for (request, stage) in [
        (exec("true", [("cwd", bin("none"))]), "cwd"),
        (
            map([
                ("op", text("exec")),
                ("argv", Value::Array(vec![bin("no-such-program")])),
            ]),
            "exec",
        ),
        (
            map([
                ("op", text("exec")),
                ("argv", Value::Array(vec![bin("/etc/passwd")])),
            ]),
            "exec",
        ),
    ] {
        let reply = guest.link.call(&request);
        assert_eq!(reply.code(), "not_started");
        assert_eq!(word(reply.end.as_ref().unwrap_err(), "stage"), stage);
    }
    assert_eq!(guest.link.shell("echo still").stdout(), "still\n");
}

#[test]
fn death_by_signal_is_told_from_a_timeout() {
    let mut guest = Guest::start();
    let killed = guest.link.shell("kill -9 $$").ok();
    assert_eq!(
        (word(&killed, "cause"), number(&killed, "exit_code")),
        ("signal", 137)
    );
    let late = guest
        .link
        .call(&exec("sleep 60", [("deadline_ms", Value::from(50))]))
        .ok();
    assert_eq!(
        (word(&late, "cause"), number(&late, "exit_code")),
        ("timeout", 124)
    );
}

const ESCAPES: &str = "
setsid sh -c 'echo $$ > a; trap \"\" TERM; while :; do sleep 1; done' &
( (sh -c 'echo $$ > b; exec sleep 60' &) & )
setsid sh -c '(setsid sh -c \"echo \\$\\$ > c; exec <&- >&- 2>&-; exec sleep 60\" &) & exit' &
until [ -s a ] && [ -s b ] && [ -s c ]; do sleep 0.01; done; echo ready; exec sleep 60";

#[test]
fn a_deadline_and_a_cancel_end_whoever_escaped() {
    let mut guest = Guest::start();
    for cancelled in [false, true] {
        let limit = Value::from(if cancelled { 60_000 } else { 1_000 });
        let request = exec(
            ESCAPES,
            [
                ("deadline_ms", limit),
                ("grace_ms", Value::from(100)),
                ("follow", Value::from(true)),
            ],
        );
        let stream = guest.link.open(&request);
        if cancelled {
            while guest.link.frame().unwrap().kind != Kind::Data {}
            guest.link.send(
                Kind::Cancel,
                stream,
                &packed(&map([("grace_ms", Value::from(100))])),
            );
        }
        let result = guest.link.finish(stream).ok();
        assert_eq!(
            word(&result, "cause"),
            if cancelled { "cancelled" } else { "timeout" }
        );
        let pids = ["a", "b", "c"].map(|name| pid_in(&guest.path(name)));
        guest
            .link
            .call(&job("job.cancel", number(&result, "job")))
            .ok();
        for pid in pids {
            eventually("the end of an escaped process", || !runs(pid));
        }
        for name in ["a", "b", "c"] {
            std::fs::remove_file(guest.path(name)).unwrap();
        }
    }
}

#[test]
fn a_background_child_holds_nobody_and_its_log_stays_readable() {
    let mut guest = Guest::start();
    let reply = guest
        .link
        .shell("(until [ -e go ]; do sleep 0.01; done; echo later) & echo first");
    assert_eq!(reply.stdout(), "first\n");
    let id = number(&reply.ok(), "job");
    std::fs::write(guest.path("go"), "").unwrap();
    let read = read_log(id, 6, 100);
    eventually("the child's output", || {
        let reply = guest.link.call(&read);
        reply.out == b"later\n" && get(&reply.ok(), "eof").as_bool() == Some(true)
    });
}

#[test]
fn input_arrives_whole_and_without_input_there_is_none() {
    let mut guest = Guest::start();
    let sent: Vec<u8> = (0..8u32 << 20).map(|at| (at % 251) as u8).collect();
    let stream = guest.link.open(&exec(
        "cat > copy; wc -c < copy",
        [("stdin", Value::from(true))],
    ));
    guest.link.input(stream, &sent);
    assert_eq!(
        guest.link.finish(stream).stdout().trim(),
        sent.len().to_string()
    );
    assert!(std::fs::read(guest.path("copy")).unwrap() == sent);
    assert_eq!(guest.link.shell("cat; echo end").stdout(), "end\n");
}

#[test]
fn a_log_keeps_head_and_tail_and_counts_the_rest() {
    let mut guest = Guest::start();
    let limits = [
        ("head", Value::from(4)),
        ("tail", Value::from(3)),
        ("background", Value::from(true)),
    ];
    let id = number(
        &guest.link.call(&exec("printf 0123456789", limits)).ok(),
        "job",
    );
    let result = guest.link.call(&job("job.wait", id)).ok();
    let kept = get(&result, "stdout");
    assert_eq!(
        (
            number(kept, "total"),
            number(kept, "head"),
            number(kept, "tail")
        ),
        (10, 4, 3)
    );
    for (offset, data, at, gap) in [
        (0, &b"0123"[..], 0, 0),
        (2, b"23", 2, 0),
        (5, b"789", 7, 2),
        (8, b"89", 8, 0),
        (10, b"", 10, 0),
    ] {
        let reply = guest.link.call(&read_log(id, offset, 100));
        assert_eq!(reply.out, data, "from {offset}");
        let answer = reply.ok();
        assert_eq!(
            (
                number(&answer, "offset"),
                number(&answer, "gap"),
                number(&answer, "total")
            ),
            (at, gap, 10),
            "from {offset}"
        );
    }
}

#[test]
fn without_credit_the_guest_holds_output_back_and_answers_others() {
    let mut guest = Guest::start();
    let size = 3 * frames::INITIAL_CREDIT;
    let stream = guest.link.open(&exec(
        &format!("head -c {size} /dev/zero"),
        [("follow", Value::from(true))],
    ));
    let mut got = 0;
    while got < frames::INITIAL_CREDIT {
        let frame = guest.link.frame().unwrap();
        if frame.kind == Kind::Data {
            got += frame.payload.len() - 1;
        }
    }
    assert_eq!(got, frames::INITIAL_CREDIT);
    guest.link.send(Kind::Ping, 0, b"there?");
    let frame = guest.link.frame().unwrap();
    assert_eq!(
        (frame.kind, &frame.payload[..]),
        (Kind::Pong, &b"there?"[..])
    );
    guest
        .link
        .raw(&frames::encode_credit(stream, frames::OUTPUT, 1 << 22));
    let reply = guest.link.finish(stream);
    assert_eq!(got + reply.out.len(), size);
    assert_eq!(
        number(get(&reply.ok(), "stdout"), "total"),
        i64::try_from(size).unwrap()
    );
}

#[test]
fn much_output_leaves_the_memory_flat() {
    let mut guest = Guest::start();
    guest.link.shell("head -c 4194304 /dev/zero").ok();
    let before = guest.rss_kb();
    for _ in 0..3 {
        let result = guest.link.shell("head -c 67108864 /dev/zero").ok();
        assert_eq!(number(get(&result, "stdout"), "total"), 67_108_864);
    }
    assert!(
        guest.rss_kb() < before + 2_048,
        "{before} kB grew to {} kB",
        guest.rss_kb()
    );
}

#[test]
fn jobs_are_listed_signalled_and_forgotten() {
    let mut guest = Guest::start();
    let script = "trap 'exit 3' USR1; echo up; while :; do sleep 0.01; done";
    let id = number(
        &guest
            .link
            .call(&exec(script, [("background", Value::from(true))]))
            .ok(),
        "job",
    );
    let list = guest.link.call(&map([("op", text("job.list"))])).ok();
    let first = &get(&list, "jobs").as_array().unwrap()[0];
    assert_eq!(
        (number(first, "job"), get(first, "running").as_bool()),
        (id, Some(true))
    );
    assert_eq!(get(first, "command").as_slice(), Some(script.as_bytes()));
    assert_eq!(guest.link.call(&job("job.forget", id)).code(), "busy");
    let read = read_log(id, 0, 9);
    eventually("the first line", || guest.link.call(&read).out == b"up\n");
    let signal = map([
        ("op", text("job.signal")),
        ("job", Value::from(id)),
        ("signal", Value::from(10)),
    ]);
    assert_eq!(number(&guest.link.call(&signal).ok(), "sent"), 1);
    assert_eq!(
        number(&guest.link.call(&job("job.wait", id)).ok(), "exit_code"),
        3
    );
    eventually("the job's end", || {
        guest.link.call(&job("job.forget", id)).end.is_ok()
    });
    assert_eq!(guest.link.call(&job("job.wait", id)).code(), "no_job");
    guest.link.call(&job("job.cancel", id)).ok();
    assert_eq!(guest.link.call(&job("job.cancel", 999)).code(), "no_job");
}

#[test]
fn a_killed_reaper_loses_one_job_and_no_more() {
    let mut guest = Guest::start();
    let result = guest
        .link
        .shell("echo $$ > pid; kill -9 $PPID; sleep 60")
        .ok();
    assert_eq!(word(&result, "cause"), "lost");
    let pid = pid_in(&guest.path("pid"));
    eventually("the end of what it left", || !runs(pid));
    assert_eq!(guest.link.shell("echo on").stdout(), "on\n");
}

#[test]
fn commands_in_a_row_leave_no_processes_and_no_descriptors() {
    let mut guest = Guest::start();
    let of = |guest: &Guest| {
        let pid = guest.child.id();
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .count();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        (fds, children)
    };
    for _ in 0..10 {
        guest.link.shell("true").ok();
    }
    let before = of(&guest);
    for _ in 0..200 {
        guest.link.shell("(sleep 0 &) ; true").ok();
    }
    eventually("the same number of descriptors", || of(&guest) == before);
}

#[test]
fn the_end_of_the_stream_ends_everything() {
    let mut guest = Guest::start();
    guest
        .link
        .call(&exec(
            "echo $$ > pid; exec sleep 60",
            [("background", Value::from(true))],
        ))
        .ok();
    eventually("the command's start", || {
        std::fs::metadata(guest.path("pid")).is_ok_and(|file| file.len() > 0)
    });
    let pid = pid_in(&guest.path("pid"));
    guest
        .link
        .stream
        .shutdown(std::net::Shutdown::Both)
        .unwrap();
    assert_eq!(guest.ended(), Some(0));
    eventually("the command's end", || !runs(pid));
}

#[test]
fn a_guest_that_is_told_to_end_closes_the_connection_and_cancels_nobody() {
    let mut guest = Guest::start();
    let stream = guest.link.open(&exec("echo $$ > pid; exec sleep 60", []));
    eventually("the command's start", || {
        std::fs::metadata(guest.path("pid")).is_ok_and(|file| file.len() > 0)
    });
    let pid = pid_in(&guest.path("pid"));
    let id = guest.child.id().to_string();
    let told = std::process::Command::new("kill")
        .arg(&id)
        .status()
        .unwrap();
    assert!(told.success());
    while let Some(frame) = guest.link.frame() {
        assert_eq!((frame.kind, frame.stream), (Kind::Event, stream));
    }
    assert_eq!(guest.ended(), Some(0));
    eventually("the command's end", || !runs(pid));
}
