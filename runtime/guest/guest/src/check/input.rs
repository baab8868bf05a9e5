//! Arguments of calls as JSON, with the names of `wit/`: the input of `vcr guest call`.

use serde_json::{Value, json};
use vcr_core::fault::{FaultBatch, FaultEvent};
use vcr_core::latency::StepShape;
use vcr_core::policy::{EngineView, PolicyEvent, Slo};
use vcr_core::route::RoutePhase;
use vcr_core::scale::PoolView;

use crate::latest::{DecodeRun, RouteCall, TokenCall};

pub(super) fn step(start_ns: u64, step: &StepShape) -> Value {
    json!({
        "start-ns": start_ns,
        "step": {
            "prefill-requests": step.prefill_requests,
            "prefill-tokens": step.prefill_tokens,
            "prefill-context-tokens": step.prefill_context_tokens,
            "prefill-attention-pairs": step.prefill_attention_pairs,
            "prefill-completions": step.prefill_completions,
            "prefill-completion-context-tokens": step.prefill_completion_context_tokens,
            "decode-requests": step.decode_requests,
            "decode-tokens": step.decode_tokens,
            "decode-context-tokens": step.decode_context_tokens,
            "sampled-requests": step.sampled_requests,
            "kv-active-blocks": step.kv_active_blocks,
            "waiting-requests": step.waiting_requests,
            "encoder-tokens": step.encoder.embeds,
            "adapter-count": step.adapter_count,
            "adapter-tokens": step.adapter_tokens,
        },
    })
}

fn objectives(slo: Slo) -> Value {
    json!({"ttft-ns": slo.ttft_ns, "tpot-ns": slo.tpot_ns, "e2e-ns": slo.e2e_ns})
}

pub(super) fn run(run: &DecodeRun<'_>) -> Value {
    json!({
        "start-ns": run.start_ns,
        "horizon-ns": run.horizon_ns,
        "run": {
            "decode-requests": run.first.decode_requests,
            "decode-tokens": run.first.decode_tokens,
            "first-context-tokens": run.first.decode_context_tokens,
            "sampled-requests": run.first.sampled_requests,
            "kv-active-blocks": run.kv_active_blocks,
            "waiting-requests": run.first.waiting_requests,
            "adapter-count": run.first.adapter_count,
            "adapter-tokens": run.first.adapter_tokens,
        },
    })
}

pub(super) fn policy(batch: &EngineView<'_>) -> Value {
    let event = |event: &PolicyEvent| match *event {
        PolicyEvent::Arrived { slot, arrival_ns, prompt_tokens, max_tokens, priority, adapter, tenant, slo } => {
            json!({"arrived": {
                "slot": slot,
                "arrival-ns": arrival_ns,
                "prompt-tokens": prompt_tokens,
                "max-tokens": max_tokens,
                "priority": priority,
                "adapter": adapter,
                "tenant": tenant,
                "slo": objectives(slo),
            }})
        }
        PolicyEvent::Admitted { slot, cached_tokens } => {
            json!({"admitted": {"slot": slot, "cached-tokens": cached_tokens}})
        }
        PolicyEvent::Preempted { slot } => json!({"preempted": slot}),
        PolicyEvent::Ended { slot, computed_tokens, output_tokens } => {
            json!({"ended": {"slot": slot, "computed-tokens": computed_tokens, "output-tokens": output_tokens}})
        }
    };
    let rows = batch.progress.iter();
    json!({
        "engine": {
            "now-ns": batch.now_ns,
            "budget-tokens": batch.budget_tokens,
            "running-slots": batch.running_slots,
            "free-blocks": batch.free_blocks,
            "total-blocks": batch.total_blocks,
            "block-size-tokens": batch.block_size_tokens,
            "events": batch.events.iter().map(event).collect::<Value>(),
            "progress": {
                "slot": rows.clone().map(|row| row.slot).collect::<Value>(),
                "computed-tokens": rows.clone().map(|row| row.computed_tokens).collect::<Value>(),
                "output-tokens": rows.map(|row| row.output_tokens).collect::<Value>(),
            },
        },
    })
}

