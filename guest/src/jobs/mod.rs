//! The table of jobs, and the requests about them.

mod start;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::control::{self, Report};
use crate::files::path::Root;
use crate::frames::{ERRORS, INITIAL_CREDIT, OUTPUT};
use crate::job::Job;
pub use crate::jobs::start::open_null;
use crate::messages::{
    Cause, Code, Environment, Exec, Failure, JobCancel, JobForget, JobRead, JobSignal, JobTable,
    JobWait, Nothing, decode,
};
use crate::nursery::Nursery;
use crate::stream::Stream;

const MAX_FINISHED: usize = 64;
const MAX_FINISHED_LOGS: usize = 32 << 20;
const MAX_SIGNAL: i32 = 64;
/// How soon a sweep for orphans is repeated.
const SWEEP_AGAIN: Duration = Duration::from_millis(10);

pub struct Jobs {
    pub table: BTreeMap<u32, Job>,
    pub nursery: Nursery,
    root: Arc<Root>,
    null: OwnedFd,
    born: Instant,
    last: u32,
    scratch: Vec<u8>,
    /// When orphans are looked for.
    sweep: Option<Instant>,
}

impl Jobs {
    pub fn new(nursery: Nursery, root: Arc<Root>, null: OwnedFd) -> Self {
        Self {
            table: BTreeMap::new(),
            nursery,
            root,
            null,
            born: Instant::now(),
            last: 0,
            scratch: Vec::new(),
            sweep: None,
        }
    }

    /// Starts a command for `stream`; the job's id where one was made.
    pub fn exec(&mut self, stream: &Arc<Stream>, payload: &[u8], env: &Environment) -> Option<u32> {
        match decode::<Exec>(payload).and_then(|exec| self.start(stream, exec, env)) {
            Ok(job) => Some(job),
            Err(failure) => {
                stream.fail(&failure);
                None
            }
        }
    }

    /// Answers a `job.…` request; a failure is for the caller to send. The job's id when the answer comes later.
    pub fn request(
        &mut self,
        op: &str,
        stream: &Arc<Stream>,
        payload: &[u8],
    ) -> Result<Option<u32>, Failure> {
        match op {
            "job.list" => {
                let jobs = self
                    .table
                    .values()
                    .filter(|job| job.pid != 0)
                    .map(Job::entry)
                    .collect();
                stream.respond(&JobTable { jobs });
            }
            "job.wait" => {
                let wait: JobWait = decode(payload)?;
                self.find(wait.job)?
                    .wait(stream, wait.timeout_ms.map(Duration::from_millis));
                return Ok(Some(wait.job));
            }
            "job.read" => {
                let read: JobRead = decode(payload)?;
                if !matches!(read.channel, OUTPUT | ERRORS) {
                    return Err(Failure::new(Code::Protocol, "channel is 1 or 2"));
                }
                let limit = usize::try_from(read.limit)
                    .unwrap_or(usize::MAX)
                    .min(INITIAL_CREDIT);
                self.find(read.job)?
                    .read_log(read.channel, read.offset, limit, stream);
            }
            "job.signal" => {
                let signal: JobSignal = decode(payload)?;
                if !(0..=MAX_SIGNAL).contains(&signal.signal) {
                    return Err(Failure::new(Code::Invalid, "signals are 0 to 64"));
                }
                self.find(signal.job)?
                    .signal(signal.signal, signal.tree, stream);
            }
            "job.cancel" => {
                let cancel: JobCancel = decode(payload)?;
                if self.is_forgotten(cancel.job) {
                    stream.respond(&Nothing {});
                    return Ok(None);
                }
                let job = self.find(cancel.job)?;
                job.cancel(Cause::Cancelled, cancel.grace_ms.map(Duration::from_millis));
                job.answer_when_gone(stream);
                return Ok(Some(cancel.job));
            }
            "job.forget" => {
                let JobForget { job } = decode(payload)?;
                if self.find(job)?.is_alive() {
                    return Err(Failure::new(Code::Busy, format!("job {job} is alive")));
                }
                self.table.remove(&job);
                stream.respond(&Nothing {});
            }
            _ => {
                return Err(Failure::new(
                    Code::Unknown,
                    format!("there is no operation {op:.32}"),
                ));
            }
        }
        Ok(None)
    }

