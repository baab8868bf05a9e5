//! Shutdown of an engine, with a grace period for its requests.

use crate::error::LiveError;
use crate::lifecycle::End;
use crate::routing::routes::Routes;
use crate::serving::Serving;

/// Time for which an engine waits after the grace period until other engines have aborted its delegated requests and KV
/// writes have ended. Both normally take far less.
const LAST_GRACE_NS: u64 = 1_000_000_000;

/// Begins a shutdown. As in vLLM, requests are aborted at once unless there is a grace period.
pub(crate) fn begin(serving: &mut Serving, now_ns: u64) -> Result<(), LiveError> {
    let timeout_ns = serving.context.config.shutdown_timeout_ns;
    tracing::info!(rank = serving.context.rank, requests = serving.requests.len(), "shutting down");
    serving.lifecycle.drain(now_ns.saturating_add(timeout_ns));
    if timeout_ns == 0 {
        abort_requests(serving, now_ns)?;
    }
    serving.snapshot.expire();
    Ok(())
}

/// Aborts the remaining requests. A failed engine aborts none: its ENGINE_CORE_DEAD message fails them.
fn abort_requests(serving: &mut Serving, now_ns: u64) -> Result<(), LiveError> {
    if serving.shared().has_failed() {
        serving.lifecycle.end(End::ShutDown);
        return Ok(());
    }
    serving.abort_all(now_ns)
}

/// Continues a shutdown: aborts the remaining requests after the grace period, and ends the engine when none is left.
pub(crate) fn advance(serving: &mut Serving, now_ns: u64) -> Result<(), LiveError> {
    let Some(until_ns) = serving.lifecycle.drain_until_ns() else { return Ok(()) };
    if until_ns <= now_ns && serving.requests.len() > 0 {
        abort_requests(serving, now_ns)?;
    }
    // The engines that hold delegated requests stop too. Late answers are sent once their KV is written.
    let has_delegated = serving.routes.as_ref().is_some_and(Routes::has_delegated);
    let has_late = !serving.transfers.late_answers().is_empty();
    let waits = (has_delegated || has_late) && now_ns < until_ns.saturating_add(LAST_GRACE_NS);
    if serving.is_idle() && !waits {
        serving.abort_all_late(now_ns)?;
        serving.lifecycle.end(End::ShutDown);
    }
    Ok(())
}
