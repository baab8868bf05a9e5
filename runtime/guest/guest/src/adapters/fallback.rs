//! Fallbacks of failed guests.
//!
//! Each guest is paired with a replacement. The first failure of the guest is final: the failed call and all later
//! calls go to the fallback.

use std::num::NonZeroU32;
use std::sync::Arc;

use vcr_core::fault::{FailureInjector, FaultAction, FaultBatch, FaultError};
use vcr_core::latency::{KvGroupShape, LatencyError, LatencyModel, RangeUse, StepBatch};
use vcr_core::route::{Choice, EndedRequest, RouteError, RouteRequest, Router, WorkerLoad};
use vcr_core::scale::{Autoscaler, PoolView, ScaleError};
use vcr_core::seed;
use vcr_core::tokens::{BatchTokenSource, TokenAnswer, TokenError, TokenRequest, TokenWant};

/// Is called with the error when a guest fails and its fallback takes over.
pub type FailureSink = Arc<dyn Fn(&str) + Send + Sync>;

/// A guest until its first failure, then its fallback.
pub struct WithFallback<T: ?Sized> {
    guest: Option<Box<T>>,
    fallback: Box<T>,
    failed: FailureSink,
}

impl<T: ?Sized> WithFallback<T> {
    /// Pairs a guest with its fallback. If the guest could not be created, the fallback is used from the beginning.
    pub fn new<E: std::fmt::Display>(guest: Result<Box<T>, E>, fallback: Box<T>, failed: FailureSink) -> Self {
        let guest = guest.inspect_err(|error| failed(&error.to_string())).ok();
        Self { guest, fallback, failed }
    }

    /// Calls the guest, or its fallback if the guest has failed.
    fn call<R, E: std::fmt::Display>(&mut self, mut call: impl FnMut(&mut T) -> Result<R, E>) -> Result<R, E> {
        if let Some(guest) = &mut self.guest {
            match call(guest) {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    (self.failed)(&error.to_string());
                    self.guest = None;
                }
            }
        }
        call(&mut self.fallback)
    }
}

/// A guest that fails in the middle of a batch has priced none of its steps, so the fallback prices the whole batch.
impl LatencyModel for WithFallback<dyn LatencyModel> {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        let priced_before = durations_ns.len();
        self.call(|model| {
            durations_ns.truncate(priced_before);
            model.price(batch, durations_ns)
        })
    }

    fn prefers_batches(&self) -> bool {
        self.guest.as_ref().unwrap_or(&self.fallback).prefers_batches()
    }

    fn kv_group_shapes(&mut self) -> Option<&mut Vec<KvGroupShape>> {
        self.guest.as_mut().unwrap_or(&mut self.fallback).kv_group_shapes()
    }

    fn range_use(&self) -> Option<RangeUse> {
        self.guest.as_ref().unwrap_or(&self.fallback).range_use()
    }
}

/// The fallback sees every request that starts or ends while the guest is in charge, because it may inherit them.
impl BatchTokenSource for WithFallback<dyn BatchTokenSource> {
    fn step(
        &mut self,
        started: &[TokenRequest<'_>],
        ended: &[u32],
        wants: &[TokenWant],
        answer: &mut TokenAnswer,
    ) -> Result<(), TokenError> {
        let Some(guest) = &mut self.guest else { return self.fallback.step(started, ended, wants, answer) };
        let before = (answer.tokens.len(), answer.refusals.len(), answer.accepted_drafts.len());
        match guest.step(started, ended, wants, answer) {
            Ok(()) => {
                // The guest decides about these requests.
                let (refusals, accepted) = (answer.refusals.len(), answer.accepted_drafts.len());
                self.fallback.step(started, ended, &[], answer)?;
                answer.refusals.truncate(refusals);
                answer.accepted_drafts.truncate(accepted);
                Ok(())
            }
            Err(error) => {
                answer.tokens.truncate(before.0);
                answer.refusals.truncate(before.1);
                answer.accepted_drafts.truncate(before.2);
                (self.failed)(&error.to_string());
                self.guest = None;
                self.fallback.step(started, ended, wants, answer)
            }
        }
    }
}

/// Both routers see all ended requests, so the fallback also sees requests that the guest has routed.
impl Router for WithFallback<dyn Router> {
    fn route(&mut self, query: &RouteRequest<'_>, workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
        self.call(|router| router.route(query, workers))
    }

