//! Runs a command to its end and prints its resource usage as JSON.
//!
//!     measure COMMAND ARGUMENTS...
//!
//! The measured peak memory of a process is at least that of the process that starts it. So this small program
//! starts it, not a Python process of 23 MB.

use std::process::{Command, ExitCode, Stdio};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: measure COMMAND ARGUMENTS...");
        return ExitCode::from(2);
    };
    let child = Command::new(&program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let child = match child {
        Ok(child) => child,
        Err(error) => {
            eprintln!("cannot start {}: {error}", program.display());
            return ExitCode::from(2);
        }
    };
    let mut status = 0;
    // SAFETY: all fields of the structure are integers, so zero is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for writing, and no other thread waits for the child.
    let waited = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage) };
    if waited < 0 {
        eprintln!("cannot wait: {}", std::io::Error::last_os_error());
        return ExitCode::from(2);
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let code = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) };
    let cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    println!("{{\"code\": {code}, \"cpu_s\": {cpu_s:.6}, \"peak_kb\": {}}}", usage.ru_maxrss);
    ExitCode::SUCCESS
}
