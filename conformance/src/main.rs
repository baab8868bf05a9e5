//! Drives an engine with vLLM's own engine client, and prints which checks held.
//!
//! The client is the one of a release, built by `conformance/run.sh`; the engine is any program
//! that can be configured with its frontend's handshake address. A release's client refuses
//! messages that it cannot decode, so every check here also checks the messages' bytes.

mod arguments;
mod checks;
mod engine;
mod expect;
mod line;
mod session;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, anyhow};
use tracing_subscriber::EnvFilter;

use crate::arguments::Arguments;
use crate::checks::{CHECKS, Check, Room};
use crate::engine::EngineCommand;
use crate::expect::Verdict;
use crate::session::{Session, Setup};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // The client's log of messages that it could not use.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("error: {error}\n\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    if run(&arguments).await { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether everything held.
async fn run(arguments: &Arguments) -> bool {
    let (mut held, mut left_out, mut failed) = (0, 0, 0);
    let mut shared = None;
    for check in CHECKS.iter().filter(|check| arguments.wants(check.name)) {
        let began = Instant::now();
        let verdict = verdict(check, &mut shared, &arguments.engine).await;
        let seconds = began.elapsed().as_secs_f64();
        match verdict {
            Ok(Verdict::Held) => {
                held += 1;
                println!("ok        {} ({seconds:.2} s)", check.name);
            }
            Ok(Verdict::LeftOut(reason)) => {
                left_out += 1;
                println!("left out  {}: {reason}", check.name);
            }
            Err(error) => {
                failed += 1;
                println!("FAILED    {}: {error:#}", check.name);
                if matches!(check.room, Room::Shared(_)) && shared.is_none() {
                    println!("\nThe engine does not start, so nothing more was tried.");
                    return false;
                }
                // It may be in any state, so the next check gets a new engine.
                if let Some(session) = shared.take() {
                    eprintln!("the engine said:\n{}", session.what_the_engines_said());
                }
            }
        }
    }
    println!("\nline {}: {held} held, {failed} failed, {left_out} left out", line::NAME);
    failed == 0 && held > 0
}

async fn verdict(check: &Check, shared: &mut Option<Session>, engine: &EngineCommand) -> Result<Verdict> {
    let work = async {
        let check = match check.room {
            Room::Alone(check) => return check(engine).await,
            Room::Shared(check) => check,
        };
        let session = match shared {
            Some(session) => session,
            None => shared.insert(Session::start(engine, Setup::default()).await?),
        };
        let verdict = check(session).await?;
        session.is_well()?;
        Ok(verdict)
    };
    let patience = engine.patience;
    tokio::time::timeout(patience, work).await.map_err(|_| anyhow!("nothing came of it in {patience:?}"))?
}
