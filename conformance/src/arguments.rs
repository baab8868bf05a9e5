//! The command line.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::engine::EngineCommand;

pub const USAGE: &str = "\
Usage: vcr-conformance [OPTIONS] -- COMMAND...

COMMAND starts an engine. In its arguments, {address} stands for the handshake
socket's address, {host} and {port} for the parts of a TCP address, {rank} for
the engine's number and {engines} for how many there are.

Options:
  --only WORD          only checks with this word in their name; may be repeated
  --patience SECONDS   how long a check may take [default: 60]
  --dying COMMAND      the shell's command for an engine that dies of a fault
                       while it answers; without it, that is left out";

/// Options of a run: the checks and the engine.
pub struct Arguments {
    pub engine: EngineCommand,
    only: Vec<String>,
}

impl Arguments {
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut arguments = arguments;
        let (mut only, mut patience, mut dying) = (Vec::new(), 60, None);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| anyhow::anyhow!("`{argument}` needs a value"));
            match argument.as_str() {
                "--only" => only.push(value()?),
                "--patience" => patience = value()?.parse()?,
                "--dying" => dying = Some(value()?),
                "--" => break,
                _ => bail!("`{argument}` is not known"),
            }
        }
        let words: Vec<String> = arguments.collect();
        ensure!(!words.is_empty(), "no command that starts an engine was given");
        Ok(Self { engine: EngineCommand { words, dying, patience: Duration::from_secs(patience) }, only })
    }

    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| name.contains(word))
    }
}
