//! Commands for engines.

use crate::{Command, FaultRule, LatencyFactory, PluginContext, RuleError, Snapshot};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::control::Refusal;
use crate::control::body::{Change, EngineChoice, FaultChange, FaultRemoval, LatencyChange, Nothing, TimeScaleChange};
use crate::control::listen::Context;
use crate::control::view::{Engines, StateView};
use crate::control::{LatencyReader, UnusableModel};

/// States of the engines that got the command. The status is 202, because an engine runs the command later: between
/// two steps, or when it has a frontend.
type StateResponse = Result<(StatusCode, Json<Engines<StateView>>), Refusal>;

fn states_of(mut engines: Vec<Snapshot>, wanted: Option<u16>) -> StateResponse {
    engines.retain(|snapshot| wanted.is_none_or(|rank| snapshot.rank == rank));
    Ok((StatusCode::ACCEPTED, Json(Engines::of(&engines, StateView::of))))
}

impl Context {
    fn send_command(&self, engine: Option<u16>, what: &str, command: &Command) -> StateResponse {
        self.check(engine)?;
        self.engines.command(engine, command);
        match engine {
            Some(rank) => tracing::info!(rank, "command: {what}"),
            None => tracing::info!("command for all engines: {what}"),
        }
        states_of(self.engines.snapshots(), engine)
    }

    /// Refuses the rank of an engine that does not exist.
    fn check(&self, engine: Option<u16>) -> Result<(), Refusal> {
        let Some(rank) = engine else { return Ok(()) };
        let snapshots = self.engines.snapshots();
        if snapshots.iter().any(|snapshot| snapshot.rank == rank) {
            return Ok(());
        }
        let refusal = Refusal::new(StatusCode::NOT_FOUND, format!("unknown engine {rank}"));
        Err(match &snapshots[..] {
            [first, .., last] => refusal.hint(format!("engines here are {} to {}", first.rank, last.rank)),
            [only] => refusal.hint(format!("the engine here is {}", only.rank)),
            [] => refusal,
        })
    }
}

pub(crate) async fn latency(State(context): State<Context>, Change(change): Change<LatencyChange>) -> StateResponse {
    context.check(change.engine)?;
    let config = change.config.map(|config| serde_json::Value::from(config).to_string());
    let reader = context.latency.clone();
    // Building may compile a guest, which must not block other requests.
    let build = tokio::task::spawn_blocking(move || make(&reader, &change.model, config.as_deref()));
    let made = build.await.map_err(|error| {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("building the model failed, a bug of vcr: {error}"))
    })?;
    let (factory, name) = made.map_err(|UnusableModel { message, hint }| {
        let refusal = Refusal::bad(message);
        if let Some(hint) = hint { refusal.hint(hint) } else { refusal }
    })?;
    let what = format!("price steps by {name}");
    context.send_command(change.engine, &what, &Command::SetLatency { factory, name })
}

/// Makes the model once, so that the answer refuses an invalid one.
fn make(reader: &LatencyReader, model: &str, config: Option<&str>) -> Result<(LatencyFactory, String), UnusableModel> {
    let (factory, name) = reader(model, config)?;
    factory(&PluginContext::of_seed(0)).map_err(|error| UnusableModel { message: error.to_string(), hint: None })?;
    Ok((factory, name))
}

pub(crate) async fn time_scale(
    State(context): State<Context>,
    Change(change): Change<TimeScaleChange>,
) -> StateResponse {
    let factor = change.factor;
    // JSON has neither infinity nor NaN, so this check suffices.
    if factor <= 0.0 {
        return Err(Refusal::bad("invalid `factor`: expected more than 0").hint("2.0 makes everything twice as fast"));
    }
    context.send_command(change.engine, &format!("divide times by {factor}"), &Command::SetTimeScale(factor))
}

fn rule_of(fault: &str) -> Result<FaultRule, Refusal> {
    let wrong =
        |error: RuleError| Refusal::bad(error.to_string()).hint(format!("faults are written {}", FaultRule::syntax()));
    fault.parse().map_err(wrong)
}

pub(crate) async fn add_fault(State(context): State<Context>, Change(change): Change<FaultChange>) -> StateResponse {
    let rule = rule_of(&change.fault)?;
    context.send_command(change.engine, &format!("apply the fault {rule}"), &Command::AddFault(rule))
}

pub(crate) async fn clear_faults(State(context): State<Context>, Change(which): Change<FaultRemoval>) -> StateResponse {
    let FaultRemoval { fault: Some(fault), engine } = which else {
        return context.send_command(which.engine, "clear the faults", &Command::ClearFaults);
    };
    let rule = rule_of(&fault)?;
    context.check(engine)?;
    if !context.engines.has_fault(engine, &fault) {
        let refusal = Refusal::new(StatusCode::NOT_FOUND, format!("there is no fault `{fault}`"));
        return Err(refusal.hint("GET /faults lists them"));
    }
    context.send_command(engine, &format!("end the fault {rule}"), &Command::RemoveFault(rule.to_string()))
}

pub(crate) async fn pause(State(context): State<Context>, Change(which): Change<EngineChoice>) -> StateResponse {
    context.send_command(which.engine, "pause", &Command::SetPaused(true))
}

pub(crate) async fn resume(State(context): State<Context>, Change(which): Change<EngineChoice>) -> StateResponse {
    context.send_command(which.engine, "resume", &Command::SetPaused(false))
}

pub(crate) async fn reset_prefix_cache(
    State(context): State<Context>,
    Change(which): Change<EngineChoice>,
) -> StateResponse {
    context.send_command(which.engine, "drop the prefix cache", &Command::ResetPrefixCache)
}

/// Shuts down all engines, as a signal does: the remaining engines of a deployment would be of no use.
pub(crate) async fn shut_down(State(context): State<Context>, Change(Nothing {}): Change<Nothing>) -> StateResponse {
    let snapshots = context.engines.snapshots();
    tracing::info!("all engines shut down");
    context.engines.shut_down();
    states_of(snapshots, None)
}