pub(super) fn route(call: &RouteCall<'_>) -> Value {
    let RouteCall { ended, query, workers } = call;
    let ended = ended.iter().map(|ended| {
        json!({
            "id": ended.id,
            "worker": ended.worker,
            "output-tokens": ended.output_tokens,
            "failed": ended.failed,
            "ttft-ns": ended.ttft_ns,
        })
    });
    let rows = workers.iter();
    json!({
        "now-ns": query.now_ns,
        "ended": ended.collect::<Value>(),
        "request": {
            "id": query.id,
            "prompt-tokens": query.prompt_tokens,
            "max-tokens": query.max_tokens,
            "priority": query.priority,
            "adapter": query.adapter,
            "tenant": query.tenant,
            "session": query.session,
            "slo": objectives(query.slo),
            "block-size-tokens": query.block_size_tokens,
            "phase": match query.phase {
                RoutePhase::Whole => "whole",
                RoutePhase::Prefill => "prefill",
                RoutePhase::Decode => "decode",
            },
            "may-refuse": query.may_refuse,
            "block-hashes": query.block_hashes,
        },
        "workers": {
            "worker": rows.clone().map(|load| load.worker).collect::<Value>(),
            "running-requests": rows.clone().map(|load| load.running_requests).collect::<Value>(),
            "waiting-requests": rows.clone().map(|load| load.waiting_requests).collect::<Value>(),
            "max-running-requests": rows.clone().map(|load| load.max_running_requests).collect::<Value>(),
            "active-blocks": rows.clone().map(|load| load.active_blocks).collect::<Value>(),
            "total-blocks": rows.clone().map(|load| load.total_blocks).collect::<Value>(),
            "outstanding-prefill-tokens": rows.clone().map(|load| load.outstanding_prefill_tokens).collect::<Value>(),
            "cached-prompt-blocks": rows.clone().map(|load| load.cached_prompt_blocks).collect::<Value>(),
            "host-prompt-blocks": rows.clone().map(|load| load.host_prompt_blocks).collect::<Value>(),
            "disk-prompt-blocks": rows.clone().map(|load| load.disk_prompt_blocks).collect::<Value>(),
            "loading-requests": rows.clone().map(|load| load.loading_requests).collect::<Value>(),
            "last-step-ns": rows.clone().map(|load| load.last_step_ns).collect::<Value>(),
            "preemption-count": rows.map(|load| load.preemption_count).collect::<Value>(),
        },
    })
}

pub(super) fn pool(view: &PoolView) -> Value {
    let narrow = |sum_ns: u128| u64::try_from(sum_ns).unwrap_or(u64::MAX);
    json!({
        "pool": {
            "now-ns": view.now_ns,
            "up-engines": view.up_engines,
            "starting-engines": view.starting_engines,
            "draining-engines": view.draining_engines,
            "arrived-requests": view.arrived_requests,
            "arrived-prompt-tokens": view.arrived_prompt_tokens,
            "arrived-output-tokens": view.arrived_output_tokens,
            "completed-requests": view.completed_requests,
            "ttft-count": view.ttft_count,
            "ttft-sum-ns": narrow(view.ttft_sum_ns),
            "queue-count": view.queue_count,
            "queue-sum-ns": narrow(view.queue_sum_ns),
            "slo-requests": view.slo_requests,
            "slo-met-requests": view.slo_met_requests,
            "token-gap-count": view.token_gap_count,
            "token-gap-sum-ns": narrow(view.token_gap_sum_ns),
            "running-requests": view.running_requests,
            "waiting-requests": view.waiting_requests,
            "active-blocks": view.active_blocks,
            "total-blocks": view.total_blocks,
            "outstanding-prefill-tokens": view.outstanding_prefill_tokens,
            "preemption-count": view.preemption_count,
            "engine-usd-per-hour": view.engine_usd_per_hour,
        },
    })
}

pub(super) fn faults(batch: &FaultBatch<'_>) -> Value {
    let event = |event: &FaultEvent<'_>| match *event {
        FaultEvent::Arrived { slot, request_id, prompt_tokens, max_tokens, priority, adapter } => json!({"arrived": {
            "slot": slot,
            "request-id": request_id,
            "prompt-tokens": prompt_tokens,
            "max-tokens": max_tokens,
            "priority": priority,
            "adapter": adapter,
        }}),
        FaultEvent::Emitted { slot, output_tokens } => {
            json!({"emitted": {"slot": [slot], "output-tokens": [output_tokens]}})
        }
        FaultEvent::Ended { slot } => json!({"ended": slot}),
        FaultEvent::Utility { method } => json!({"utility": method}),
    };
    json!({
        "now-ns": batch.now_ns,
        "step": batch.step,
        "events": batch.events.iter().map(event).collect::<Value>(),
    })
}

pub(super) fn tokens(call: &TokenCall<'_>) -> Value {
    let TokenCall { started, ended, wants } = call;
    let started = started.iter().map(|request| {
        json!({
            "slot": request.slot,
            "seed": request.seed,
            "prompt": request.prompt,
            "max-tokens": request.max_tokens,
            "min-tokens": request.min_tokens,
            "eos-token": request.eos_token,
            "stop-tokens": request.stop_tokens,
            "structured-output": (!request.structured_output.is_empty()).then_some(request.structured_output),
            "thinking-token-budget": request.thinking_token_budget,
        })
    });
    json!({
        "started": started.collect::<Value>(),
        "ended": ended,
        "wants": {
            "slot": wants.iter().map(|want| want.slot).collect::<Value>(),
            "first-index": wants.iter().map(|want| want.first_index).collect::<Value>(),
            "count": wants.iter().map(|want| want.count).collect::<Value>(),
        },
    })
}
