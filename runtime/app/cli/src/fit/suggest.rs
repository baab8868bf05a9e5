//! The suggested next measurement, as a command of `vllm bench serve` and as a scenario for a real target.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};
use vcr_fit::{Certainty, Load, Pace, Suggested, Suggestion};

use crate::terminal::style::{BOLD, DIM};
use crate::terminal::text::printable;

pub(super) fn write(out: &mut dyn Write, suggestion: Option<&Suggestion>, model: &Path) -> io::Result<()> {
    let Some(Suggestion { prediction, now, loads }) = suggestion else { return Ok(()) };
    writeln!(out, "\n{BOLD}to predict {}{BOLD:#}: {}", text(prediction), certainty(now))?;
    if loads.is_empty() {
        return writeln!(out, "no other load would make that much more certain");
    }
    for (index, Suggested { load, lasts_s, then }) in loads.iter().enumerate() {
        let also = if index == 0 { "measure" } else { "and" };
        writeln!(out, "{also} {} (about {:.0} s): {}", text(load), lasts_s.ceil(), certainty(then))?;
        writeln!(out, "  {}", bench(load, index))?;
    }
    writeln!(out, "{DIM}or as a scenario, with `vcr run FILE --target http://HOST:8000`:{DIM:#}")?;
    write!(out, "{}", scenario(loads, &printable(&model.display().to_string())))
}

pub(super) fn as_json(suggestion: &Suggestion) -> Value {
    let Suggestion { prediction, now, loads } = suggestion;
    let with_command = |(index, each): (usize, &Suggested)| json!({"load": each.load, "lasts_s": each.lasts_s, "then": each.then, "command": bench(&each.load, index)});
    let loads: Vec<Value> = loads.iter().enumerate().map(with_command).collect();
    json!({"prediction": prediction, "now": now, "loads": loads})
}

fn text(load: &Load) -> String {
    let pace = match load.pace {
        Pace::Concurrency(at_once) => format!("{at_once} at once"),
        Pace::RatePerS(rate) => format!("{rate} requests/s"),
    };
    format!("{} prompt and {} output tokens, {pace}", load.prompt_tokens, load.output_tokens)
}

fn certainty(Certainty { ttft, itl }: &Certainty) -> String {
    format!("ttft mean ±{:.0} %, itl mean ±{:.0} %", ttft * 100.0, itl * 100.0)
}

/// A benchmark command with fixed lengths that records the times of all tokens.
fn bench(load: &Load, index: usize) -> String {
    let pace = match load.pace {
        Pace::Concurrency(at_once) => format!("--max-concurrency {at_once}"),
        Pace::RatePerS(rate) => format!("--request-rate {rate}"),
    };
    format!(
        "vllm bench serve --model MODEL --dataset-name random --random-input-len {} --random-output-len {} --ignore-eos \
         --seed {} {pace} --num-prompts {} --num-warmups 5 --save-result --save-detailed",
        load.prompt_tokens,
        load.output_tokens,
        index + 1,
        load.requests
    )
}

fn scenario(loads: &[Suggested], model: &str) -> String {
    let runs = loads.iter().enumerate().map(|(index, Suggested { load, .. })| {
        let Load { prompt_tokens, output_tokens, pace, requests } = load;
        let workload = match pace {
            Pace::Concurrency(at_once) => format!("closed_loop(#{{ concurrency: {at_once}, "),
            Pace::RatePerS(rate) => format!("poisson(#{{ rate: \"{rate}/s\", "),
        };
        format!(
            "run(#{{ name: \"suggested-{}\", cluster: c, workloads: [\n    {workload}count: {requests}, prompt_tokens: \
             {prompt_tokens}, output_tokens: {output_tokens} }}),\n] }});\n",
            index + 1
        )
    });
    let runs: String = runs.collect();
    format!(
        "let c = cluster(#{{ engines: pool(#{{ engine: engine(#{{}}), latency: fitted(#{{ path: \"{model}\" }}) }}) }});\n{runs}"
    )
}
