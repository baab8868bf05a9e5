//! The engine's process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How engines are started.
#[derive(Clone)]
pub struct EngineCommand {
    pub words: Vec<String>,
    /// The shell's command for an engine that dies while it answers.
    pub dying: Option<String>,
    /// Time limit of a check.
    pub patience: Duration,
}

impl EngineCommand {
    /// The command for engines that die, if there is one.
    pub fn dying(&self) -> Option<Self> {
        let words = vec!["sh".to_owned(), "-c".to_owned(), self.dying.clone()?];
        Some(Self { words, ..self.clone() })
    }

    /// Whether the command contains this placeholder.
    pub fn mentions(&self, placeholder: &str) -> bool {
        self.words.iter().any(|word| word.contains(placeholder))
    }

    /// Starts the engine `rank` of `engines`.
    pub fn start(&self, address: &str, rank: usize, engines: usize, folder: &Path) -> Result<EngineProcess> {
        let (host, port) = address.trim_start_matches("tcp://").rsplit_once(':').unwrap_or_default();
        let fill = |word: &String| {
            word.replace("{address}", address)
                .replace("{host}", host)
                .replace("{port}", port)
                .replace("{rank}", &rank.to_string())
                .replace("{engines}", &engines.to_string())
        };
        let words: Vec<String> = self.words.iter().map(fill).collect();
        let log = folder.join(format!("engine-{rank}.log"));
        let output = File::create(&log)?;
        let process = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start `{}`", words.join(" ")))?;
        Ok(EngineProcess { process, log })
    }
}

/// An engine; killed when it is dropped.
pub struct EngineProcess {
    process: Child,
    log: PathBuf,
}

impl EngineProcess {
    /// That the engine has not ended.
    pub fn is_alive(&mut self) -> Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!("the engine ended with {status}; it said:\n{}", self.said());
        }
        Ok(())
    }

    /// The end of its output.
    pub fn said(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