    fn needs_overlap(&self) -> bool {
        self.fallback.needs_overlap() || self.guest.as_ref().is_some_and(|guest| guest.needs_overlap())
    }

    fn needs_tiers(&self) -> bool {
        self.fallback.needs_tiers() || self.guest.as_ref().is_some_and(|guest| guest.needs_tiers())
    }

    fn needs_ended(&self) -> bool {
        self.fallback.needs_ended() || self.guest.as_ref().is_some_and(|guest| guest.needs_ended())
    }

    fn ended(&mut self, request: &EndedRequest) {
        for router in self.guest.iter_mut().chain([&mut self.fallback]).filter(|router| router.needs_ended()) {
            router.ended(request);
        }
    }
}

/// A fallback that keeps state starts with fresh state when the guest fails.
impl Autoscaler for WithFallback<dyn Autoscaler> {
    fn desired(&mut self, view: &PoolView) -> Result<u32, ScaleError> {
        self.call(|autoscaler| autoscaler.desired(view))
    }
}

impl FailureInjector for WithFallback<dyn FailureInjector> {
    fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), FaultError> {
        let decided_before = actions.len();
        self.call(|injector| {
            actions.truncate(decided_before);
            injector.decide(batch, actions)
        })
    }
}

/// Draws tokens from the seeds of the requests; the fallback of token sources. Outputs run to their token limits.
#[derive(Clone, Debug)]
pub struct SeededTokens {
    vocab_size: NonZeroU32,
    /// Seeds of the requests by slot. Entries of ended requests are stale.
    seeds: Vec<u64>,
}

impl SeededTokens {
    /// A source of tokens below `vocab_size`.
    #[must_use]
    pub fn new(vocab_size: NonZeroU32) -> Self {
        Self { vocab_size, seeds: Vec::new() }
    }
}

impl BatchTokenSource for SeededTokens {
    fn step(
        &mut self,
        started: &[TokenRequest<'_>],
        _ended: &[u32],
        wants: &[TokenWant],
        answer: &mut TokenAnswer,
    ) -> Result<(), TokenError> {
        for request in started {
            let slot = request.slot as usize;
            if self.seeds.len() <= slot {
                self.seeds.resize(slot + 1, 0);
            }
            self.seeds[slot] = request.seed;
        }
        for want in wants {
            let seed = self.seeds[want.slot as usize];
            let indices = (want.first_index..).take(want.count as usize);
            let drawn = indices.map(|index| seed::mix(seed ^ u64::from(index)) % u64::from(self.vocab_size.get()));
            answer.tokens.extend(drawn.map(|token| token as u32));
        }
        Ok(())
    }
}

/// The fallback of failure injectors: injects nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

impl FailureInjector for NoFaults {
    fn decide(&mut self, _batch: &FaultBatch<'_>, _actions: &mut Vec<FaultAction>) -> Result<(), FaultError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use vcr_core::latency::{StepShape, price_until_horizon};
    use vcr_core::tokens::{AcceptedDrafts, TokenRefusal};

    use super::*;

    const GUEST_STEP_NS: u64 = 5;

    /// Prices each step at a constant and fails after some steps. With the guest's constant it prefers batches.
    struct Steps {
        step_ns: u64,
        left: u64,
    }

    impl LatencyModel for Steps {
        fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
            let Self { step_ns, left } = self;
            price_until_horizon(batch, durations_ns, |_| {
                let error = || LatencyError { model: "steps".to_owned(), reason: "it is tired".to_owned() };
                *left = left.checked_sub(1).ok_or_else(error)?;
                Ok(*step_ns)
            })
        }

        fn prefers_batches(&self) -> bool {
            self.step_ns == GUEST_STEP_NS
        }
    }

