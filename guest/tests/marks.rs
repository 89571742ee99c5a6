//! The processes of a job where orphans cannot be adopted: as on a kernel without child subreapers, which this one has.

mod common;

use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{Guest, NOBODY, bin, eventually, get, map, pid_in, runs, text, word};
use rmpv::Value;

/// A guest that marks its jobs; nothing where the host refuses user namespaces to ordinary users.
fn marking() -> Option<Guest> {
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "true"]);
    if rustix::process::getuid().is_root() {
        unshare.uid(NOBODY).gid(NOBODY);
    }
    if !unshare.status().is_ok_and(|status| status.success()) {
        eprintln!("this host refuses user namespaces: marks are not tested");
        return None;
    }
    let guest = Guest::ordinary(&["--no-subreaper"]);
    let found = get(&guest.hello, "capabilities").as_array().unwrap();
    assert!(found.contains(&text("marks")) && !found.contains(&text("subreaper")));
    Some(guest)
}

fn exec(script: &str, deadline_ms: u64) -> Value {
    map([
        ("op", text("exec")),
        ("shell", bin(script)),
        ("deadline_ms", Value::from(deadline_ms)),
        ("grace_ms", Value::from(100)),
    ])
}

#[test]
fn a_deadline_ends_whoever_escaped() {
    let Some(mut guest) = marking() else { return };
    for hide in [
        "(setsid sh -c 'echo $$ > pid; exec sleep 60' &)",
        "setsid sh -c '(setsid sh -c \"echo \\$\\$ > pid; exec sleep 60\" &) & exit' &",
        "(env -i setsid sh -c 'echo $$ > pid; trap : TERM HUP; while :; do sleep 1; done' <&- >&- 2>&- &)",
    ] {
        let _ = std::fs::remove_file(guest.path("pid"));
        let script = format!("{hide}\nuntil [ -s pid ]; do sleep 0.01; done; exec sleep 60");
        let result = guest.link.call(&exec(&script, 1_000)).ok();
        assert_eq!(word(&result, "cause"), "timeout");
        let pid = pid_in(&guest.path("pid"));
        eventually("the end of what escaped", || !runs(pid));
    }
}

#[test]
fn what_is_left_keeps_its_job_alive_until_it_ends() {
    let Some(mut guest) = marking() else { return };
    let script =
        "(setsid sh -c 'echo $$ > pid; exec sleep 60' &); until [ -s pid ]; do sleep 0.01; done";
    guest.link.call(&exec(script, 10_000)).ok();
    let pid = pid_in(&guest.path("pid"));
    assert!(runs(pid));
    assert!(alive(&mut guest));
    guest.link.shell(&format!("kill {pid}"));
    eventually("the end of the job", || !alive(&mut guest));
}

fn alive(guest: &mut Guest) -> bool {
    let table = guest.link.call(&map([("op", text("job.list"))])).ok();
    get(&table, "jobs")
        .as_array()
        .unwrap()
        .iter()
        .any(|job| get(job, "alive") == &Value::from(true))
}

#[test]
fn jobs_end_apart() {
    let Some(mut guest) = marking() else { return };
    let script = "(setsid sh -c 'echo $$ > other; exec sleep 60' &); until [ -s other ]; do sleep 0.01; done";
    guest.link.call(&exec(script, 10_000)).ok();
    let other = pid_in(&guest.path("other"));
    let result = guest
        .link
        .call(&exec("(setsid sleep 60 &); sleep 60", 300))
        .ok();
    assert_eq!(word(&result, "cause"), "timeout");
    assert!(runs(other));
    guest.link.shell(&format!("kill {other}"));
    eventually("its end", || !runs(other));
}

#[test]
fn a_command_cannot_lose_its_mark() {
    let Some(mut guest) = marking() else { return };
    let ways =
        "unshare --user true && echo lost; unshare --user --map-root-user true && echo lost; id -u";
    let reply = guest.link.shell(ways);
    assert_eq!(reply.stdout().lines().count(), 1, "{}", reply.stdout());
    let status = guest
        .link
        .shell("grep -E '^Cap(Eff|Prm|Inh|Amb):' /proc/self/status | grep -v 0000000000000000");
    assert_eq!(status.stdout(), "");
}

#[test]
fn a_killed_reaper_loses_one_job_and_what_it_hid() {
    let Some(mut guest) = marking() else { return };
    let script = "(setsid sh -c 'echo $$ > pid; exec sleep 60' &); until [ -s pid ]; do sleep 0.01; done; kill -9 $PPID; sleep 60";
    let result = guest.link.call(&exec(script, 15_000)).ok();
    assert_eq!(word(&result, "cause"), "lost");
    let pid = pid_in(&guest.path("pid"));
    eventually("the end of what was hidden", || !runs(pid));
    assert_eq!(guest.link.shell("echo works").stdout(), "works\n");
}
