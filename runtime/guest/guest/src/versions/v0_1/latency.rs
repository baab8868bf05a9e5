use vcr_core::latency::{EngineInfo, KvGroup, KvGroupKind, KvGroupShape, StepShape};

use crate::error::CallFault;
use crate::latest::{DecodeRun, LatencyInstance, Maker, Setup};
use crate::limits::Budget;
use crate::sandbox::HostState;
use crate::versions::instance::{Instance, Module, impl_bindings};
use crate::versions::v0_1::generated;

pub(super) use bindings::LatencyModel as Bindings;
use bindings::exports::vcr::guest::latency as wit;

generated!("latency-model", "vcr:guest/groups@0.1.0": groups);

impl_bindings!(Bindings, bindings::LatencyModelPre<HostState>, (), |guest, store, setup| {
    let kv_groups: Vec<wit::KvGroup> = setup.engine.kv_groups.iter().map(wit_group).collect();
    let engine = wit_engine(setup.engine, &kv_groups);
    guest.vcr_guest_latency().call_configure(store, setup.config_json, setup.seed, engine)
});

impl Maker<dyn LatencyInstance> for Module<Bindings> {
    fn configure(&self, setup: Setup<'_>) -> Result<Box<dyn LatencyInstance>, CallFault> {
        let reads_groups = !setup.engine.kv_groups.is_empty() && self.imports("vcr:guest/groups@");
        let mut instance = self.configured(setup)?;
        instance.host_mut().kv_groups = reads_groups.then(Vec::new);
        Ok(Box::new(instance))
    }
}

impl LatencyInstance for Instance<Bindings> {
    fn kv_group_shapes(&mut self) -> Option<&mut Vec<KvGroupShape>> {
        self.host_mut().kv_groups.as_mut()
    }

    fn price_step(&mut self, start_ns: u64, step: &StepShape, budget: Budget) -> Result<f64, CallFault> {
        let step = wit_step(step);
        self.at(start_ns)
            .call(budget, |guest, store, ()| guest.vcr_guest_latency().call_price_step(store, start_ns, step))
    }

    fn price_decodes(&mut self, run: DecodeRun<'_>, budget: Budget) -> Result<Vec<f64>, CallFault> {
        let DecodeRun { start_ns, horizon_ns, first, kv_active_blocks } = run;
        let run = wit::DecodeRun {
            decode_requests: first.decode_requests,
            decode_tokens: first.decode_tokens,
            first_context_tokens: first.decode_context_tokens,
            sampled_requests: first.sampled_requests,
            kv_active_blocks,
            waiting_requests: first.waiting_requests,
            adapter_count: first.adapter_count,
            adapter_tokens: first.adapter_tokens,
        };
        self.at(start_ns).call(budget, |guest, store, ()| {
            guest.vcr_guest_latency().call_price_decodes(store, start_ns, horizon_ns, run)
        })
    }
}

fn wit_engine<'a>(engine: &EngineInfo, kv_groups: &'a [wit::KvGroup]) -> wit::EngineInfo<'a> {
    wit::EngineInfo {
        tensor_parallel_size: engine.tensor_parallel_size,
        pipeline_parallel_size: engine.pipeline_parallel_size,
        kv_total_blocks: engine.kv_total_blocks,
        block_size_tokens: engine.block_size_tokens,
        kv_groups,
    }
}

fn wit_group(group: &KvGroup) -> wit::KvGroup {
    wit::KvGroup {
        kind: match group.kind {
            KvGroupKind::FullAttention => wit::KvGroupKind::FullAttention,
            KvGroupKind::LatentAttention => wit::KvGroupKind::LatentAttention,
            KvGroupKind::SlidingWindow => wit::KvGroupKind::SlidingWindow,
            KvGroupKind::ChunkedLocal => wit::KvGroupKind::ChunkedLocal,
            KvGroupKind::CrossAttention => wit::KvGroupKind::CrossAttention,
            KvGroupKind::Mamba => wit::KvGroupKind::Mamba,
        },
        block_size_tokens: group.block_size_tokens,
        window_tokens: group.window_tokens,
    }
}

fn wit_step(step: &StepShape) -> wit::StepShape {
    wit::StepShape {
        prefill_requests: step.prefill_requests,
        prefill_tokens: step.prefill_tokens,
        prefill_context_tokens: step.prefill_context_tokens,
        prefill_attention_pairs: step.prefill_attention_pairs,
        prefill_completions: step.prefill_completions,
        prefill_completion_context_tokens: step.prefill_completion_context_tokens,
        decode_requests: step.decode_requests,
        decode_tokens: step.decode_tokens,
        decode_context_tokens: step.decode_context_tokens,
        sampled_requests: step.sampled_requests,
        kv_active_blocks: step.kv_active_blocks,
        waiting_requests: step.waiting_requests,
        encoder_tokens: step.encoder.embeds,
        adapter_count: step.adapter_count,
        adapter_tokens: step.adapter_tokens,
    }
}
