//! Commands that serve, tested with a frontend of this repository and engines.

use std::fs::File;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use vcr_tests::free_port;
use vcr_wire::{DataAddress, FrontendConfig, FrontendListener, Transport};

use crate::pantry::{Pantry, Scratch, with_own_guests};
use crate::shell;

/// Long enough even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ports in examples, each of which is replaced by a free port.
const PORTS: [&str; 4] = [":9090", ":9091", ":5557", ":29560"];

/// Starts a command, waits until its engines are ready, and stops it by a signal.
pub(crate) fn served(pantry: &Pantry, line: &str) -> Result<(), String> {
    let line = &with_own_guests(line);
    let words: Vec<&str> = line.split_whitespace().collect();
    let engines = words.iter().position(|word| *word == "--data-parallel-size").and_then(|at| words.get(at + 1));
    let engines = engines.map_or(1, |number| number.parse().expect("examples have numbers"));
    let folder = pantry.folder_for(line);
    let config = FrontendConfig {
        handshake_address: "tcp://127.0.0.1:*".to_owned(),
        data: DataAddress::Ipc { folder: folder.path().to_owned() },
        clients: 1,
        engines,
        coordinator: false,
    };
    let listener = FrontendListener::bind(&Transport::new(), config).map_err(|error| error.to_string())?;
    let frontend = listener.handshake_address().to_owned();
    let mut line = line.split(" #").next().unwrap_or_default().replace("10.0.0.5", "127.0.0.1");
    for port in PORTS {
        line = line.replace(port, &format!(":{}", free_port()));
    }
    let mut processes = Vec::new();
    if line.starts_with("vcr record") {
        let engines = format!("tcp://127.0.0.1:{}", free_port());
        let line = option(&option(&line, "--frontend-handshake", &frontend), "--engine-handshake", &engines);
        processes.push(start(&line, &folder, "record"));
        processes.push(start(&format!("vcr play --handshake-address {engines}"), &folder, "play"));
    } else {
        processes.push(start(&option(&line, "--handshake-address", &frontend), &folder, "play"));
    }
    // If the command ends, the test need not wait for engines.
    let (sender, accepted) = mpsc::channel();
    thread::spawn(move || sender.send(listener.accept(PATIENCE).map_err(|error| error.to_string())));
    let link = loop {
        match accepted.recv_timeout(Duration::from_millis(20)) {
            Ok(link) => break link,
            Err(_) if processes.iter_mut().any(|process| process.status().is_some()) => {
                break Err("it has ended".to_owned());
            }
            Err(_) => {}
        }
    };
    let ended: Vec<Result<(), String>> = processes.into_iter().map(|process| process.stopped(&folder)).collect();
    if let Err(error) = link {
        return Err(format!("has no engine that is ready: {error}; {ended:?}"));
    }
    ended.into_iter().collect()
}

/// The line, in which an option's value is set or replaced.
fn option(line: &str, name: &str, value: &str) -> String {
    match line.split_once(&format!("{name} ")) {
        Some((before, rest)) => {
            let rest = rest.split_once(' ').map_or("", |(_, rest)| rest);
            format!("{before}{name} {value} {rest}")
        }
        None => format!("{line} {name} {value}"),
    }
}

struct Process {
    child: Child,
    name: &'static str,
}

fn start(line: &str, folder: &Scratch, name: &'static str) -> Process {
    let log = File::create(folder.path().join(format!("{name}.log"))).expect("the folder is writable");
    let mut command: Command = shell(&format!("exec {line}"), folder);
    command.stdin(Stdio::null()).stdout(log.try_clone().expect("a handle of a file")).stderr(log);
    Process { child: command.spawn().expect("there is a shell"), name }
}

impl Process {
    fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a process has a status")
    }

    /// Stops the command like a user.
    fn stopped(mut self, folder: &Scratch) -> Result<(), String> {
        let mut status = self.status();
        if status.is_none() {
            let sent = Command::new("kill").arg(self.child.id().to_string()).status().expect("there is `kill`");
            assert!(sent.success());
            let deadline = Instant::now() + PATIENCE;
            while status.is_none() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(10));
                status = self.status();
            }
        }
        let log = std::fs::read_to_string(folder.path().join(format!("{}.log", self.name))).unwrap_or_default();
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{} ended with {status}:\n{log}", self.name)),
            None => Err(format!("{} does not end:\n{log}", self.name)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
