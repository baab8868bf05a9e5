//! The host's implementation of WASI.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rand_pcg::Pcg64;
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::cli::{WasiCli, WasiCliView as _};
use wasmtime_wasi::clocks::{HostMonotonicClock, HostWallClock, WasiClocks, WasiClocksView as _};
use wasmtime_wasi::p2::bindings::sync::io::poll;
use wasmtime_wasi::p2::bindings::{cli, clocks, random, sync};
use wasmtime_wasi::p2::{DynOutputStream, DynPollable, OutputStream, Pollable, StreamResult};
use wasmtime_wasi::random::{WasiRandom, WasiRandomView as _};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView, async_trait};

use crate::observe::{Note, NoteSink};
use crate::sandbox::HostState;
use crate::wasi::WasiGrants;

/// Largest number of random bytes that one call returns.
const RANDOM_BYTES_MAX: u64 = 64 << 10;

/// The WASI state of an instance with grants.
pub(crate) struct WasiState {
    context: WasiCtx,
    table: ResourceTable,
    /// Time of the current call.
    now_ns: Arc<AtomicU64>,
    output: Arc<Mutex<Output>>,
}

impl WasiState {
    /// The state of a fresh instance; none without grants.
    pub(crate) fn new(
        grants: WasiGrants,
        seed: u64,
        output_bytes: u64,
        sink: Option<Arc<dyn NoteSink>>,
    ) -> Option<Box<Self>> {
        if grants.is_nothing() {
            return None;
        }
        let now_ns = Arc::new(AtomicU64::new(0));
        let output = Arc::new(Mutex::new(Output { line: Vec::new(), bytes_left: output_bytes, sink }));
        let draws = |stream| Pcg64::new(seed.into(), stream);
        let context = WasiCtx::builder()
            .secure_random(draws(1))
            .insecure_random(draws(2))
            .insecure_random_seed(seed.into())
            .max_random_size(RANDOM_BYTES_MAX)
            .wall_clock(CallClock(Arc::clone(&now_ns)))
            .monotonic_clock(CallClock(Arc::clone(&now_ns)))
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .build();
        Some(Box::new(Self { context, table: ResourceTable::new(), now_ns, output }))
    }

    pub(crate) fn set_now(&self, now_ns: u64) {
        self.now_ns.store(now_ns, Ordering::Relaxed);
    }
}

/// Logs the last line even if it has no newline.
impl Drop for WasiState {
    fn drop(&mut self) {
        lock(&self.output).end_line();
    }
}

impl HostState {
    fn wasi_mut(&mut self) -> &mut WasiState {
        self.wasi.as_mut().expect("WASI is linked only where it is granted, and then there is a state")
    }
}

impl WasiView for HostState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let WasiState { context, table, .. } = self.wasi_mut();
        WasiCtxView { ctx: context, table }
    }
}

pub(crate) fn link(linker: &mut Linker<HostState>, grants: WasiGrants) -> wasmtime::Result<()> {
    if grants.clocks || grants.stdio {
        poll::add_to_linker::<HostState, NoWaiting>(linker, |state| Polls(state.ctx().table))?;
    }
    if grants.clocks {
        clocks::wall_clock::add_to_linker::<HostState, WasiClocks>(linker, |state| state.clocks())?;
        clocks::monotonic_clock::add_to_linker::<HostState, WasiClocks>(linker, |state| state.clocks())?;
    }
    if grants.random {
        random::random::add_to_linker::<HostState, WasiRandom>(linker, |state| state.random())?;
        random::insecure::add_to_linker::<HostState, WasiRandom>(linker, |state| state.random())?;
        random::insecure_seed::add_to_linker::<HostState, WasiRandom>(linker, |state| state.random())?;
    }
    if grants.stdio {
        sync::io::error::add_to_linker::<HostState, Table>(linker, |state| state.ctx().table)?;
        sync::io::streams::add_to_linker::<HostState, Table>(linker, |state| state.ctx().table)?;
        cli::stdin::add_to_linker::<HostState, WasiCli>(linker, |state| state.cli())?;
        cli::stdout::add_to_linker::<HostState, Logged>(linker, |state| LogTo::of(state))?;
        cli::stderr::add_to_linker::<HostState, Logged>(linker, |state| LogTo::of(state))?;
        cli::terminal_input::add_to_linker::<HostState, WasiCli>(linker, |state| state.cli())?;
        cli::terminal_output::add_to_linker::<HostState, WasiCli>(linker, |state| state.cli())?;
        cli::terminal_stdin::add_to_linker::<HostState, WasiCli>(linker, |state| state.cli())?;
        cli::terminal_stdout::add_to_linker::<HostState, WasiCli>(linker, |state| state.cli())?;
        cli::terminal_stderr::add_to_linker::<HostState, WasiCli>(linker, |state| state.cli())?;
    }
    if grants.environment {
        cli::environment::add_to_linker::<HostState, WasiCli>(linker, |state| state.cli())?;
        cli::exit::add_to_linker::<HostState, WasiCli>(linker, |state| state.cli())?;
    }
    Ok(())
}

