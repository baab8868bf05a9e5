//! Configurations of aiperf: a data set, and phases, some of which warm the caches.

use serde_json::{Map, Value};
use vcr_base::random::Distribution;
use vcr_base::units::duration_ns;
use vcr_cluster::{Arrivals, Curve, Gaps, Lengths, Limit, RequestMix, WhenFull, WorkloadConfig};

use super::{Fields, Spread, normal, open_loop, synthetic};

/// A time that no run reaches.
const FOREVER_NS: u64 = u64::MAX / 4;

pub(super) fn is_config(file: &Value) -> bool {
    file.get("benchmark").is_some() && (file.get("schemaVersion").is_some() || file.get("schema_version").is_some())
}

pub(super) fn workloads(file: &mut Fields, ignored: &mut Vec<String>) -> Result<Vec<WorkloadConfig>, String> {
    // It decided how the file is read.
    let _ = (file.take("schemaVersion"), file.take("schema_version"));
    let benchmark = file.take("benchmark").map(|benchmark| snake_case(&benchmark));
    let mut benchmark = Fields::of("benchmark", &file.needed("benchmark", benchmark)?)?;
    let mix = data(&mut benchmark, ignored)?;
    let has_turns = mix.turns != Distribution::Constant { value: 1.0 };
    // A single phase is the measured one.
    let is_single = benchmark.is_map("phases");
    let mut phases = if is_single { Vec::new() } else { benchmark.list("phases")? };
    for (key, name) in [("warmup", "warmup"), ("profiling", "profiling"), ("phases", "profiling")] {
        if let Some(mut phase) = benchmark.fields(key)? {
            phase.set("name", name.into());
            phases.push(phase);
        }
    }
    let mut workloads: Vec<WorkloadConfig> = Vec::new();
    // The end of the previous phase, if known.
    let mut end_ns = Some(0);
    for mut phase in phases {
        let name = phase.text("name")?;
        let name = phase.needed("name", name)?;
        let kind = phase.text("kind")?;
        let is_warm_up = match kind.as_deref().unwrap_or(&name) {
            "warmup" => true,
            "profiling" => false,
            other => {
                let place = phase.place("kind");
                return Err(match kind {
                    Some(_) => format!("{place}: expected warmup or profiling, found `{other}`"),
                    None => format!(
                        "{place}: is missing: a phase with the name `{other}`, and not warmup or profiling, needs one \
                         of them as its kind"
                    ),
                });
            }
        };
        let is_seamless = phase.take("seamless").is_some_and(|value| value == true);
        let follows_warm_up = workloads.last().is_some_and(|before| before.is_warm_up);
        let start_ns: u64 = match (workloads.is_empty(), follows_warm_up && !is_warm_up, is_seamless) {
            (true, ..) | (false, true, false) => 0,
            (false, true, true) => return Err(format!("{}: expected none after a warm-up", phase.place("seamless"))),
            (false, false, true) => end_ns
                .ok_or_else(|| format!("{}: expected a `duration` of the phase before", phase.place("seamless")))?,
            (false, false, false) => {
                let place = phase.place("seamless");
                return Err(format!("{place}: expected true: phases of one kind cannot wait for each other"));
            }
        };
        if is_warm_up && workloads.iter().any(|before| !before.is_warm_up) {
            return Err(format!("{}: expected before all that is measured", phase.place("kind")));
        }
        let (arrivals, limit, most) = arrivals(&mut phase, has_turns)?;
        end_ns = limit.duration_ns.map(|duration_ns| start_ns.saturating_add(duration_ns));
        phase.finish(ignored);
        let mut workload = WorkloadConfig { start_ns, is_warm_up, ..synthetic(&name, arrivals, mix.clone()) };
        workload.client.max_in_flight = most;
        workload.client.when_full = WhenFull::Delay;
        workloads.push(workload);
    }
    benchmark.finish(ignored);
    Ok(workloads)
}

/// The arrivals of a phase, its limit, and the maximum number of sessions in flight.
fn arrivals(phase: &mut Fields, has_turns: bool) -> Result<(Arrivals, Limit, Option<u64>), String> {
    let (requests, sessions) = (phase.whole("requests")?, phase.whole("sessions")?);
    if has_turns && requests.is_some() {
        return Err(format!("{}: expected `sessions` where conversations have several turns", phase.place("requests")));
    }
    let duration = time_ns(phase, "duration")?;
    let limit = Limit { count: requests.into_iter().chain(sessions).min(), duration_ns: duration };
    if limit.count.is_none() && duration.is_none() {
        return Err(format!("{}: is missing, as are `sessions` and `duration`", phase.place("requests")));
    }
    for changed in ["concurrency_ramp", "prefill_concurrency", "rate_series", "cancellation", "timing_mode"] {
        if phase.take(changed).is_some() {
            return Err(format!("{}: is not supported", phase.place(changed)));
        }
    }
    let concurrency = phase.whole("concurrency")?;
    let kind = phase.text("type")?;
    let kind = phase.needed("type", kind)?;
    if kind == "concurrency" {
        return Ok((Arrivals::ClosedLoop { concurrency: concurrency.unwrap_or(1), limit }, limit, None));
    }
    let gaps = match kind.as_str() {
        "poisson" => Gaps::Exponential,
        "constant" => Gaps::Even,
        "gamma" => Gaps::Gamma { shape: phase.number("smoothness")?.unwrap_or(1.0) },
        _ => {
            let place = phase.place("type");
            return Err(format!(
                "{place}: `{kind}` is not supported: expected concurrency, poisson, gamma or constant"
            ));
        }
    };
    let rate = phase.needed_number("rate")?;
    let ramp_ns = if phase.is_map("rate_ramp") {
        let ramp = phase.fields("rate_ramp")?;
        let mut ramp = phase.needed("rate_ramp", ramp)?;
        if let Some(strategy) = ramp.text("strategy")?.filter(|strategy| strategy != "linear") {
            return Err(format!("{}: `{strategy}` is not supported: expected linear", ramp.place("strategy")));
        }
        time_ns(&mut ramp, "duration")?
    } else {
        time_ns(phase, "rate_ramp")?
    };
    let curve = match ramp_ns {
        None => Curve::constant(rate),
        Some(ramp_ns) => {
            let rest_ns = duration.map_or(FOREVER_NS, |duration_ns| duration_ns.saturating_sub(ramp_ns));
            Curve::stages(0.0, &[(ramp_ns, rate), (rest_ns, rate)])
        }
    };
    Ok((open_loop(curve, gaps, limit), limit, concurrency))
}

