//! File requests, done by a few worker threads, for any of them may block.

mod entry;
mod list;
mod manage;
pub mod path;
mod read;
mod seed;
mod tree;
mod walk;
mod write;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::messages::{Code, Failure};
use crate::stream::Stream;
use path::Root;

/// The requests that change nothing.
pub const READS: [&str; 7] = [
    "fs.stat", "fs.real", "fs.list", "fs.walk", "fs.tree", "fs.read", "fs.lines",
];
const MAX_WORKERS: usize = 16;
/// How long a worker waits for more to do; the last one stays, for a thread may be hard to get later.
const IDLE: Duration = Duration::from_millis(250);
const STACK: usize = 256 << 10;

/// The threads and what waits for them.
pub struct Workers {
    shared: Arc<Shared>,
}

struct Shared {
    root: Arc<Root>,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Task>,
    threads: usize,
    idle: usize,
}

struct Task {
    op: String,
    stream: Arc<Stream>,
    payload: Vec<u8>,
}

impl Workers {
    pub fn new(root: Arc<Root>) -> Self {
        Self {
            shared: Arc::new(Shared {
                root,
                state: Mutex::default(),
                arrived: Condvar::new(),
            }),
        }
    }

    /// Starts the worker that stays, so that files work even when no thread can be started any more.
    pub fn prepare(&mut self) {
        let mut state = self.shared.lock();
        // Without it, the first request tries again.
        state.threads += usize::from(self.spawn().is_ok());
    }

    fn spawn(&self) -> std::io::Result<()> {
        let shared = self.shared.clone();
        thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || shared.work())
            .map(drop)
    }

    /// Has a worker answer the request.
    pub fn submit(&mut self, op: &str, stream: &Arc<Stream>, payload: &[u8]) {
        let mut state = self.shared.lock();
        state.queue.push_back(Task {
            op: op.to_owned(),
            stream: stream.clone(),
            payload: payload.to_vec(),
        });
        if state.queue.len() <= state.idle {
            self.shared.arrived.notify_one();
            return;
        }
        if state.threads >= MAX_WORKERS {
            return;
        }
        match self.spawn() {
            Ok(()) => state.threads += 1,
            Err(_) if state.threads > 0 => {}
            Err(_) => {
                state.queue.pop_back();
                drop(state);
                stream.fail(&Failure::new(Code::Busy, "no thread could be started"));
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(task) = self.next() {
            let outcome = answer(&self.root, &task.op, &task.payload, &task.stream);
            if let Err(failure) = outcome {
                let frame = task.stream.failure(&failure);
                task.stream.outbox.send([frame]);
            }
        }
    }

    fn next(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.queue.pop_front() {
                return Some(task);
            }
            state.idle += 1;
            let (after, waited) = self
                .arrived
                .wait_timeout(state, IDLE)
                .unwrap_or_else(PoisonError::into_inner);
            state = after;
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() && state.threads > 1 {
                state.threads -= 1;
                return None;
            }
        }
    }
}

fn answer(root: &Root, op: &str, payload: &[u8], stream: &Stream) -> Result<(), Failure> {
    stream.check_cancelled()?;
    match op {
        "fs.stat" => list::stat(root, payload, stream),
        "fs.real" => list::real(root, payload, stream),
        "fs.list" => list::list(root, payload, stream),
        "fs.walk" => tree::walk(root, payload, stream),
        "fs.tree" => tree::tree(root, payload, stream),
        "fs.read" => read::read(root, payload, stream),
        "fs.lines" => read::lines(root, payload, stream),
        "fs.write" => write::write(root, payload, stream),
        "fs.seed" => seed::seed(root, payload, stream),
        "fs.mkdir" => manage::mkdir(root, payload, stream),
        "fs.remove" => manage::remove(root, payload, stream),
        "fs.rename" => manage::rename(root, payload, stream),
        _ => Err(Failure::new(
            Code::Unknown,
            format!("there is no operation {op:.32}"),
        )),
    }
}

/// Sends the successful end, behind frames that are still held back.
fn respond<T: serde::Serialize>(
    stream: &Stream,
    held: impl IntoIterator<Item = Vec<u8>>,
    message: &T,
) {
    let response = stream.response(message);
    stream.outbox.send(held.into_iter().chain([response]));
}
