//! `adapter_costs(#{ ... })`: time costs of LoRA adapters.

use std::sync::Arc;

use rhai::Engine;
use vcr_core::AdapterCosts;
use vcr_model::{Model, Serving};

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::Options;
use crate::script::register::with_options;

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "adapter_costs", |_, options| make(options));
}

fn make(mut options: Options<'_>) -> Scripted<AdapterCosts> {
    let bytes = size(&mut options);
    let disk = options.bandwidth("disk");
    let disk = options.required("disk", disk);
    let host = options.bandwidth("host");
    let mut duration = |name| options.duration_ns(name).unwrap_or(0);
    let (disk_latency_ns, step_ns, token_ns) = (duration("disk_latency"), duration("step"), duration("token"));
    let host_slots = options.u32("max_cpu_loras").unwrap_or(0);
    options.finish()?;
    let transfer_ns = |bytes_per_s: u64| (bytes * 1e9 / bytes_per_s.max(1) as f64).round() as u64;
    Ok(AdapterCosts {
        host_slots,
        load_ns: disk_latency_ns.saturating_add(transfer_ns(disk)),
        copy_ns: host.map_or(0, transfer_ns),
        step_ns,
        token_ns,
    })
}

/// Size of an adapter in bytes: stated, or computed from a model and a rank.
fn size(options: &mut Options<'_>) -> f64 {
    let stated = options.bytes("size");
    let rank = options.u64("rank");
    let model = options.string("model");
    match (stated, model) {
        (Some(bytes), None) => bytes as f64,
        (None, Some(name)) => match Model::find(&name) {
            Ok(model) => {
                let serving = Serving { adapter_rank: rank.unwrap_or(16), ..Serving::default() };
                model.adapter_bytes(&serving).into_iter().sum()
            }
            Err(error) => {
                options.problem("model", error.to_string());
                0.0
            }
        },
        _ => {
            options.problem("size", "expected either `size`, or `model` with the `rank` of the adapters");
            0.0
        }
    }
}