    fn failures() -> (FailureSink, Arc<Mutex<Vec<String>>>) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&heard);
        (Arc::new(move |reason: &str| kept.lock().expect("no holder panicked").push(reason.to_owned())), heard)
    }

    #[test]
    fn a_batch_in_which_the_guest_fails_is_priced_by_the_fallback_alone() {
        let (sink, heard) = failures();
        let guest: Result<Box<dyn LatencyModel>, LatencyError> =
            Ok(Box::new(Steps { step_ns: GUEST_STEP_NS, left: 3 }));
        let mut model =
            WithFallback::<dyn LatencyModel>::new(guest, Box::new(Steps { step_ns: 7, left: u64::MAX }), sink);
        let shapes = [StepShape::default(); 2];
        let batch = StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &shapes };
        let mut durations_ns = vec![1];
        assert!(model.prefers_batches());
        model.price(&batch, &mut durations_ns).expect("the guest prices");
        model.price(&batch, &mut durations_ns).expect("the fallback prices");
        model.price(&batch, &mut durations_ns).expect("the fallback goes on");
        assert_eq!(durations_ns, [1, 5, 5, 7, 7, 7, 7]);
        assert!(!model.prefers_batches(), "as its fallback does");
        assert_eq!(*heard.lock().expect("no holder panicked"), ["latency model `steps` failed: it is tired"]);
    }

    /// `true` needs all inputs. The fallback, `false`, needs none.
    struct Curious(bool);

    impl Router for Curious {
        fn route(&mut self, _query: &RouteRequest<'_>, _workers: &[WorkerLoad]) -> Result<Choice, RouteError> {
            Ok(Choice::Refuse)
        }

        fn needs_overlap(&self) -> bool {
            self.0
        }

        fn needs_tiers(&self) -> bool {
            self.0
        }

        fn needs_ended(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn a_router_gets_what_it_needs_with_a_fallback_too() {
        let guest: Result<Box<dyn Router>, RouteError> = Ok(Box::new(Curious(true)));
        let pair = WithFallback::<dyn Router>::new(guest, Box::new(Curious(false)), failures().0);
        assert!(pair.needs_overlap() && pair.needs_tiers() && pair.needs_ended());
    }

    #[test]
    fn a_guest_that_cannot_be_made_is_a_failure_too() {
        let (sink, heard) = failures();
        let guest: Result<Box<dyn FailureInjector>, &str> = Err("no memory");
        let mut injector = WithFallback::<dyn FailureInjector>::new(guest, Box::new(NoFaults), sink);
        let batch = FaultBatch { now_ns: 0, step: 0, events: &[] };
        let mut actions = Vec::new();
        injector.decide(&batch, &mut actions).expect("nothing goes wrong");
        assert!(actions.is_empty());
        assert_eq!(*heard.lock().expect("no holder panicked"), ["no memory"]);
    }

    /// Returns the slot and index of each token, and fails at one index.
    struct Slots {
        known: Vec<u32>,
        fails_at: u32,
        base: u32,
    }

    impl BatchTokenSource for Slots {
        fn step(
            &mut self,
            started: &[TokenRequest<'_>],
            ended: &[u32],
            wants: &[TokenWant],
            answer: &mut TokenAnswer,
        ) -> Result<(), TokenError> {
            self.known.retain(|slot| !ended.contains(slot));
            self.known.extend(started.iter().map(|request| request.slot));
            let refusal = |request: &TokenRequest<'_>| TokenRefusal {
                slot: request.slot,
                source: "slots".to_owned(),
                reason: format!("base {}", self.base),
            };
            let accepted = |slot| AcceptedDrafts { slot, count: self.base };
            let unfit = started.iter().filter(|request| !request.structured_output.is_empty());
            answer.refusals.extend(unfit.map(refusal));
            answer.accepted_drafts.extend(started.iter().map(|request| request.slot).map(accepted));
            for want in wants {
                assert!(self.known.contains(&want.slot), "it never heard of slot {}", want.slot);
                answer.tokens.push(self.base + want.first_index);
                if want.first_index == self.fails_at {
                    return Err(TokenError { source: "slots".to_owned(), reason: "as asked".to_owned() });
                }
            }
            Ok(())
        }
    }

    #[test]
    fn seeded_tokens_are_those_of_the_request_wherever_it_runs() {
        let drawn = |slot, calls: &[(u32, u32)]| {
            let mut source = SeededTokens::new(NonZeroU32::new(50).expect("it is not 0"));
            let request = TokenRequest {
                slot,
                seed: 9,
                prompt: &[1],
                max_tokens: 9,
                min_tokens: 0,
                eos_token: None,
                stop_tokens: &[],
                structured_output: "",
                thinking_token_budget: None,
            };
            let mut answer = TokenAnswer::default();
            source.step(&[request], &[], &[], &mut answer).expect("it starts");
            for (first_index, count) in calls {
                let want = TokenWant { slot, first_index: *first_index, count: *count };
                source.step(&[], &[], &[want], &mut answer).expect("it answers");
            }
            answer.tokens
        };
        assert_eq!(drawn(0, &[(0, 8)]), drawn(5, &[(0, 3), (3, 5)]));
        assert!(drawn(0, &[(0, 100)]).iter().all(|token| *token < 50));
    }

    #[test]
    fn a_fallback_knows_the_requests_that_it_inherits() {
        let (sink, heard) = failures();
        let slots = |fails_at, base| Box::new(Slots { known: Vec::new(), fails_at, base });
        let guest: Result<Box<dyn BatchTokenSource>, TokenError> = Ok(slots(2, 100));
        let mut source = WithFallback::<dyn BatchTokenSource>::new(guest, slots(u32::MAX, 200), sink);
        let request = TokenRequest {
            slot: 4,
            seed: 1,
            prompt: &[],
            max_tokens: 9,
            min_tokens: 0,
            eos_token: None,
            stop_tokens: &[],
            structured_output: "",
            thinking_token_budget: None,
        };
        let want = |first_index| [TokenWant { slot: 4, first_index, count: 1 }];
        let mut answer = TokenAnswer::default();
        source.step(&[request], &[], &want(0), &mut answer).expect("the guest answers");
        for index in 1..4 {
            source.step(&[], &[], &want(index), &mut answer).expect("one of them answers");
        }
        assert_eq!((answer.tokens, answer.refusals), (vec![100, 101, 202, 203], vec![]));
        assert_eq!(heard.lock().expect("no holder panicked").len(), 1);
    }

    /// Remarks come from the guest until it fails, then from the fallback. Remarks of a failing call are discarded.
    #[test]
    fn remarks_are_those_of_whichever_is_in_charge() {
        let slots = |fails_at, base| Box::new(Slots { known: Vec::new(), fails_at, base });
        let guest: Result<Box<dyn BatchTokenSource>, TokenError> = Ok(slots(2, 100));
        let mut source = WithFallback::<dyn BatchTokenSource>::new(guest, slots(u32::MAX, 200), failures().0);
        let unfit = TokenRequest {
            slot: 4,
            seed: 1,
            prompt: &[],
            max_tokens: 9,
            min_tokens: 0,
            eos_token: None,
            stop_tokens: &[],
            structured_output: "{}",
            thinking_token_budget: None,
        };
        let mut remarks = |started: &[TokenRequest<'_>], ended: &[u32], first_index| {
            let mut answer = TokenAnswer::default();
            let wants = [TokenWant { slot: 4, first_index, count: 1 }];
            source.step(started, ended, &wants, &mut answer).expect("one of them answers");
            let accepted: Vec<_> = answer.accepted_drafts.iter().map(|drafts| (drafts.slot, drafts.count)).collect();
            (answer.refusals.into_iter().map(|refusal| (refusal.slot, refusal.reason)).collect::<Vec<_>>(), accepted)
        };
        assert_eq!(remarks(&[unfit], &[], 0), (vec![(4, "base 100".to_owned())], vec![(4, 100)]));
        assert_eq!(remarks(&[unfit], &[4], 2), (vec![(4, "base 200".to_owned())], vec![(4, 200)]));
    }
}