    /// There was such a job, and nothing of it is left.
    fn is_forgotten(&self, id: u32) -> bool {
        (1..=self.last).contains(&id) && !self.table.contains_key(&id)
    }

    fn find(&mut self, id: u32) -> Result<&mut Job, Failure> {
        self.table
            .get_mut(&id)
            .filter(|job| job.pid != 0)
            .ok_or_else(|| Failure::no_job(id))
    }

    /// The host gives up the request `stream`, which started or waits for job `id`.
    pub fn cancel(&mut self, id: u32, stream: &Arc<Stream>, grace: Option<Duration>) {
        let Some(job) = self.table.get_mut(&id) else {
            return;
        };
        if job.is_attached_to(stream) {
            job.cancel(Cause::Cancelled, grace);
        } else {
            job.unwait(stream);
            stream.fail(&crate::stream::cancelled());
        }
    }

    /// The connection of `stream` has ended.
    pub fn desert(&mut self, id: u32, stream: &Arc<Stream>) {
        if let Some(job) = self.table.get_mut(&id) {
            if job.is_attached_to(stream) {
                job.detach();
            } else {
                job.unwait(stream);
            }
        }
    }

    /// Reads the reports of one job's reaper.
    pub fn hear(&mut self, id: u32) {
        let Some(job) = self.table.get_mut(&id) else {
            return;
        };
        let Some(control) = &job.control else { return };
        let mut message = [0; control::MAX_REPORT];
        match control::receive(control, &mut message, RecvFlags::DONTWAIT) {
            Ok((size @ 1.., _)) => {
                if let Some(report) = control::decode::<Report>(&message[..size]) {
                    if report.gone
                        && let Some(control) = job.control.take()
                    {
                        self.nursery.take_back(control, job.reaper);
                    }
                    job.hear(&report);
                }
            }
            Err(Errno::AGAIN) => {}
            _ => {
                job.lose();
                self.nursery.distrust(job.reaper);
                self.sweep = Some(Instant::now());
            }
        }
    }

    /// A child of the guest has ended or was left to it.
    pub fn child_ended(&mut self) {
        self.sweep = Some(Instant::now());
    }

    /// Moves every job as far as it goes, and forgets what is over.
    pub fn advance(&mut self, now: Instant) {
        for job in self.table.values_mut() {
            job.check_timers(now);
            job.advance(&mut self.scratch);
        }
        self.sweep_orphans(now);
        self.table.retain(|_, job| !job.is_spent());
        self.evict();
        if self.table.values().all(|job| !job.is_alive()) {
            self.scratch = Vec::new();
        }
    }

    fn sweep_orphans(&mut self, now: Instant) {
        if self.sweep.is_none_or(|at| at > now) {
            return;
        }
        let reapers: Vec<i32> = self
            .table
            .values()
            .filter(|job| job.control.is_some())
            .map(|job| job.reaper.pid)
            .chain(self.nursery.reserve_pid())
            .collect();
        if !self.nursery.clear_orphans(&reapers) {
            self.sweep = Some(now + SWEEP_AGAIN);
            return;
        }
        self.sweep = None;
        for job in self.table.values_mut().filter(|job| job.lost) {
            job.end();
            job.advance(&mut self.scratch);
        }
    }

    fn evict(&mut self) {
        let finished: Vec<(u32, usize)> = self
            .table
            .values()
            .filter(|job| !job.is_alive() && job.outcome.is_some())
            .map(|job| (job.id, job.kept()))
            .collect();
        let mut count = finished.len();
        let mut kept: usize = finished.iter().map(|(_, kept)| kept).sum();
        for (id, size) in finished {
            if count <= MAX_FINISHED && kept <= MAX_FINISHED_LOGS {
                break;
            }
            self.table.remove(&id);
            count -= 1;
            kept -= size;
        }
    }

    /// When something is to be done although nothing happens.
    pub fn next_timer(&self) -> Option<Instant> {
        self.table
            .values()
            .filter_map(Job::next_timer)
            .chain(self.sweep)
            .chain(self.nursery.next_timer())
            .min()
    }

    /// Ends every job at once.
    pub fn cancel_all(&mut self) {
        for job in self.table.values_mut().filter(|job| job.is_alive()) {
            job.cancel(Cause::Cancelled, Some(Duration::ZERO));
        }
    }

    pub fn any_alive(&self) -> bool {
        self.table.values().any(Job::is_alive)
    }
}
