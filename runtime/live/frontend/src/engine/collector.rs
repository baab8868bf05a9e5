//! Holds the outputs of a request until its client reads them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;
use vcr_wire::{EngineCoreOutput, StepOutput};

use super::EngineError;

/// Maximum number of outputs that are kept separately. If a client does not read, further outputs are merged, so that
/// each token takes four bytes.
const SEPARATE_OUTPUTS: usize = 64;

/// A queue of outputs that takes little memory.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    parts: VecDeque<Part>,
    /// The tokens of all `Part::Tokens`, and how many of them were taken.
    tokens: Vec<u32>,
    taken: usize,
}

#[derive(Debug)]
enum Part {
    Tokens(u32),
    Whole(Box<EngineCoreOutput>),
}

impl Outputs {
    fn push(&mut self, output: StepOutput<'_>) {
        match output {
            StepOutput::Whole(output) => self.parts.push_back(Part::Whole(output)),
            StepOutput::Tokens(tokens) => {
                let count = tokens.len() as u32;
                self.tokens.extend_from_slice(tokens);
                let is_long = self.parts.len() >= SEPARATE_OUTPUTS;
                match self.parts.back_mut() {
                    Some(Part::Tokens(last)) if is_long => *last += count,
                    _ => self.parts.push_back(Part::Tokens(count)),
                }
            }
        }
    }

    pub(super) fn pop(&mut self) -> Option<StepOutput<'_>> {
        match self.parts.pop_front()? {
            Part::Whole(output) => Some(StepOutput::Whole(output)),
            Part::Tokens(count) => {
                let start = self.taken;
                self.taken += count as usize;
                Some(StepOutput::Tokens(&self.tokens[start..self.taken]))
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Removes everything, but keeps the allocations.
    fn clear(&mut self) {
        self.parts.clear();
        self.tokens.clear();
        self.taken = 0;
    }
}

/// Holds outputs until the client takes them.
#[derive(Debug, Default)]
pub(super) struct Collector {
    waiting: Mutex<Waiting>,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct Waiting {
    outputs: Outputs,
    error: Option<EngineError>,
}

impl Collector {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // A panic under this lock leaves the outputs consistent.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, output: StepOutput<'_>) {
        if let Some(waker) = self.put(output) {
            waker.wake();
        }
    }

    /// Like [`Collector::push`], but returns the waker instead of waking the client.
    pub(super) fn put(&self, output: StepOutput<'_>) -> Option<Waker> {
        self.waiting().outputs.push(output);
        self.waker.take()
    }

    pub(super) fn fail(&self, error: EngineError) {
        self.waiting().error = Some(error);
        self.waker.wake();
    }

    /// Takes all outputs by swapping them with `taken`. An error is returned after all outputs.
    pub(super) fn poll(&self, taken: &mut Outputs, context: &mut Context<'_>) -> Poll<Result<(), EngineError>> {
        taken.clear();
        self.waker.register(context.waker());
        let mut waiting = self.waiting();
        if !waiting.outputs.is_empty() {
            std::mem::swap(&mut waiting.outputs, taken);
            return Poll::Ready(Ok(()));
        }
        waiting.error.clone().map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that never reads must take little memory and lose no output.
    #[test]
    fn outputs_of_a_slow_client_are_joined() {
        let collector = Collector::default();
        for token in 0..1000 {
            collector.push(StepOutput::Tokens(&[token]));
        }
        let last = EngineCoreOutput { new_token_ids: vec![1000], ..EngineCoreOutput::default() };
        collector.push(StepOutput::Whole(Box::new(last.clone())));
        collector.fail(EngineError::Dead);
        let mut context = Context::from_waker(Waker::noop());
        let mut outputs = Outputs::default();
        assert_eq!(collector.poll(&mut outputs, &mut context), Poll::Ready(Ok(())));
        let (mut all, mut count, mut end) = (Vec::new(), 0, None);
        while let Some(output) = outputs.pop() {
            count += 1;
            match output {
                StepOutput::Tokens(tokens) => all.extend_from_slice(tokens),
                StepOutput::Whole(output) => end = Some(*output),
            }
        }
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        assert_eq!((count, end), (SEPARATE_OUTPUTS + 1, Some(last)));
        assert_eq!(collector.poll(&mut outputs, &mut context), Poll::Ready(Err(EngineError::Dead)));
    }

    /// Allocations are reused, and each output is returned once.
    #[test]
    fn outputs_come_once_and_in_order() {
        let collector = Collector::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut outputs = Outputs::default();
        for round in 0..3 {
            assert!(collector.poll(&mut outputs, &mut context).is_pending());
            collector.push(StepOutput::Tokens(&[round, 7]));
            collector.push(StepOutput::Tokens(&[]));
            assert!(collector.poll(&mut outputs, &mut context).is_ready());
            assert_eq!(outputs.pop(), Some(StepOutput::Tokens(&[round, 7])));
            assert_eq!(outputs.pop(), Some(StepOutput::Tokens(&[])));
            assert_eq!(outputs.pop(), None);
        }
    }
}
