//! A measured process, and its resource usage.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use crate::Failure;

/// A process; killed on drop.
pub(crate) struct Process {
    child: Child,
    /// Command line for error messages.
    command: String,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    /// CPU time of all threads.
    pub(crate) total_ns: u64,
    /// CPU time of threads with the same name as an earlier thread: libzmq's I/O threads have the name of the
    /// thread that made the first socket.
    pub(crate) io_ns: u64,
}

impl Cpu {
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self { total_ns: self.total_ns - earlier.total_ns, io_ns: self.io_ns - earlier.io_ns }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) resident: u64,
    /// Maximum resident memory so far.
    pub(crate) peak: u64,
}

impl Process {
    /// Starts a command from its words.
    pub(crate) fn start(words: &[String]) -> Result<Self, Failure> {
        let command = words.join(" ");
        let (program, arguments) = words.split_first().ok_or("the command to start is empty")?;
        let child = Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("cannot start {command}: {error}"))?;
        Ok(Self { child, command })
    }

    pub(crate) fn cpu(&self) -> Result<Cpu, Failure> {
        cpu_of(&format!("{}", self.child.id())).map_err(|error| self.gone(&error))
    }

    pub(crate) fn memory(&self) -> Result<Memory, Failure> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.map_err(|error| self.gone(&error.into()))?;
        let bytes = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
        };
        Ok(Memory { resident: bytes("VmRSS:"), peak: bytes("VmHWM:") })
    }

    /// Fails if the process has ended by itself.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        match self.child.try_wait()? {
            Some(status) => Err(format!("{} has ended with {status}", self.command).into()),
            None => Ok(()),
        }
    }

    fn gone(&self, error: &Failure) -> Failure {
        format!("{} cannot be looked at, it may have ended: {error}", self.command).into()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

pub(crate) fn free_port() -> Result<u16, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

pub(crate) fn own_cpu() -> Result<Cpu, Failure> {
    cpu_of("self")
}

pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn cpu_of(process: &str) -> Result<Cpu, Failure> {
    let mut cpu = Cpu::default();
    let threads = fs::read_dir(format!("/proc/{process}/task"))?;
    let ids = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut names = Vec::new();
    for id in ids.collect::<BTreeSet<_>>() {
        let read = |file| fs::read_to_string(format!("/proc/{process}/task/{id}/{file}"));
        // A thread that has just ended is counted below.
        let (Ok(statistics), Ok(name)) = (read("schedstat"), read("comm")) else { continue };
        let ns = statistics.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        cpu.total_ns += ns;
        if names.contains(&name) {
            cpu.io_ns += ns;
        }
        names.push(name);
    }
    // This value is coarse, but includes threads that have ended.
    let whole = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let after_name = whole.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
    cpu.total_ns = cpu.total_ns.max(ticks.sum::<u64>() * NS_PER_TICK);
    Ok(cpu)
}

/// Nanoseconds per tick in `/proc/PID/stat`: every Linux today uses 100 Hz.
const NS_PER_TICK: u64 = 10_000_000;
