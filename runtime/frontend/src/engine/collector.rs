//! The outputs of one request on their way to its client.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use vcr_wire::EngineCoreOutput;

use super::EngineError;

/// Outputs that wait apart from each other; further ones of a client that does
/// not read are joined, so that they take four bytes a token.
const SEPARATE_OUTPUTS: usize = 64;

/// Holds outputs until the client takes them.
#[derive(Debug, Default)]
pub(super) struct Collector {
    waiting: Mutex<Waiting>,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct Waiting {
    outputs: VecDeque<EngineCoreOutput>,
    error: Option<EngineError>,
}

impl Collector {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing is left half done under this lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, output: EngineCoreOutput) {
        let mut waiting = self.waiting();
        let is_long = waiting.outputs.len() >= SEPARATE_OUTPUTS;
        match waiting.outputs.back_mut().filter(|last| is_long && is_plain(last) && output.new_logprobs.is_none()) {
            Some(last) => {
                let mut tokens = std::mem::take(&mut last.new_token_ids);
                tokens.extend_from_slice(&output.new_token_ids);
                *last = EngineCoreOutput { new_token_ids: tokens, ..output };
            }
            None => waiting.outputs.push_back(output),
        }
        drop(waiting);
        self.waker.wake();
    }

    pub(super) fn fail(&self, error: EngineError) {
        self.waiting().error = Some(error);
        self.waker.wake();
    }

    /// The next output; an error comes behind all of them.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Result<EngineCoreOutput, EngineError>> {
        self.waker.register(context.waker());
        let mut waiting = self.waiting();
        match (waiting.outputs.pop_front(), &waiting.error) {
            (Some(output), _) => Poll::Ready(Ok(output)),
            (None, Some(error)) => Poll::Ready(Err(error.clone())),
            (None, None) => Poll::Pending,
        }
    }
}

/// Whether it says nothing but tokens.
fn is_plain(output: &EngineCoreOutput) -> bool {
    output.new_logprobs.is_none()
        && output.new_prompt_logprobs_tensors.is_none()
        && output.prefill_stats.is_none()
        && output.pooling_output.is_none()
        && output.kv_transfer_params.is_none()
        && output.finish_reason.is_none()
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use vcr_wire::FinishReason;

    use super::*;

    fn tokens(range: std::ops::Range<u32>) -> EngineCoreOutput {
        EngineCoreOutput { new_token_ids: range.collect(), ..EngineCoreOutput::default() }
    }

    /// A client that never reads must cost little memory, and lose nothing.
    #[test]
    fn outputs_of_a_slow_client_are_joined() {
        let collector = Collector::default();
        for token in 0..1000 {
            collector.push(tokens(token..token + 1));
        }
        collector.push(EngineCoreOutput { finish_reason: Some(FinishReason::Length), ..tokens(1000..1001) });
        collector.fail(EngineError::Dead);
        let mut context = Context::from_waker(Waker::noop());
        let mut all = Vec::new();
        let mut count = 0;
        let mut finish = None;
        while let Poll::Ready(Ok(output)) = collector.poll(&mut context) {
            all.extend(output.new_token_ids);
            finish = output.finish_reason;
            count += 1;
        }
        assert_eq!(all, (0..1001).collect::<Vec<_>>());
        assert_eq!((count, finish), (SEPARATE_OUTPUTS, Some(FinishReason::Length)));
        assert_eq!(collector.poll(&mut context), Poll::Ready(Err(EngineError::Dead)));
    }
}
