//! Third-party agents that use a server.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::client::{Client, ended};
use crate::skip;

/// The output of Claude Code, a line of JSON per message. It works in a folder, may contact only the server at
/// `url`, and its tools may change nothing. `None` if it is not installed.
///
/// # Panics
/// The agent fails.
#[must_use]
pub fn claude_code(claude: &Client, url: &str, folder: &Path, prompt: &str) -> Option<Vec<Value>> {
    let packages = claude.node_package("@anthropic-ai/claude-code")?;
    let packages = packages.parent()?.read_dir().expect("a folder").flatten();
    let program = packages.map(|package| package.path().join("claude")).find(|program| program.is_file())?;
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", folder);
    command.envs([("ANTHROPIC_BASE_URL", url), ("ANTHROPIC_API_KEY", "none")]);
    command.envs([("ANTHROPIC_MODEL", "sim"), ("ANTHROPIC_SMALL_FAST_MODEL", "sim")]);
    let off = ["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_ERROR_REPORTING"];
    command.envs(off.map(|name| (name, "1"))).env("DISABLE_TELEMETRY", "1");
    command.args(["-p", prompt, "--output-format", "stream-json", "--verbose", "--max-turns", "6"]);
    command.args(["--permission-mode", "plan"]).current_dir(folder);
    Some(ended(command).lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect())
}

/// The output of Codex, which works in a folder and uses the server at `url`. `None` if it is not installed.
///
/// # Panics
/// The agent fails.
#[must_use]
pub fn codex(codex: &Client, url: &str, folder: &Path, prompt: &str) -> Option<String> {
    let program = codex.environment().join("node_modules/@openai/codex/bin/codex.js");
    if !program.exists() {
        skip("npm could not install Codex (tests/frontends/clients.sh codex)");
        return None;
    }
    let provider = format!("name = \"vcr\"\nbase_url = \"{url}/v1\"\nwire_api = \"responses\"\n");
    let once = "request_max_retries = 0\nstream_max_retries = 0\n";
    let config = format!("model = \"sim\"\nmodel_provider = \"vcr\"\n[model_providers.vcr]\n{provider}{once}");
    std::fs::write(folder.join("config.toml"), config).expect("a temporary folder is writable");
    let mut command = codex.program("node");
    command.arg(&program).args(["exec", "--json", "--skip-git-repo-check", prompt]);
    command.env("CODEX_HOME", folder).current_dir(folder);
    Some(ended(command))
}
