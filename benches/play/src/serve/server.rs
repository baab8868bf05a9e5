//! HTTP servers: `vcr serve`, or a frontend with the engine behind it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::process::{Cpu, Memory, Process, free_port};

/// Time limit for a server to start.
const START: Duration = Duration::from_secs(120);

/// Commands that start servers, as words.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    /// `vcr serve`. `{http_port}` stands for its port.
    pub(crate) server: Vec<String>,
    /// A frontend with `{http_port}` and `{handshake_port}`; empty if there is none.
    pub(crate) frontend: Vec<String>,
    /// The engine behind the frontend, with `{address}`.
    pub(crate) engine: Vec<String>,
}

pub(crate) struct Served {
    pub(crate) port: u16,
    pub(crate) processes: Vec<Process>,
}

impl Commands {
    /// Starts `vcr serve` with further options, and does not wait.
    pub(crate) fn server(&self, options: &[String]) -> Result<Served, Failure> {
        let port = free_port()?;
        let words = self.server.iter().map(|word| word.replace("{http_port}", &port.to_string()));
        let words: Vec<_> = words.chain(options.iter().cloned()).collect();
        Ok(Served { port, processes: vec![Process::start(&words)?] })
    }

    /// Starts the frontend, and the engine with further options. `None` without a frontend.
    pub(crate) fn chain(&self, options: &[String]) -> Result<Option<Served>, Failure> {
        if self.frontend.is_empty() {
            return Ok(None);
        }
        let ((), served) = self.chain_with(options, |address| Ok(((), address.to_owned())))?;
        Ok(Some(served))
    }

    /// Like [`Commands::chain`], but with a process in between: `between` starts it and returns the address for the
    /// engine.
    pub(crate) fn chain_with<T>(
        &self,
        options: &[String],
        between: impl FnOnce(&str) -> Result<(T, String), Failure>,
    ) -> Result<(T, Served), Failure> {
        let (port, handshake_port) = (free_port()?, free_port()?);
        let words = self.frontend.iter().map(|word| {
            let word = word.replace("{http_port}", &port.to_string());
            word.replace("{handshake_port}", &handshake_port.to_string())
        });
        let frontend = Process::start(&words.collect::<Vec<_>>())?;
        let (between, address) = between(&format!("tcp://127.0.0.1:{handshake_port}"))?;
        let words = self.engine.iter().map(|word| word.replace("{address}", &address));
        let words: Vec<_> = words.chain(options.iter().cloned()).collect();
        Ok((between, Served { port, processes: vec![frontend, Process::start(&words)?] }))
    }
}

impl Served {
    /// Waits until the server answers.
    pub(crate) fn ready(mut self) -> Result<Self, Failure> {
        let deadline = Instant::now() + START;
        while !self.is_healthy() {
            for process in &mut self.processes {
                process.check()?;
            }
            if Instant::now() > deadline {
                return Err(format!("the server was not ready after {} s", START.as_secs()).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(self)
    }

    fn is_healthy(&self) -> bool {
        let ask = || {
            let mut socket = TcpStream::connect(("127.0.0.1", self.port))?;
            socket.set_read_timeout(Some(Duration::from_secs(5)))?;
            socket.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            let mut answer = [0; 12];
            socket.read_exact(&mut answer)?;
            Ok::<_, std::io::Error>(answer.ends_with(b"200"))
        };
        ask().unwrap_or(false)
    }

    pub(crate) fn cpu(&self) -> Result<Cpu, Failure> {
        let mut sum = Cpu::default();
        for process in &self.processes {
            let cpu = process.cpu()?;
            sum = Cpu { total_ns: sum.total_ns + cpu.total_ns, io_ns: sum.io_ns + cpu.io_ns };
        }
        Ok(sum)
    }

    pub(crate) fn memory(&self) -> Result<Memory, Failure> {
        let mut sum = Memory::default();
        for process in &self.processes {
            let memory = process.memory()?;
            sum = Memory { resident: sum.resident + memory.resident, peak: sum.peak + memory.peak };
        }
        Ok(sum)
    }
}
