//! What the kernel offers and `rustix` does not, or only as `unsafe`: the one module where `unsafe` is allowed.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_long, c_uint, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

/// Keeps the resident set small and steady: large buffers go back to the kernel when freed, few arenas.
pub fn tune_allocator() {
    // SAFETY: mallopt only sets parameters of the allocator; no memory is involved.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 * 1024);
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Takes ownership of a descriptor that this process inherited, if it is open.
pub fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD takes no pointer; it fails for a descriptor that is not open.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and the callers (start-up and `adopt`) own it by agreement with the parent process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Moves `fd` to number 3 and closes every other descriptor above 2; what this process inherited in memory is void.
pub fn keep_only(fd: OwnedFd) -> io::Result<OwnedFd> {
    const PLACE: RawFd = 3;
    let raw = fd.as_raw_fd();
    if raw != PLACE {
        // SAFETY: both are plain numbers. The caller is a fresh fork that never drops the descriptors copied from its parent.
        if unsafe { libc::dup3(raw, PLACE, libc::O_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    std::mem::forget(fd);
    // SAFETY: as above; nothing in this process uses the descriptors that are closed here.
    if unsafe { libc::syscall(libc::SYS_close_range, PLACE + 1, c_uint::MAX, 0) } < 0 {
        for number in PLACE + 1..4096 {
            // SAFETY: as above.
            unsafe { libc::close(number) };
        }
    }
    inherited(PLACE)
}

/// Puts `/dev/null` on descriptors 0 and 1 (and 2 where it is closed), so that no later descriptor takes these numbers.
pub fn settle_standard_streams(null: BorrowedFd<'_>, keep_output: bool) {
    for number in 0..3 {
        // SAFETY: plain numbers; 0 to 2 are not owned by any `OwnedFd` of this program.
        unsafe {
            let open = libc::fcntl(number, libc::F_GETFD) >= 0;
            if !open || number == 0 || (number == 1 && !keep_output) {
                libc::dup2(null.as_raw_fd(), number);
            }
        }
    }
}

/// Forks. `None` in the child. The child of a process with threads must confine itself to what `fork(2)` allows, the allocator
/// included, which the C library makes safe.
pub fn fork() -> io::Result<Option<i32>> {
    // SAFETY: the callers' children run only code of this program that takes no lock held by another thread.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// Gives every signal its default action and unblocks all but `SIGCHLD`, whatever this process inherited.
pub fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: SIG_DFL is a valid disposition; numbers that cannot be set are refused with EINVAL.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    set_mask(&[libc::SIGCHLD]);
}

/// Ignores `signal`.
pub fn ignore_signal(signal: c_int) {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Gives `signal` its default action.
pub fn default_signal(signal: c_int) {
    // SAFETY: SIG_DFL is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

fn signal_set(signals: &[c_int]) -> libc::sigset_t {
    // SAFETY: a zeroed sigset_t is valid memory for sigemptyset, which initialises it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

/// Blocks exactly `signals`.
pub fn set_mask(signals: &[c_int]) {
    let set = signal_set(signals);
    // SAFETY: the set is initialised and outlives the call.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const set, ptr::null_mut()) };
}

/// A descriptor that becomes readable when one of `signals` (blocked by the caller) is pending.
pub fn signal_fd(signals: &[c_int]) -> io::Result<OwnedFd> {
    let set = signal_set(signals);
    // SAFETY: the set is initialised; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The next pending signal of a signal descriptor.
pub fn next_signal(fd: &OwnedFd) -> Option<c_int> {
    // SAFETY: the buffer is as large as the kernel's record, which is plain data.
    unsafe {
        let mut info: libc::signalfd_siginfo = std::mem::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        let got = libc::read(fd.as_raw_fd(), (&raw mut info).cast::<c_void>(), size);
        (usize::try_from(got) == Ok(size)).then(|| info.ssi_signo.cast_signed())
    }
}

/// Waits until a blocked `SIGCHLD` is pending and takes it; false when `patience` ends first.
pub fn wait_for_child_signal(patience: Duration) -> bool {
    let set = signal_set(&[libc::SIGCHLD]);
    let timeout = libc::timespec {
        tv_sec: 0,
        tv_nsec: c_long::from(patience.subsec_nanos()),
    };
    // SAFETY: both structures are initialised and outlive the call; no information about the signal is asked for.
    unsafe {
        libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const timeout) == libc::SIGCHLD
    }
}

/// How a child ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub pid: i32,
    pub status: i32,
    pub user_us: u64,
    pub system_us: u64,
    pub peak_kb: u64,
}

impl Ended {
    /// The exit code, or nothing for a death by signal.
    pub fn code(&self) -> Option<i32> {
        libc::WIFEXITED(self.status).then(|| libc::WEXITSTATUS(self.status))
    }

    /// The signal that ended it.
    pub fn signal(&self) -> Option<i32> {
        libc::WIFSIGNALED(self.status).then(|| libc::WTERMSIG(self.status))
    }
}

/// What `reap` found.
pub enum Reaped {
    Child(Ended),
    /// There are children, none of which has ended.
    Running,
    /// There are no children.
    Nobody,
}

/// Takes one ended child, without waiting.
pub fn reap() -> Reaped {
    // SAFETY: a zeroed rusage is valid; both out-pointers outlive the call.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let mut status = 0;
        loop {
            return match libc::wait4(
                -1,
                &raw mut status,
                libc::WNOHANG | libc::__WALL,
                &raw mut usage,
            ) {
                0 => Reaped::Running,
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => continue,
                -1 => Reaped::Nobody,
                pid => Reaped::Child(Ended {
                    pid,
                    status,
                    user_us: microseconds(usage.ru_utime),
                    system_us: microseconds(usage.ru_stime),
                    peak_kb: u64::try_from(usage.ru_maxrss).unwrap_or(0),
                }),
            };
        }
    }
}

fn microseconds(time: libc::timeval) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
}

/// Sends `signal` to one process; false when it is gone or out of reach.
pub fn kill(pid: i32, signal: c_int) -> bool {
    // SAFETY: kill takes plain numbers; callers pass the ids of single processes.
    pid > 1 && unsafe { libc::kill(pid, signal) } == 0
}

/// The error number that a signal to `pid` would meet, 0 for none.
pub fn probe_signal(pid: i32) -> i32 {
    // SAFETY: signal 0 is never delivered.
    if unsafe { libc::kill(pid, 0) } == 0 {
        0
    } else {
        io::Error::last_os_error().raw_os_error().unwrap_or(0)
    }
}

/// Puts this process (and its later children) into a Landlock domain that no signal and no abstract-socket connection leaves.
/// Errors where the kernel lacks it.
pub fn enter_signal_scope() -> io::Result<()> {
    const CREATE_RULESET: c_long = 444;
    const RESTRICT_SELF: c_long = 446;
    const VERSION: c_uint = 1;
    const SCOPES_SINCE: c_long = 6;
    const ABSTRACT_UNIX_SOCKET: u64 = 1;
    const SIGNAL: u64 = 2;
    #[repr(C)]
    struct Ruleset {
        access_fs: u64,
        access_net: u64,
        scoped: u64,
    }
    let ruleset = Ruleset {
        access_fs: 0,
        access_net: 0,
        scoped: ABSTRACT_UNIX_SOCKET | SIGNAL,
    };
    // SAFETY: the version query takes no structure; the others get an initialised one with its size, or plain numbers.
    unsafe {
        let version = libc::syscall(CREATE_RULESET, ptr::null::<c_void>(), 0usize, VERSION);
        if version < SCOPES_SINCE {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let raw = libc::syscall(
            CREATE_RULESET,
            &raw const ruleset,
            size_of::<Ruleset>(),
            0 as c_uint,
        );
        let Ok(raw @ 0..) = c_int::try_from(raw) else {
            return Err(io::Error::last_os_error());
        };
        let fd = OwnedFd::from_raw_fd(raw);
        if libc::syscall(RESTRICT_SELF, fd.as_raw_fd(), 0 as c_uint) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Moves this process, which has one thread, into a new user namespace.
pub fn enter_user_namespace() -> io::Result<()> {
    // SAFETY: a plain number; no memory or descriptor is shared or unshared by it.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Refuses this process and its later children every way to another user namespace. Needs a capability or `no_new_privs`.
pub fn refuse_user_namespaces() -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    const ARCHITECTURE: u32 = 0xC000_003E;
    #[cfg(target_arch = "aarch64")]
    const ARCHITECTURE: u32 = 0xC000_00B7;
    // Offsets in the kernel's `seccomp_data`: the low half of an argument comes first on both machines.
    const NUMBER: u32 = 0;
    const MACHINE: u32 = 4;
    const FIRST_ARGUMENT: u32 = 16;
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let above = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
    let any_bit = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    let give = libc::BPF_RET | libc::BPF_K;
    let op = |code, jt, jf, k| libc::sock_filter {
        code: u16::try_from(code).unwrap_or(u16::MAX),
        jt,
        jf,
        k,
    };
    let number = |call: c_long| u32::try_from(call).unwrap_or(u32::MAX);
    let refuse = |errno: c_int| libc::SECCOMP_RET_ERRNO | errno.cast_unsigned();
    let mut program = [
        op(load, 0, 0, MACHINE),
        op(equal, 0, 9, ARCHITECTURE),
        op(load, 0, 0, NUMBER),
        op(above, 7, 0, 0x4000_0000),
        op(equal, 7, 0, number(libc::SYS_clone3)),
        op(equal, 5, 0, number(libc::SYS_setns)),
        op(equal, 1, 0, number(libc::SYS_unshare)),
        op(equal, 0, 2, number(libc::SYS_clone)),
        op(load, 0, 0, FIRST_ARGUMENT),
        op(any_bit, 1, 0, libc::CLONE_NEWUSER.cast_unsigned()),
        op(give, 0, 0, libc::SECCOMP_RET_ALLOW),
        op(give, 0, 0, refuse(libc::EPERM)),
        // The C library then takes `clone`.
        op(give, 0, 0, refuse(libc::ENOSYS)),
    ];
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(0),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program and its description outlive the call, which copies them.
    let set = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const filter,
            0,
            0,
        )
    };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Where a start can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Cwd,
    Exec,
    Fork,
    Setup,
}

/// A command ready to be started: everything the child needs is laid out before it exists.
pub struct Launch<'a> {
    /// Tried in turn while they do not exist.
    pub programs: &'a [CString],
    pub argv: &'a [CString],
    pub env: &'a [CString],
    pub cwd: BorrowedFd<'a>,
    /// stdin, stdout, stderr; all numbers are above 2.
    pub streams: [BorrowedFd<'a>; 3],
}

struct Child {
    programs: Vec<*const c_char>,
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    cwd: RawFd,
    streams: [RawFd; 3],
    unblocked: libc::sigset_t,
    failure: Option<(Stage, c_int)>,
}

/// Starts a session leader and returns when it executes the program. The child borrows this process's memory until then, as
/// `posix_spawn` does, so that no page table is copied.
pub fn launch(launch: &Launch<'_>) -> Result<i32, (Stage, i32)> {
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings
            .iter()
            .map(|string| string.as_ptr())
            .chain([ptr::null()])
            .collect()
    };
    let mut child = Child {
        programs: launch
            .programs
            .iter()
            .map(|string| string.as_ptr())
            .collect(),
        argv: pointers(launch.argv),
        env: pointers(launch.env),
        cwd: launch.cwd.as_raw_fd(),
        streams: launch.streams.map(|fd| fd.as_raw_fd()),
        unblocked: signal_set(&[]),
        failure: None,
    };
    let mut stack = vec![0u128; 4096];
    // SAFETY: the stack is 64 KiB, aligned, and outlives the child's use of it: CLONE_VFORK suspends this thread until the child
    // executes or exits. `child` lives as long, and this process has one thread, so nobody else touches either meanwhile.
    let pid = unsafe {
        libc::clone(
            start_child,
            stack.as_mut_ptr_range().end.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            (&raw mut child).cast(),
        )
    };
    if pid < 0 {
        return Err((Stage::Fork, errno()));
    }
    // SAFETY: the child wrote `failure` through its pointer before it ended; a volatile read keeps that visible.
    match unsafe { ptr::read_volatile(&raw const child.failure) } {
        Some(failure) => Err(failure),
        None => Ok(pid),
    }
}

extern "C" fn start_child(argument: *mut c_void) -> c_int {
    // SAFETY: `launch` passes its `Child`, which outlives this function; only calls that are safe after vfork are made, and the
    // pointers lead to strings and arrays that end with NUL and null.
    unsafe {
        let child = &mut *argument.cast::<Child>();
        libc::setsid();
        for (number, fd) in (0..).zip(child.streams) {
            if libc::dup2(fd, number) < 0 {
                child.failure = Some((Stage::Setup, errno()));
                libc::_exit(127);
            }
        }
        if libc::fchdir(child.cwd) != 0 {
            child.failure = Some((Stage::Cwd, errno()));
            libc::_exit(127);
        }
        libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const child.unblocked,
            ptr::null_mut(),
        );
        let mut reason = libc::ENOENT;
        for program in &child.programs {
            libc::execve(*program, child.argv.as_ptr(), child.env.as_ptr());
            match errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => reason = libc::EACCES,
                other => {
                    reason = other;
                    break;
                }
            }
        }
        child.failure = Some((Stage::Exec, reason));
        libc::_exit(127)
    }
}

fn errno() -> c_int {
    // SAFETY: the C library always gives a valid pointer to this thread's errno.
    unsafe { *libc::__errno_location() }
}
