//! The adapters of worlds, from the types that a version generates of them to the
//! instances that the rest of the crate knows. Versions in which a world is the
//! same use the same macro; one that changes a world writes its adapter out.

/// The module `bindings`, generated from the settings of `bindgen!`.
macro_rules! generated {
    ($($settings:tt)*) => {
        #[allow(
            missing_docs,
            unreachable_pub,
            unsafe_code,
            clippy::all,
            reason = "generated code follows the rules of its generator"
        )]
        pub(super) mod bindings {
            wasmtime::component::bindgen!({ $($settings)* });
        }
    };
}
pub(super) use generated;

/// The adapter of `latency`, for types generated in a module `bindings`.
macro_rules! latency_adapter {
    () => {
        use vcr_core::latency::StepShape;

        use $crate::error::CallFault;
        use $crate::latest::{LatencyInstance, Maker, Setup};
        use $crate::limits::Budget;
        use $crate::sandbox::HostState;
        use $crate::versions::instance::{Instance, Module};

        $crate::versions::instance::impl_bindings!(Bindings, bindings::LatencyModelPre<HostState>, vcr_guest_latency);

        impl Maker<dyn LatencyInstance> for Module<Bindings> {
            fn configure(&self, setup: Setup<'_>) -> Result<Box<dyn LatencyInstance>, CallFault> {
                Ok(Box::new(self.configured(setup)?))
            }
        }

        impl LatencyInstance for Instance<Bindings> {
            fn price(
                &mut self,
                start_ns: u64,
                horizon_ns: u64,
                shapes: &[u64],
                budget: Budget,
            ) -> Result<Vec<f64>, CallFault> {
                self.at(start_ns).call_fallible(budget, |guest, store| {
                    guest.vcr_guest_latency().call_price(store, start_ns, horizon_ns, shapes)
                })
            }

            fn price_step(&mut self, start_ns: u64, shape: &StepShape, budget: Budget) -> Result<f64, CallFault> {
                self.at(start_ns).call(budget, |guest, store| {
                    guest.vcr_guest_latency().call_price_step(
                        store,
                        start_ns,
                        shape.prefill_requests,
                        shape.prefill_tokens,
                        shape.prefill_context_tokens,
                        shape.prefill_attention_pairs,
                        shape.prefill_completions,
                        shape.prefill_completion_context_tokens,
                        shape.decode_requests,
                        shape.decode_tokens,
                        shape.decode_context_tokens,
                        shape.sampled_requests,
                        shape.kv_active_blocks,
                        shape.kv_total_blocks,
                        shape.block_size_tokens,
                        shape.waiting_requests,
                    )
                })
            }

            fn trouble(&mut self, budget: Budget) -> Result<String, CallFault> {
                self.call(budget, |guest, store| guest.vcr_guest_latency().call_trouble(store))
            }
        }
    };
}
pub(super) use latency_adapter;

/// The adapter of `tokens`, for types generated in a module `bindings`.
macro_rules! tokens_adapter {
    () => {
        use $crate::error::CallFault;
        use $crate::latest::{Maker, Setup, TokenCall, TokenInstance};
        use $crate::limits::Budget;
        use $crate::remarks::Remarks;
        use $crate::sandbox::HostState;
        use $crate::versions::instance::{Instance, Module};

        $crate::versions::instance::impl_bindings!(Bindings, bindings::TokenSourcePre<HostState>, vcr_guest_tokens);

        impl Maker<dyn TokenInstance> for Module<Bindings> {
            fn configure(&self, setup: Setup<'_>) -> Result<Box<dyn TokenInstance>, CallFault> {
                Ok(Box::new(self.configured(setup)?))
            }
        }

        impl TokenInstance for Instance<Bindings> {
            fn step(&mut self, call: &TokenCall, remarks: &mut Remarks, budget: Budget) -> Result<Vec<u32>, CallFault> {
                self.call_fallible(budget, |guest, store| {
                    store.data_mut().remarks.allow();
                    let answer = guest.vcr_guest_tokens().call_step(
                        &mut *store,
                        &call.started,
                        &call.request_tokens,
                        &call.structured_outputs,
                        &call.ended,
                        &call.wants,
                    );
                    store.data_mut().remarks.take(remarks);
                    answer
                })
            }
        }
    };
}
pub(super) use tokens_adapter;

/// The adapter of `faults`, for types generated in a module `bindings`.
macro_rules! faults_adapter {
    () => {
        use $crate::error::CallFault;
        use $crate::latest::{FaultInstance, Maker, Setup};
        use $crate::limits::Budget;
        use $crate::sandbox::HostState;
        use $crate::versions::instance::{Instance, Module};

        $crate::versions::instance::impl_bindings!(Bindings, bindings::FailureInjectorPre<HostState>, vcr_guest_faults);

        impl Maker<dyn FaultInstance> for Module<Bindings> {
            fn configure(&self, setup: Setup<'_>) -> Result<Box<dyn FaultInstance>, CallFault> {
                Ok(Box::new(self.configured(setup)?))
            }
        }

        impl FaultInstance for Instance<Bindings> {
            fn decide(
                &mut self,
                now_ns: u64,
                step: u64,
                events: &[u64],
                texts: &[String],
                budget: Budget,
            ) -> Result<Vec<u64>, CallFault> {
                self.at(now_ns).call_fallible(budget, |guest, store| {
                    guest.vcr_guest_faults().call_decide(store, now_ns, step, events, texts)
                })
            }
        }
    };
}
pub(super) use faults_adapter;

