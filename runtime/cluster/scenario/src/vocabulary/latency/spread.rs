//! A latency model for tests: a step time with a given uncertainty.

use std::sync::Arc;

use rhai::Engine;
use vcr_cluster::Overheads;
use vcr_core::seed;
use vcr_latency::{Fixed, FixedInput};

use crate::script::context::Context;
use crate::script::register::with_options;
use crate::vocabulary::latency::LatencySpec;

/// Registers `spread(#{ step: "10ms", percent: 20, arrival: "5ms" })`. In draws, step time and arrival overhead
/// vary by up to this many percent.
pub(super) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "spread", |_, mut options| {
        let step_ns = options.duration_ns("step").unwrap_or(0);
        let percent = options.u64("percent").unwrap_or(0);
        let arrival_ns = options.duration_ns("arrival").unwrap_or(0);
        options.finish()?;
        Ok(spec(step_ns, arrival_ns, percent))
    });
}

fn spec(step_ns: u64, arrival_ns: u64, percent: u64) -> LatencySpec {
    let model = Fixed::new(FixedInput::Step { step_ns }).expect("any step is valid");
    LatencySpec {
        overheads: Some(Overheads { arrival_ns, ..Overheads::default() }),
        draws: Some(Arc::new(move |draw_seed| {
            let of_100 = 100 - percent + seed::mix(draw_seed) % (2 * percent + 1);
            spec(step_ns * of_100 / 100, arrival_ns * of_100 / 100, percent)
        })),
        ..LatencySpec::new(Arc::new(move |_context| Ok(Box::new(model))))
    }
}
