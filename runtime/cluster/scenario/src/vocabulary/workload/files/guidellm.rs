//! Scenarios of guidellm.

use serde_json::{Map, Value};
use vcr_base::random::Distribution;
use vcr_cluster::{Arrivals, Branch, BranchedInput, Lengths, Limit, RequestMix, WorkloadConfig};

use super::{Fields, normal, synthetic};

/// The concurrency of guidellm's mode `throughput`.
const THROUGHPUT_CONCURRENCY: u64 = 512;

pub(super) fn workloads(file: &mut Fields, ignored: &mut Vec<String>) -> Result<Vec<WorkloadConfig>, String> {
    flatten(file, ignored)?;
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
    let max_requests = file.whole("max_requests")?;
    let data = data(file, ignored)?;
    let conversations = max_requests.map(|requests| requests.div_ceil(data.num_requests()));
    let limit = Limit { count: conversations, duration_ns: max_seconds.map(|seconds| (seconds * 1e9) as u64) };
    if data.num_requests() > 1 && matches!(kind.as_str(), "constant" | "async" | "poisson") {
        return Err("rate_type: expected concurrent, synchronous or throughput with several turns".to_owned());
    }
    if !data.is_plain() {
        return data.workload(&kind, &rates, conversations).map(|workload| vec![workload]);
    }
    let mix = data.mix();
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

/// Converts the fields of a version 0.8 file to those of earlier versions.
fn flatten(file: &mut Fields, ignored: &mut Vec<String>) -> Result<(), String> {
    let Some(mut spec) = file.fields("spec")? else { return Ok(()) };
    file.take("metadata");
    let profile = spec.fields("profile")?;
    let mut profile = spec.needed("profile", profile)?;
    let kind = profile.text("kind")?;
    let kind = profile.needed("kind", kind)?;
    let key = match kind.as_str() {
        "concurrent" => "streams",
        "throughput" => "max_concurrency",
        _ => "rate",
    };
    if kind != "throughput" && profile.take("max_concurrency").is_some() {
        return Err(format!("{}: is not supported", profile.place("max_concurrency")));
    }
    let listed = |value: Value| value.as_array().cloned().unwrap_or_else(|| vec![value]);
    let mut rates = profile.take(key).map(listed).unwrap_or_default();
    for mut benchmark in file.list("benchmarks")? {
        let own = format!("profile.{key}");
        rates.extend(benchmark.take(&own).map(listed).unwrap_or_default());
        let mut others = Vec::new();
        benchmark.finish(&mut others);
        if let Some(other) = others.first() {
            return Err(format!("{other}: is not supported: expected {own}"));
        }
    }
    for mut constraint in spec.list("constraints")? {
        let kind = constraint.text("kind")?;
        let (key, value) = match kind.as_deref() {
            Some("max_duration") => ("max_seconds", constraint.needed_number("seconds")?),
            Some("max_requests") => ("max_requests", constraint.needed_number("count")?),
            _ => {
                ignored.push(constraint.place("kind"));
                continue;
            }
        };
        constraint.finish(ignored);
        file.set(key, value.into());
    }
    let sets = spec.take("data").map(listed).unwrap_or_default();
    let [data] = <[Value; 1]>::try_from(sets)
        .map_err(|sets| format!("{}: expected one source, found {}", spec.place("data"), sets.len()))?;
    profile.finish(ignored);
    spec.finish(ignored);
    file.set("rate_type", kind.into());
    file.set("data", data);
    if !rates.is_empty() {
        file.set("rate", rates.into());
    }
    Ok(())
}

/// Conversations: their lengths, turns and branches.
struct Data {
    prompt_tokens: Lengths,
    output_tokens: Lengths,
    /// Lengths of the first turn, if they differ.
    first: [Option<Lengths>; 2],
    turns: u32,
    branches: Vec<Branch>,
    think_time_ms: Distribution,
    prefix_tokens: u32,
    prefix_groups: u32,
}

impl Data {
    fn num_requests(&self) -> u64 {
        u64::from(self.turns) + self.branches.iter().map(|branch| u64::from(branch.turns)).sum::<u64>()
    }

    /// Whether there are no branches and all turns have the same lengths.
    fn is_plain(&self) -> bool {
        self.branches.is_empty() && self.first.iter().all(Option::is_none)
    }

    fn mix(&self) -> RequestMix {
        RequestMix {
            shared_prefix_tokens: self.prefix_tokens,
            prefix_groups: self.prefix_groups,
            turns: Distribution::Constant { value: self.turns.into() },
            think_time_ms: self.think_time_ms,
            ..RequestMix::new(self.prompt_tokens.clone(), self.output_tokens.clone())
        }
    }

    /// The workload of conversations that must be planned before the run.
    fn workload(self, kind: &str, rates: &[f64], conversations: Option<u64>) -> Result<WorkloadConfig, String> {
        let concurrency = match (kind, rates) {
            ("synchronous", _) => 1,
            (_, [rate]) if rate.fract() == 0.0 => *rate as u64,
            ("throughput", []) => THROUGHPUT_CONCURRENCY,
            _ => return Err("rate: expected one whole number with branches".to_owned()),
        };
        if self.think_time_ms != (Distribution::Constant { value: 0.0 }) {
            return Err("data.delay: expected none with branches".to_owned());
        }
        let count = conversations.and_then(|count| u32::try_from(count).ok());
        let count = count.ok_or("max_requests: expected a number of requests with branches")?;
        let [first_prompt_tokens, first_output_tokens] = self.first;
        let input = BranchedInput {
            count,
            concurrency,
            turns: self.turns,
            first_prompt_tokens: first_prompt_tokens.unwrap_or_else(|| self.prompt_tokens.clone()),
            first_output_tokens: first_output_tokens.unwrap_or_else(|| self.output_tokens.clone()),
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            prefix_tokens: self.prefix_tokens,
            prefix_groups: self.prefix_groups,
            branches: self.branches,
            seed: 1,
        };
        Ok(WorkloadConfig::new(kind, input.source().map_err(|problem| format!("data: {problem}"))?))
    }
}

/// Reads `data`: fields, their JSON, or pairs such as `prompt_tokens=256,output_tokens=128`.
fn data(file: &mut Fields, ignored: &mut Vec<String>) -> Result<Data, String> {
    let data = file.take("data");
    let data = match file.needed("data", data)? {
        Value::String(text) if text.trim_start().starts_with('{') => {
            serde_json::from_str(&text).map_err(|error| format!("data: {error}"))?
        }
        Value::String(text) => pairs(&text)?,
        other => other,
    };
    let mut data = Fields::of("data", &data)?;
    if let Some(kind) = data.text("kind")?.filter(|kind| kind != "synthetic_text") {
        return Err(format!("data.kind: `{kind}` is not supported: expected synthetic_text"));
    }
    for changed in ["tool_call_turns", "server_tool_call_turns"] {
        if data.take(changed).is_some_and(|turns| turns != 0 && turns != Value::Array(Vec::new())) {
            return Err(format!("data.{changed}: is not supported"));
        }
    }
    let [prompt, output] = ["prompt_tokens", "output_tokens"].map(|name| {
        let lengths = lengths(&mut data, name)?;
        data.needed(name, lengths)
    });
    let (prompt_tokens, output_tokens) = (prompt?, output?);
    let first = [lengths(&mut data, "first_prompt_tokens")?, lengths(&mut data, "first_output_tokens")?];
    let whole = |fields: &mut Fields, key: &str| -> Result<Option<u32>, String> {
        let number = fields.whole(key)?;
        number
            .map(|number| u32::try_from(number).map_err(|_| format!("{}: is too large", fields.place(key))))
            .transpose()
    };
    let turns = whole(&mut data, "turns")?.unwrap_or(1).max(1);
    let mut branches = Vec::new();
    for mut branch in data.list("branches")? {
        let [at_turn, branch_turns] = ["at_turn", "turns"].map(|key| {
            let number = whole(&mut branch, key)?;
            branch.needed(key, number)
        });
        let (at_turn, branch_turns, after) = (at_turn?, branch_turns?, whole(&mut branch, "merge_after")?.unwrap_or(1));
        branch.take("agent_id");
        let [of_prompt, of_output] = &first;
        let own = [lengths(&mut branch, "first_prompt_tokens")?, lengths(&mut branch, "first_output_tokens")?];
        let [first_prompt_tokens, first_output_tokens] = own;
        branches.push(Branch {
            at_turn,
            merge_turn: at_turn.saturating_add(after),
            turns: branch_turns,
            first_prompt_tokens: first_prompt_tokens.or(of_prompt.clone()).unwrap_or_else(|| prompt_tokens.clone()),
            first_output_tokens: first_output_tokens.or(of_output.clone()).unwrap_or_else(|| output_tokens.clone()),
        });
        branch.finish(ignored);
    }
    let delay_ms = data.number("delay")?.unwrap_or(0.0) * 1000.0;
    let think_time_ms = match data.number("delay_stdev")?.unwrap_or(0.0) * 1000.0 {
        0.0 => Distribution::Constant { value: delay_ms },
        std => Distribution::Normal { mean: delay_ms, std },
    };
    let mut prefix = [whole(&mut data, "prefix_tokens")?.unwrap_or(0), whole(&mut data, "prefix_count")?.unwrap_or(1)];
    match &mut data.list("prefix_buckets")?[..] {
        [] => {}
        [bucket] => {
            bucket.take("bucket_weight");
            prefix = [whole(bucket, "prefix_tokens")?.unwrap_or(0), whole(bucket, "prefix_count")?.unwrap_or(1)];
        }
        _ => return Err("data.prefix_buckets: expected one bucket".to_owned()),
    }
    let [prefix_tokens, prefix_groups] = prefix;
    let read = Data {
        prompt_tokens,
        output_tokens,
        first,
        turns,
        branches,
        think_time_ms,
        prefix_tokens,
        prefix_groups: prefix_groups.max(1),
    };
    data.finish(ignored);
    Ok(read)
}

/// Reads lengths with a mean, if the mean is given.
fn lengths(fields: &mut Fields, name: &str) -> Result<Option<Lengths>, String> {
    let Some(mean) = fields.number(name)? else { return Ok(None) };
    let mut of = |part: &str| fields.number(&format!("{name}_{part}"));
    let (std, min, max) = (of("stdev")?, of("min")?, of("max")?);
    normal(mean, std.unwrap_or(0.0), min, max).map(Some)
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
