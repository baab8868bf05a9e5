//! The methods of [`ServingEngine`](super::ServingEngine) that are forwarded, each listed once.

/// Passes the methods that have the same signature in [`Engine`](crate::Engine) to a macro: first the methods with
/// `&self`, then those with `&mut self`.
macro_rules! common_methods {
    ($forward:ident) => {
        $forward! { ref
            fn check(prompt_tokens: u32, max_tokens: u32) -> Result<(), RejectReason>;
            fn check_load(prompt_tokens: u32) -> Result<(), RejectReason>;
            fn may_schedule() -> bool;
            fn may_reserve() -> bool;
            fn has_schedulable_requests() -> bool;
            fn steps_in_flight() -> usize;
            fn plan() -> &StepPlan;
            fn oldest_plan() -> &StepPlan;
            fn outputs() -> &StepOutputs;
            fn predict_decode_steps(most: usize, steps: &mut DecodeSteps) -> ();
            fn stats() -> &EngineStats;
        }
        $forward! { mut
            fn submit(spec: RequestSpec) -> Result<RequestId, RejectReason>;
            fn abort(id: RequestId) -> ();
            fn remote_kv_arrived(id: RequestId) -> ();
            fn reserve_remote() -> Option<RemoteLoad>;
            fn release_held_kv(id: RequestId) -> ();
            fn schedule() -> &StepPlan;
        }
    };
}

pub(super) use common_methods;
