//! Configurations of inference-perf (Kubernetes).

use vcr_base::random::Distribution;
use vcr_cluster::{Curve, Gaps, Limit, Piece, RequestMix, WorkloadConfig};

use super::{Fields, normal, open_loop, synthetic};

const NS_PER_S: f64 = 1e9;

pub(super) fn workloads(file: &mut Fields, ignored: &mut Vec<String>) -> Result<Vec<WorkloadConfig>, String> {
    let (load, data) = (file.fields("load")?, file.fields("data")?);
    let (mut load, mut data) = (file.needed("load", load)?, file.needed("data", data)?);
    let mix = mix(&mut data, ignored)?;
    let kind = load.text("type")?.unwrap_or_else(|| "constant".to_owned());
    let gaps = match kind.as_str() {
        "constant" => Gaps::Even,
        "poisson" => Gaps::Exponential,
        other => {
            let place = load.place("type");
            return Err(format!("{place}: `{other}` is not supported: expected constant or poisson"));
        }
    };
    let interval_ns = (load.number("interval")?.unwrap_or(0.0) * NS_PER_S) as u64;
    let mut pieces = Vec::new();
    for mut stage in load.list("stages")? {
        if !pieces.is_empty() {
            pieces.push(Piece::level(interval_ns, 0.0));
        }
        let (rate, seconds) = (stage.needed_number("rate")?, stage.needed_number("duration")?);
        pieces.push(Piece::level((seconds * NS_PER_S) as u64, rate));
        stage.finish(ignored);
    }
    if pieces.is_empty() {
        return Err(format!("{}: expected at least one stage with `rate` and `duration`", load.place("stages")));
    }
    load.finish(ignored);
    data.finish(ignored);
    Ok(vec![synthetic("inference-perf", open_loop(Curve::once(pieces), gaps, Limit::default()), mix)])
}

fn mix(data: &mut Fields, ignored: &mut Vec<String>) -> Result<RequestMix, String> {
    let kind = data.text("type")?;
    let kind = data.needed("type", kind)?;
    match kind.as_str() {
        "random" | "synthetic" => {
            let [input, output] = ["input_distribution", "output_distribution"].map(|key| {
                let fields = data.fields(key)?;
                let mut fields = data.needed(key, fields)?;
                let mean = fields.needed_number("mean")?;
                let std = match fields.number("std")? {
                    Some(std) => std,
                    None => fields.number("std_dev")?.unwrap_or(0.0),
                };
                let (min, max) = (fields.number("min")?, fields.number("max")?);
                // Lengths are drawn for each request, so the size of inference-perf's list has no effect.
                fields.take("total_count");
                fields.finish(ignored);
                normal(mean, std, min, max)
            });
            Ok(RequestMix::new(input?, output?))
        }
        "shared_prefix" => {
            let shared = data.fields("shared_prefix")?;
            let mut shared = data.needed("shared_prefix", shared)?;
            // The former names of these fields are accepted, too.
            let groups = match shared.whole("num_unique_system_prompts")? {
                Some(groups) => groups,
                None => shared.whole("num_groups")?.unwrap_or(1),
            };
            let [prefix, question, output] =
                ["system_prompt_len", "question_len", "output_len"].map(|key| shared.needed_number(key));
            let constant = |value| Distribution::Constant { value };
            let mix = RequestMix {
                shared_prefix_tokens: prefix? as u32,
                prefix_groups: u32::try_from(groups).unwrap_or(u32::MAX),
                ..RequestMix::new(constant(question?), constant(output?))
            };
            shared.finish(ignored);
            Ok(mix)
        }
        other => Err(format!(
            "{}: `{other}` is not supported: expected random, synthetic or shared_prefix; for a data set, use \
             dataset(#{{ path: ... }})",
            data.place("type")
        )),
    }
}
