//! Scenarios of guidellm.

use serde_json::{Map, Value};
use vcr_cluster::{Arrivals, Limit, RequestMix, WorkloadConfig};

use super::{Fields, normal, synthetic};

/// The concurrency of guidellm's mode `throughput`.
const THROUGHPUT_CONCURRENCY: u64 = 512;

pub(super) fn workloads(file: &mut Fields, ignored: &mut Vec<String>) -> Result<Vec<WorkloadConfig>, String> {
    let kind = match file.text("rate_type")? {
        Some(kind) => kind,
        None => {
            let profile = file.text("profile")?;
            file.needed("rate_type", profile)?
        }
    };
    let rates = match file.take("rate") {
        None => Vec::new(),
        Some(Value::Array(rates)) => rates,
        Some(rate) => vec![rate],
    };
    let rates: Vec<f64> = rates
        .iter()
        .map(|rate| rate.as_f64().filter(|rate| rate.is_finite() && *rate > 0.0))
        .collect::<Option<_>>()
        .ok_or("rate: expected a positive number, or a list of them")?;
    let max_seconds = file.number("max_seconds")?;
    let limit =
        Limit { count: file.whole("max_requests")?, duration_ns: max_seconds.map(|seconds| (seconds * 1e9) as u64) };
    let mix = mix(file, ignored)?;
    let arrivals = |rate: f64| -> Result<Arrivals, String> {
        let closed = |concurrency: u64| Arrivals::ClosedLoop { concurrency, limit };
        match kind.as_str() {
            "constant" | "async" => Ok(Arrivals::Constant { rate_per_s: rate, limit }),
            "poisson" => Ok(Arrivals::Poisson { rate_per_s: rate, limit }),
            "concurrent" if rate.fract() == 0.0 => Ok(closed(rate as u64)),
            "concurrent" => Err(format!("rate: expected whole numbers of users, found {rate}")),
            "synchronous" => Ok(closed(1)),
            "throughput" => Ok(closed(if rate > 0.0 { rate as u64 } else { THROUGHPUT_CONCURRENCY })),
            "sweep" => Err("rate_type: `sweep` is a search, not a workload: expected constant, poisson, concurrent, \
                            synchronous or throughput"
                .to_owned()),
            other => Err(format!(
                "rate_type: `{other}` is not supported: expected constant, poisson, concurrent, synchronous or throughput"
            )),
        }
    };
    if rates.is_empty() {
        if matches!(kind.as_str(), "constant" | "async" | "poisson" | "concurrent") {
            return Err(format!("rate: is missing, which `{kind}` needs"));
        }
        return Ok(vec![synthetic(&kind, arrivals(0.0)?, mix)]);
    }
    if rates.len() > 1 && max_seconds.is_none() {
        return Err("several rates follow each other: expected `max_seconds` for each".to_owned());
    }
    let mut workloads = Vec::new();
    for (index, &rate) in rates.iter().enumerate() {
        let name = if rates.len() > 1 { format!("{kind} {rate}") } else { kind.clone() };
        let start_ns = limit.duration_ns.unwrap_or(0).saturating_mul(index as u64);
        workloads.push(WorkloadConfig { start_ns, ..synthetic(&name, arrivals(rate)?, mix.clone()) });
    }
    Ok(workloads)
}

/// `data`: fields, their JSON, or `prompt_tokens=256,output_tokens=128`.
fn mix(file: &mut Fields, ignored: &mut Vec<String>) -> Result<RequestMix, String> {
    let data = file.take("data");
    let data = match file.needed("data", data)? {
        Value::String(text) if text.trim_start().starts_with('{') => {
            serde_json::from_str(&text).map_err(|error| format!("data: {error}"))?
        }
        Value::String(text) => pairs(&text)?,
        other => other,
    };
    let mut data = Fields::of("data", &data)?;
    let mut lengths = |what: &str| {
        let mean = data.needed_number(&format!("{what}_tokens"))?;
        let mut of = |part: &str| data.number(&format!("{what}_tokens_{part}"));
        let (std, min, max) = (of("stdev")?, of("min")?, of("max")?);
        normal(mean, std.unwrap_or(0.0), min, max)
    };
    let (prompt_tokens, output_tokens) = (lengths("prompt")?, lengths("output")?);
    let prefix = data.whole("prefix_tokens")?.unwrap_or(0);
    let mix = RequestMix {
        shared_prefix_tokens: u32::try_from(prefix).map_err(|_| "data.prefix_tokens: is too long".to_owned())?,
        ..RequestMix::new(prompt_tokens, output_tokens)
    };
    data.finish(ignored);
    Ok(mix)
}

fn pairs(text: &str) -> Result<Value, String> {
    let pair = |pair: &str| {
        let expected = || format!("data: `{pair}` is not supported: expected pairs such as prompt_tokens=256");
        let (key, value) = pair.split_once('=').ok_or_else(expected)?;
        let number: f64 = value.trim().parse().map_err(|_| expected())?;
        Ok((key.trim().to_owned(), Value::from(number)))
    };
    text.split(',').map(pair).collect::<Result<Map<_, _>, String>>().map(Value::Object)
}
