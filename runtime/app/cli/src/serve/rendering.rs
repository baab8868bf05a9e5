//! Child processes that render chat templates.

use std::process::ExitCode;

/// The argument that makes this program such a child process. Not for users.
const ARGUMENT: &str = "--render-chat-templates-of-stdin";

/// Renders templates if this process is such a child process. Otherwise, lets child processes render them.
pub(crate) fn rendering_process() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|argument| argument == ARGUMENT) {
        let served = vcr_text::serve_renderings(std::io::stdin().lock(), std::io::stdout().lock());
        return Some(if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if let Ok(program) = std::env::current_exe() {
        vcr_text::render_in_processes(program, ARGUMENT);
    }
    None
}