/// Reads a number of seconds, or a text such as `5m`.
fn time_ns(fields: &mut Fields, key: &str) -> Result<Option<u64>, String> {
    let place = fields.place(key);
    let expected = || format!("{place}: expected seconds, or a time such as 5m");
    let Some(value) = fields.take(key) else { return Ok(None) };
    match (value.as_f64(), value.as_str()) {
        (Some(seconds), _) if (0.0..=1e9).contains(&seconds) => Ok(Some((seconds * 1e9) as u64)),
        (_, Some(text)) => duration_ns(text).map(Some).map_err(|_| expected()),
        _ => Err(expected()),
    }
}

fn data(benchmark: &mut Fields, ignored: &mut Vec<String>) -> Result<RequestMix, String> {
    let mut sets = benchmark.list("datasets")?;
    sets.extend(benchmark.fields("dataset")?);
    let [mut data] = <[Fields; 1]>::try_from(sets)
        .map_err(|sets| format!("{}: expected one, found {}", benchmark.place("dataset"), sets.len()))?;
    let kind = data.text("type")?.unwrap_or_else(|| "synthetic".to_owned());
    if kind != "synthetic" {
        let place = data.place("type");
        return Err(format!("{place}: `{kind}` is not supported: expected synthetic; replay files with trace(...)"));
    }
    for changed in ["images", "audio", "video", "rankings"] {
        if data.take(changed).is_some() {
            return Err(format!("{}: is not supported", data.place(changed)));
        }
    }
    let mut prompts = data.fields("prompts")?;
    let mut lengths = |key: &str| -> Result<Lengths, String> {
        let of_data = data.spread(key)?;
        let spread = match (of_data, &mut prompts) {
            (None, Some(prompts)) => prompts.spread(key)?,
            (spread, _) => spread,
        };
        let Spread { mean, std, min, max } = data.needed(key, spread)?;
        normal(mean, std, min, max)
    };
    let (prompt_tokens, output_tokens) = (lengths("isl")?, lengths("osl")?);
    let ratio = data.number("turn_delay_ratio")?.unwrap_or(1.0);
    let mut drawn = |key: &str, without: f64, factor: f64| -> Result<Distribution, String> {
        Ok(match data.spread(key)? {
            None => Distribution::Constant { value: without },
            Some(Spread { mean, std: 0.0, .. }) => Distribution::Constant { value: mean * factor },
            Some(Spread { mean, std, .. }) => Distribution::Normal { mean: mean * factor, std: std * factor },
        })
    };
    let (turns, think_time_ms) = (drawn("turns", 1.0, 1.0)?, drawn("turn_delay", 0.0, ratio)?);
    let mut mix = RequestMix { turns, think_time_ms, ..RequestMix::new(prompt_tokens, output_tokens) };
    if let Some(mut prefix) = data.fields("prefix_prompts")? {
        let tokens = |tokens: u64| u32::try_from(tokens).map_err(|_| "prefix_prompts: is too long".to_owned());
        mix.prefix_groups = tokens(prefix.whole("pool_size")?.unwrap_or(1).max(1))?;
        mix.shared_prefix_tokens = tokens(prefix.whole("length")?.unwrap_or(0))?;
        prefix.finish(ignored);
    }
    if let Some(prompts) = &prompts {
        prompts.finish(ignored);
    }
    data.finish(ignored);
    Ok(mix)
}

/// Converts the keys of all levels to snake case, because aiperf accepts both spellings.
fn snake_case(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let key = |key: &String| {
                let mut own = String::with_capacity(key.len());
                for letter in key.chars() {
                    if letter.is_ascii_uppercase() {
                        own.push('_');
                    }
                    own.push(letter.to_ascii_lowercase());
                }
                own
            };
            Value::Object(fields.iter().map(|(name, value)| (key(name), snake_case(value))).collect::<Map<_, _>>())
        }
        Value::Array(values) => values.iter().map(snake_case).collect(),
        other => other.clone(),
    }
}