/// The resource table, as the host functions of streams need it.
struct Table;

impl HasData for Table {
    type Data<'a> = &'a mut ResourceTable;
}

/// Pollables that are always ready, because time does not pass within a call: waiting would never end.
struct NoWaiting;

struct Polls<'a>(&'a mut ResourceTable);

impl HasData for NoWaiting {
    type Data<'a> = Polls<'a>;
}

impl poll::Host for Polls<'_> {
    fn poll(&mut self, pollables: Vec<Resource<DynPollable>>) -> wasmtime::Result<Vec<u32>> {
        if pollables.is_empty() {
            return Err(wasmtime::Error::msg("it polled an empty list"));
        }
        Ok((0..pollables.len() as u32).collect())
    }
}

impl poll::HostPollable for Polls<'_> {
    fn ready(&mut self, _pollable: Resource<DynPollable>) -> wasmtime::Result<bool> {
        Ok(true)
    }

    fn block(&mut self, _pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        Ok(())
    }

    fn drop(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        poll::HostPollable::drop(&mut *self.0, pollable)
    }
}

/// A clock that shows the time of the current call.
struct CallClock(Arc<AtomicU64>);

impl HostWallClock for CallClock {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl HostMonotonicClock for CallClock {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The state shared by both standard outputs: complete lines go to the log.
struct Output {
    line: Vec<u8>,
    /// Bytes that the instance may still write.
    bytes_left: u64,
    sink: Option<Arc<dyn NoteSink>>,
}

impl Output {
    fn write(&mut self, bytes: &[u8]) {
        let Some(left) = self.bytes_left.checked_sub(bytes.len() as u64) else {
            self.send(Note::Dropped);
            return;
        };
        self.bytes_left = left;
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.line.pop();
                self.send(Note::Line { text: &String::from_utf8_lossy(&self.line) });
                self.line.clear();
            }
        }
    }

    fn end_line(&mut self) {
        if !self.line.is_empty() {
            self.send(Note::Line { text: &String::from_utf8_lossy(&self.line) });
            self.line.clear();
        }
    }

    fn send(&self, note: Note<'_>) {
        if let Some(sink) = &self.sink {
            sink.note(note);
        }
    }
}

fn lock(output: &Mutex<Output>) -> std::sync::MutexGuard<'_, Output> {
    // The state stays consistent even if another thread panics.
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The standard outputs, as the host functions need them.
struct Logged;

struct LogTo<'a> {
    table: &'a mut ResourceTable,
    output: &'a Arc<Mutex<Output>>,
}

impl HasData for Logged {
    type Data<'a> = LogTo<'a>;
}

impl<'a> LogTo<'a> {
    fn of(state: &'a mut HostState) -> Self {
        let WasiState { table, output, .. } = state.wasi_mut();
        Self { table, output }
    }

    fn open(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        let stream: DynOutputStream = Box::new(LogStream(Arc::clone(self.output)));
        Ok(self.table.push(stream)?)
    }
}

impl cli::stdout::Host for LogTo<'_> {
    fn get_stdout(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        self.open()
    }
}

impl cli::stderr::Host for LogTo<'_> {
    fn get_stderr(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        self.open()
    }
}

/// A stream to the log. It never blocks.
struct LogStream(Arc<Mutex<Output>>);

#[async_trait]
impl Pollable for LogStream {
    async fn ready(&mut self) {}
}

impl OutputStream for LogStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        lock(&self.0).write(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(4096)
    }
}
