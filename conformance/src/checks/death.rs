//! The end of an engine.

use anyhow::{Result, anyhow, bail};
use futures::StreamExt;
use vllm_engine_core_client::Error;

use crate::engine::EngineCommand;
use crate::expect::Verdict;
use crate::session::{Session, Setup, fresh_prompt, request};

/// Its frontend must fail the requests that run, and not wait for them.
pub async fn a_dead_engine_says_so(command: &EngineCommand) -> Result<Verdict> {
    let Some(command) = command.dying() else {
        return Ok(Verdict::LeftOut("there is no command for an engine that dies".to_owned()));
    };
    let session = Session::start(&command, Setup::default()).await?;
    let mut health = session.client.subscribe_health();
    let mut stream = session.begin(request(fresh_prompt(20), 1_000)).await?;
    stream.next().await.ok_or_else(|| anyhow!("no output came"))??;
    health.wait_for(|healthy| !healthy).await?;
    match session.client.health_error().as_deref() {
        Some(Error::EngineCoreDead) => {}
        other => bail!("expected the marker of a dead engine, found {other:?}"),
    }
    while let Some(output) = stream.next().await {
        if output.is_err() {
            return Ok(Verdict::Held);
        }
    }
    bail!("the request of a dead engine ended well")
}