/// The adapter of `scheduling`, for types generated in a module `bindings`.
macro_rules! scheduling_adapter {
    () => {
        use $crate::error::CallFault;
        use $crate::latest::{Maker, PolicyCall, PolicyInstance, Setup};
        use $crate::limits::Budget;
        use $crate::sandbox::HostState;
        use $crate::versions::instance::{Instance, Module};

        $crate::versions::instance::impl_bindings!(
            Bindings,
            bindings::SchedulerPolicyPre<HostState>,
            vcr_guest_scheduling
        );

        impl Maker<dyn PolicyInstance> for Module<Bindings> {
            fn configure(&self, setup: Setup<'_>) -> Result<Box<dyn PolicyInstance>, CallFault> {
                Ok(Box::new(self.configured(setup)?))
            }
        }

        impl PolicyInstance for Instance<Bindings> {
            fn decide(&mut self, call: &PolicyCall, budget: Budget) -> Result<Vec<u64>, CallFault> {
                self.at(call.now_ns).call_fallible(budget, |guest, store| {
                    guest.vcr_guest_scheduling().call_decide(
                        store,
                        call.now_ns,
                        call.budget_tokens,
                        call.running_slots,
                        call.free_blocks,
                        call.total_blocks,
                        &call.events,
                        &call.progress,
                    )
                })
            }
        }
    };
}
pub(super) use scheduling_adapter;

/// The adapter of `routing`, for types generated in a module `bindings`.
macro_rules! routing_adapter {
    () => {
        use $crate::error::CallFault;
        use $crate::latest::{Maker, RouteCall, RouterInstance, Setup};
        use $crate::limits::Budget;
        use $crate::sandbox::HostState;
        use $crate::versions::instance::{Instance, Module};

        $crate::versions::instance::impl_bindings!(Bindings, bindings::RouterPre<HostState>, vcr_guest_routing);

        impl Maker<dyn RouterInstance> for Module<Bindings> {
            fn configure(&self, setup: Setup<'_>) -> Result<Box<dyn RouterInstance>, CallFault> {
                Ok(Box::new(self.configured(setup)?))
            }
        }

        impl RouterInstance for Instance<Bindings> {
            fn route(&mut self, call: &RouteCall, budget: Budget) -> Result<u32, CallFault> {
                self.at(call.now_ns).call_fallible(budget, |guest, store| {
                    guest.vcr_guest_routing().call_route(
                        store,
                        call.now_ns,
                        &call.ended,
                        &call.request,
                        &call.blocks,
                        &call.workers,
                    )
                })
            }
        }
    };
}
pub(super) use routing_adapter;

/// The adapter of `scaling`, for types generated in a module `bindings`.
macro_rules! scaling_adapter {
    () => {
        use vcr_core::scale::ScaleView;

        use $crate::error::CallFault;
        use $crate::latest::{Maker, ScalerInstance, Setup};
        use $crate::limits::Budget;
        use $crate::sandbox::HostState;
        use $crate::versions::instance::{Instance, Module};

        $crate::versions::instance::impl_bindings!(Bindings, bindings::AutoscalerPre<HostState>, vcr_guest_scaling);

        impl Maker<dyn ScalerInstance> for Module<Bindings> {
            fn configure(&self, setup: Setup<'_>) -> Result<Box<dyn ScalerInstance>, CallFault> {
                Ok(Box::new(self.configured(setup)?))
            }
        }

        impl ScalerInstance for Instance<Bindings> {
            fn decide(&mut self, view: &ScaleView, budget: Budget) -> Result<u32, CallFault> {
                let narrow = |sum_ns: u128| u64::try_from(sum_ns).unwrap_or(u64::MAX);
                let pool = bindings::exports::vcr::guest::scaling::PoolView {
                    now_ns: view.now_ns,
                    up_engines: view.up_engines,
                    starting_engines: view.starting_engines,
                    draining_engines: view.draining_engines,
                    arrived_requests: view.arrived_requests,
                    arrived_prompt_tokens: view.arrived_prompt_tokens,
                    arrived_output_tokens: view.arrived_output_tokens,
                    completed_requests: view.completed_requests,
                    ttft_count: view.ttft_count,
                    ttft_sum_ns: narrow(view.ttft_sum_ns),
                    token_gap_count: view.token_gap_count,
                    token_gap_sum_ns: narrow(view.token_gap_sum_ns),
                    running_requests: view.running_requests,
                    waiting_requests: view.waiting_requests,
                    active_blocks: view.active_blocks,
                    total_blocks: view.total_blocks,
                    outstanding_prefill_tokens: view.outstanding_prefill_tokens,
                };
                self.at(view.now_ns)
                    .call_fallible(budget, |guest, store| guest.vcr_guest_scaling().call_decide(store, pool))
            }
        }
    };
}
pub(super) use scaling_adapter;
