//! `--on`: executes simulations as tasks of a Ray cluster, through a process of the Python package.
//!
//! The process reads a line with a script for each simulation, and writes a line for each result, in any order.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tempfile::TempDir;

use crate::refusal::Refusal;
use crate::sweep::cluster::{ended, module, not_started};

/// Number of families, and of shapes in each, simulated concurrently: together more than most clusters have cores.
pub(crate) const THREADS: usize = 64;
/// Interval at which the time limit is checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Serialize)]
struct Task<'a> {
    number: u64,
    /// Number of leading requests that are simulated; None for all. It determines how long the simulation takes.
    requests: Option<u64>,
    script: &'a str,
}

#[derive(Deserialize)]
struct Line {
    number: u64,
    result: Box<RawValue>,
}

/// Senders of the results that are awaited, by task number.
#[derive(Default)]
struct Waiting {
    next_number: u64,
    senders: BTreeMap<u64, Sender<Box<RawValue>>>,
    has_ended: bool,
}

/// The process that distributes simulations to a cluster.
pub(crate) struct Cluster {
    address: String,
    child: Mutex<Child>,
    /// Input of the process; none after its end.
    tasks: Mutex<Option<ChildStdin>>,
    waiting: Arc<Mutex<Waiting>>,
    /// Holds the pack while workers may read it.
    _folder: TempDir,
}

impl Cluster {
    /// Starts the process. Its workers get the files of `pack`, and evaluate `objectives`.
    pub(crate) fn start(address: &str, pack: &[u8], objectives: &impl Serialize) -> Result<Self, Refusal> {
        let failed = |error: std::io::Error| Refusal::input(format!("--on {address}: {error}"));
        let folder = tempfile::tempdir().map_err(failed)?;
        let path = folder.path().join("plan.vcr");
        std::fs::write(&path, pack).map_err(failed)?;
        let objectives = serde_json::to_string(objectives).map_err(|error| failed(error.into()))?;
        let mut command = module(address);
        command.arg("--pack").arg(&path).args(["--objectives", &objectives]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| not_started(address, &error))?;
        let waiting: Arc<Mutex<Waiting>> = Arc::default();
        if let Some(results) = child.stdout.take() {
            let waiting = Arc::clone(&waiting);
            let named = std::thread::Builder::new().name("cluster".to_owned());
            named.spawn(move || take(results, &waiting)).map_err(failed)?;
        }
        let tasks = Mutex::new(child.stdin.take());
        Ok(Self { address: address.to_owned(), child: Mutex::new(child), tasks, waiting, _folder: folder })
    }

    /// The result of a script; none if the time limit was reached first.
    pub(crate) fn execute<T: DeserializeOwned>(
        &self,
        script: &str,
        requests: Option<u64>,
        is_over: impl Fn() -> bool,
    ) -> Result<Option<T>, Refusal> {
        if is_over() {
            return Ok(None);
        }
        let (sender, receiver) = channel();
        let number = {
            let mut waiting = lock(&self.waiting);
            waiting.next_number += 1;
            let number = waiting.next_number;
            if waiting.has_ended {
                drop(sender);
            } else {
                waiting.senders.insert(number, sender);
            }
            number
        };
        let mut line = serde_json::to_vec(&Task { number, requests, script }).unwrap_or_default();
        line.push(b'\n');
        // A failed write means that the process has ended; then the receiver below is disconnected.
        if let Some(tasks) = &mut *lock(&self.tasks) {
            let _ = tasks.write_all(&line).and_then(|()| tasks.flush());
        }
        loop {
            match receiver.recv_timeout(LOOK_EVERY) {
                Ok(result) => {
                    let invalid =
                        |error| Refusal::input(format!("--on {}: invalid result of a worker: {error}", self.address));
                    return serde_json::from_str(result.get()).map(Some).map_err(invalid);
                }
                Err(_) if is_over() => {
                    lock(&self.waiting).senders.remove(&number);
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            }
        }
    }

    fn ended(&self) -> Refusal {
        match lock(&self.child).wait() {
            Ok(status) => ended(&self.address, "plan", status),
            Err(error) => Refusal::input(format!("--on {}: {error}", self.address)),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Closing its input ends the process and its running simulations.
        drop(lock(&self.tasks).take());
        let _ = lock(&self.child).wait();
    }
}

/// Forwards results to their receivers until the process ends.
fn take(results: ChildStdout, waiting: &Mutex<Waiting>) {
    for line in BufReader::new(results).lines().map_while(Result::ok) {
        let Ok(Line { number, result }) = serde_json::from_str(&line) else { break };
        if let Some(sender) = lock(waiting).senders.remove(&number) {
            let _ = sender.send(result);
        }
    }
    let mut waiting = lock(waiting);
    waiting.has_ended = true;
    waiting.senders.clear();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
