//! `agents`: trees of agents that call tools and each other.

use vcr_base::random::Distribution;
use vcr_cluster::{AgentsInput, Lengths, WorkloadConfig};

use crate::script::error::{Scripted, Thrown};
use crate::script::options::Options;
use crate::vocabulary::workload::clients::common;
use crate::vocabulary::workload::requests::at_least_1;

pub(super) fn make(mut options: Options<'_>) -> Scripted<WorkloadConfig> {
    let one = Distribution::Constant { value: 1.0 };
    let start_ns = options.duration_ns("start").unwrap_or(0);
    let count = options.u32("count");
    let count = options.required("count", count);
    let rate_per_s = options.rate_per_s("rate");
    let concurrency = options.u64("concurrency");
    let [task_tokens, output_tokens, result_tokens] = ["task_tokens", "output_tokens", "result_tokens"].map(|name| {
        let lengths = if name == "output_tokens" { at_least_1(name, &mut options) } else { options.lengths(name) };
        options.required::<()>(name, lengths.as_ref().map(|_| ()));
        lengths.unwrap_or(Lengths::Drawn(one))
    });
    let input = AgentsInput {
        count,
        rate_per_s,
        concurrency,
        system_tokens: options.u32("system_tokens").unwrap_or(0),
        task_tokens,
        output_tokens,
        rounds: options.counts("rounds").unwrap_or(one),
        tools: options.counts("tools").unwrap_or(one),
        tool_time_ms: options.durations_ms("tool_time").unwrap_or(Distribution::Constant { value: 0.0 }),
        result_tokens,
        agent_share: options.f64("agent_share").unwrap_or(0.0),
        depth: options.u32("depth").unwrap_or(1),
        seed: options.u64("seed").unwrap_or(1),
    };
    let of = common("agents", &mut options);
    let call = options.call_position();
    options.finish()?;
    let source = input.source().map_err(|problem| Thrown::input(format!("`agents`: {problem}")).at(call))?;
    Ok(of.workload(start_ns, source))
}
