//! Child processes that render chat templates.

use std::process::ExitCode;

/// The argument that starts such a process. Not for users.
const ARGUMENT: &str = "--render-chat-templates-of-stdin";

/// Renders templates if this process was started for that; otherwise lets child processes of this program do it.
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
