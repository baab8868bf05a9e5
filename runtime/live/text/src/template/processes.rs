//! Renders templates in separate processes.
//!
//! A template is a program that comes with a model. Instructions and text count against its fuel, but some single
//! operations of minijinja do not: a list that contains the same list twice costs nothing to build and can be
//! enormous when written out. A thread cannot be stopped, and a failed allocation ends the process. So a separate
//! process renders, with a memory limit. It exits when a rendering takes too long, and only that rendering fails.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Compiled, TemplateRequest};
use crate::{TemplateError, TemplateErrorKind};

/// Limit of processor time per rendering. A chat of ten thousand messages takes less than a second.
const TIME: Duration = Duration::from_secs(5);

/// Limit of real time per rendering, for busy machines.
const REAL_TIME: Duration = Duration::from_secs(30);

/// Interval at which the time limits are checked.
const LOOK: Duration = Duration::from_millis(100);

/// Limit of the memory that a process may add to its initial address space.
const MEMORY: u64 = 1 << 30;

/// Limit of a rendered text, because the server also holds it.
const TEXT_BYTES: usize = 64 << 20;

/// The number of processes. When all are busy, a rendering waits.
const PROCESSES: usize = 4;

/// Maximum wait of a rendering for a process. Earlier renderings may use their full time.
const WAIT: Duration = Duration::from_secs(45);

/// Exit code of a process whose rendering exceeded its time limit.
const TOO_LONG: i32 = 3;

/// Limit of a message between the processes, because the length in a corrupt message can be anything.
const MESSAGE_BYTES: u64 = 4 << 30;

/// The command that starts a process for [`serve`]. Without it, templates are rendered in the server's process.
static PROGRAM: OnceLock<(PathBuf, &'static str)> = OnceLock::new();

static POOL: Pool = Pool { state: Mutex::new(State { idle: Vec::new(), count: 0 }), freed: Condvar::new() };

/// Renders all templates except the built-in one in processes of `program`. It is started with `argument` and must
/// then call [`serve`].
pub fn render_in_processes(program: PathBuf, argument: &'static str) {
    _ = PROGRAM.set((program, argument));
}

pub(super) fn is_isolated() -> bool {
    PROGRAM.get().is_some()
}

#[derive(Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) template: Compiled,
    pub(super) request: TemplateRequest,
}

type Rendered = Result<String, TemplateError>;

/// Renders the jobs read from `input` until it is closed. Must be the only work of its process: the process gets a
/// memory limit and may exit at any time.
pub fn serve(input: impl Read, mut output: impl Write) -> io::Result<()> {
    limit_memory();
    let (rendering, watched) = mpsc::channel::<()>();
    std::thread::Builder::new().name("deadline".to_owned()).spawn(move || end_late_renderings(&watched))?;
    let mut input = BufReader::new(input);
    let mut last: Option<super::Inner> = None;
    while let Some(Job { template, request }) = received::<Job>(&mut input)? {
        // The watchdog gets one message at the start of a rendering and one at its end.
        _ = rendering.send(());
        if last.as_ref().is_none_or(|last| last.compiled != template) {
            last = None;
        }
        let inner = match last.take() {
            Some(inner) => Ok(inner),
            None => super::Inner::new(template),
        };
        let rendered: Rendered = match inner {
            Ok(inner) => last.insert(inner).rendered_here(&request),
            Err(error) => Err(error),
        };
        let rendered = rendered.and_then(within_length);
        _ = rendering.send(());
        sent(&mut output, &rendered)?;
    }
    Ok(())
}

fn within_length(text: String) -> Rendered {
    if text.len() <= TEXT_BYTES {
        return Ok(text);
    }
    let reason = format!("the template writes more than {} MiB", TEXT_BYTES >> 20);
    Err(failed(TemplateErrorKind::Limit, reason))
}

/// Exits the process when a rendering takes too long.
fn end_late_renderings(rendering: &mpsc::Receiver<()>) {
    while rendering.recv().is_ok() {
        let (start, began) = (processor_time(), Instant::now());
        while rendering.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            if processor_time().saturating_sub(start) > TIME || began.elapsed() > REAL_TIME {
                std::process::exit(TOO_LONG);
            }
        }
    }
}

fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Limits the address space, which includes the memory that the program has at the start.
fn limit_memory() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages: Option<u64> = pages.and_then(|text| text.split(' ').next()?.parse().ok());
    let own = pages.unwrap_or(0).saturating_mul(rustix::param::page_size() as u64);
    let mut limit = getrlimit(Resource::As);
    let wanted = own.saturating_add(MEMORY);
    limit.current = Some(limit.current.map_or(wanted, |current| current.min(wanted)));
    // On systems without this limit, the limits of time and fuel remain.
    _ = setrlimit(Resource::As, limit);
    // Write no core dump when the limit ends the process.
    let mut core = getrlimit(Resource::Core);
    core.current = Some(0);
    _ = setrlimit(Resource::Core, core);
}

fn sent(pipe: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    pipe.write_all(&(text.len() as u64).to_le_bytes())?;
    pipe.write_all(&text)?;
    pipe.flush()
}

/// Reads the next message. Returns none at the end of the stream.
fn received<T: DeserializeOwned>(pipe: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 8];
    match pipe.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u64::from_le_bytes(length);
    if length > MESSAGE_BYTES {
        return Err(io::Error::other("invalid length of a message"));
    }
    let mut text = Vec::new();
    if pipe.take(length).read_to_end(&mut text)? as u64 != length {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&text)?))
}

struct Pool {
    state: Mutex<State>,
    freed: Condvar,
}

struct State {
    idle: Vec<Worker>,
    /// The number of idle and busy processes.
    count: usize,
}

struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Renders a job in another process.
pub(super) fn rendered(job: &Job) -> Rendered {
    // An idle process may have exited. Then the job goes to another process.
    for _ in 0..PROCESSES {
        let mut worker = POOL.taken()?;
        if sent(&mut worker.input, job).is_ok() {
            return worker.answered();
        }
        POOL.ended(worker);
    }
    Err(failed(TemplateErrorKind::Render, "the processes that render chat templates end at once".to_owned()))
}

impl Worker {
    fn start() -> io::Result<Self> {
        let Some((program, argument)) = PROGRAM.get() else {
            return Err(io::Error::other("no program renders chat templates"));
        };
        let mut command = Command::new(program);
        command.arg(argument).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Signals from the terminal must reach only the server.
        let mut child = command.process_group(0).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a process without pipes"));
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn answered(mut self) -> Rendered {
        if let Ok(Some(rendered)) = received::<Rendered>(&mut self.output) {
            POOL.idle(self);
            return rendered;
        }
        let code = POOL.ended(self);
        Err(failed(
            TemplateErrorKind::Limit,
            if code == Some(TOO_LONG) {
                format!("the template takes more than {} s of processor time: it may loop forever", TIME.as_secs())
            } else {
                format!("the template takes more than {} MiB of memory, or nests its values too deeply", MEMORY >> 20)
            },
        ))
    }
}

fn failed(kind: TemplateErrorKind, reason: String) -> TemplateError {
    TemplateError { kind, line: None, reason }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an idle process, or starts one.
    fn taken(&self) -> Result<Worker, TemplateError> {
        let is_full = |state: &mut State| state.idle.is_empty() && state.count >= PROCESSES;
        let waited = self.freed.wait_timeout_while(self.state(), WAIT, is_full);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = state.idle.pop() {
            return Ok(worker);
        }
        if waited.timed_out() {
            let reason = "other chats take all processes that render templates: try again later".to_owned();
            return Err(failed(TemplateErrorKind::Busy, reason));
        }
        state.count += 1;
        drop(state);
        Worker::start().map_err(|error| {
            self.left();
            let reason = format!("cannot start a process that renders the chat template: {error}");
            failed(TemplateErrorKind::Busy, reason)
        })
    }

    fn idle(&self, worker: Worker) {
        self.state().idle.push(worker);
        self.freed.notify_one();
    }

    /// Waits for a process to exit. Returns its exit code unless a signal ended it.
    fn ended(&self, mut worker: Worker) -> Option<i32> {
        drop((worker.input, worker.output));
        let code = worker.child.wait().ok().and_then(|status| status.code());
        self.left();
        code
    }

    fn left(&self) {
        self.state().count -= 1;
        self.freed.notify_one();
    }
}
