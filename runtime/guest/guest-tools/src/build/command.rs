use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::build::error::BuildError;

/// Number of output lines of a failed program that the error shows.
const MESSAGE_LINES: usize = 30;

/// A command that runs in `dir` with an empty stdin.
pub(crate) fn program(name: impl AsRef<OsStr>, dir: &Path) -> Command {
    let mut command = Command::new(name);
    command.current_dir(dir).stdin(Stdio::null());
    command
}

/// Runs a command and returns its stdout.
pub(crate) fn output(command: &mut Command) -> Result<String, BuildError> {
    let output = command.output().map_err(|source| cannot_start(command, source))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(command, output.status, &said));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Like [`output`], but stops after `limit`, for programs that may wait for a network forever.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> Result<String, BuildError> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|source| cannot_start(command, source))?;
    let stdout = read_all(child.stdout.take());
    let stderr = read_all(child.stderr.take());
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
            Ok(None) => return Err(abandon(command, &mut child, limit)),
            Err(source) => return Err(cannot_start(command, source)),
        }
    };
    let said = stderr.join().unwrap_or_default();
    if !status.success() {
        return Err(failed(command, status, &said));
    }
    Ok(stdout.join().unwrap_or_default())
}

/// Runs a command and returns its stdout. Passes stderr to `on_line` immediately; the error has the last lines.
pub(crate) fn stream(command: &mut Command, mut on_line: impl FnMut(&str)) -> Result<String, BuildError> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|source| cannot_start(command, source))?;
    let stdout = read_all(child.stdout.take());
    let mut said = String::new();
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line);
            on_line(&line);
            said.push_str(&line);
            said.push('\n');
        }
    }
    let status = child.wait().map_err(|source| cannot_start(command, source))?;
    if !status.success() {
        return Err(failed(command, status, &said));
    }
    Ok(stdout.join().unwrap_or_default())
}

/// Reads a pipe to its end on its own thread, so that the program never blocks on a full pipe.
fn read_all(pipe: Option<impl std::io::Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // Keep the output before a read error.
            let _ = pipe.by_ref().read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn abandon(command: &Command, child: &mut Child, limit: Duration) -> BuildError {
    // The error that the child has already exited does not matter.
    let _ = child.kill();
    let _ = child.wait();
    BuildError::ProgramFailed {
        command: shown(command),
        status: "stopped".into(),
        message: format!("no end after {} s", limit.as_secs()),
    }
}

fn cannot_start(command: &Command, source: std::io::Error) -> BuildError {
    let program = command.get_program().to_string_lossy().into_owned();
    if source.kind() == ErrorKind::NotFound {
        BuildError::ProgramMissing { program }
    } else {
        BuildError::Io { action: "run", path: program.into(), source }
    }
}

fn failed(command: &Command, status: ExitStatus, said: &str) -> BuildError {
    let lines: Vec<&str> = said.trim_end().lines().collect();
    let first = lines.len().saturating_sub(MESSAGE_LINES);
    BuildError::ProgramFailed {
        command: shown(command),
        status: status.to_string(),
        message: lines[first..].join("\n"),
    }
}

pub(crate) fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let error = output(&mut program("vcr-no-such-program", Path::new(".")));
        let text = error.expect_err("missing").to_string();
        assert_eq!(text, "`vcr-no-such-program` is not installed, or not on the PATH");
    }

    #[test]
    fn a_failing_program_is_quoted() {
        let mut command = program("sh", Path::new("."));
        command.args(["-c", "echo out; echo oh no >&2; exit 3"]);
        let text = output(&mut command).expect_err("it fails").to_string();
        assert!(text.ends_with("failed (exit status: 3): oh no"), "{text}");
    }

    #[test]
    fn a_program_that_hangs_is_stopped() {
        let mut command = program("sleep", Path::new("."));
        let error = output_within(command.arg("60"), Duration::from_millis(100));
        let text = error.expect_err("it hangs").to_string();
        assert!(text.starts_with("`sleep 60` failed (stopped)"), "{text}");
    }
}
