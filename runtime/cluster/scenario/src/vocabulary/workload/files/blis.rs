//! WorkloadSpec version 2 of BLIS (inference-sim).

use std::sync::Arc;

use vcr_base::random::{Distribution, weibull_shape};
use vcr_cluster::{Arrivals, Curve, Gaps, Histogram, Lengths, Limit, Piece, RequestMix, Slo, WorkloadConfig};

use super::{Fields, normal, open_loop, synthetic};

const NS_PER_US: u64 = 1000;

/// Settings that all clients of a file share.
struct Whole {
    rate_per_s: f64,
    num_requests: Option<u64>,
    horizon_ns: Option<u64>,
    /// Names of tenants, which are numbered from 1.
    tenants: Vec<String>,
    prefix_groups: Vec<String>,
}

pub(super) fn workloads(file: &mut Fields, ignored: &mut Vec<String>) -> Result<Vec<WorkloadConfig>, String> {
    if let Some(version) = file.take("version").map(|version| version.to_string())
        && version.trim_matches('"') != "2"
    {
        return Err(format!("version: {version} is not supported: expected \"2\""));
    }
    for foreign in ["servegen_data", "inference_perf"] {
        if file.take(foreign).is_some() {
            return Err(format!("{foreign}: is not supported: expected `clients` or `cohorts`"));
        }
    }
    // The category only describes the clients.
    file.take("category");
    let mut whole = Whole {
        rate_per_s: file.needed_number("aggregate_rate")?,
        num_requests: file.whole("num_requests")?.filter(|count| *count > 0),
        horizon_ns: file.whole("horizon")?.map(|us| us.saturating_mul(NS_PER_US)),
        tenants: Vec::new(),
        prefix_groups: Vec::new(),
    };
    if whole.num_requests.is_none() && whole.horizon_ns.is_none() {
        return Err("it has no end: expected `num_requests`, `horizon` or both".to_owned());
    }
    let mut workloads = Vec::new();
    for (kind, list) in [("client", file.list("clients")?), ("cohort", file.list("cohorts")?)] {
        for (index, mut fields) in list.into_iter().enumerate() {
            let population = if kind == "cohort" { fields.whole("population")?.unwrap_or(1) } else { 1 };
            let name = fields.text("id")?.unwrap_or_else(|| format!("{kind} {}", index + 1));
            workloads.push(whole.client(&name, population, &mut fields, ignored)?);
            fields.finish(ignored);
        }
    }
    Ok(workloads)
}

impl Whole {
    /// Reads a client, or a population of identical clients.
    fn client(
        &mut self,
        name: &str,
        population: u64,
        fields: &mut Fields,
        ignored: &mut Vec<String>,
    ) -> Result<WorkloadConfig, String> {
        let share = fields.needed_number("rate_fraction")? * population as f64;
        let limit = Limit {
            count: self.num_requests.map(|all| ((all as f64 * share).round() as u64).max(1)),
            duration_ns: self.horizon_ns,
        };
        let arrivals = match fields.whole("concurrency")?.filter(|users| *users > 0) {
            Some(users) => {
                fields.take("arrival");
                Arrivals::ClosedLoop { concurrency: users.saturating_mul(population), limit }
            }
            None => open_loop(rate(fields, self.rate_per_s * share)?, gaps(fields)?, limit),
        };
        let [prompt_tokens, output_tokens] =
            [lengths(fields, "input_distribution", ignored)?, lengths(fields, "output_distribution", ignored)?];
        let mut mix = RequestMix::new(prompt_tokens, output_tokens);
        let group = fields.text("prefix_group")?;
        if let Some(tokens) = fields.whole("prefix_length")? {
            mix.shared_prefix_tokens =
                u32::try_from(tokens).map_err(|_| format!("{}: is too long", fields.place("prefix_length")))?;
        }
        if let Some(group) = group {
            if self.prefix_groups.contains(&group) {
                ignored.push(format!("{} (prefixes are shared within a client only)", fields.place("prefix_group")));
            }
            self.prefix_groups.push(group);
        }
        if let Some(mut reasoning) = fields.fields("reasoning")? {
            if let Some(mut turns) = reasoning.fields("multi_turn")? {
                let rounds = turns.needed_number("max_rounds")?;
                mix.turns = Distribution::Constant { value: rounds.max(1.0) };
                let think_us = turns.number("think_time_us")?.unwrap_or(0.0);
                mix.think_time_ms = Distribution::Constant { value: think_us / 1e3 };
                // In a simulation, contexts always accumulate.
                if let Some(growth) = turns.text("context_growth")?.filter(|growth| growth != "accumulate") {
                    ignored.push(format!("{} ({growth})", turns.place("context_growth")));
                }
                turns.finish(ignored);
            }
            reasoning.finish(ignored);
        }
        let mut workload = synthetic(name, arrivals, mix);
        if let Some(tenant) = fields.text("tenant_id")? {
            let known = self.tenants.iter().position(|other| *other == tenant);
            workload.tenant = 1 + known.unwrap_or(self.tenants.len()) as u64;
            if known.is_none() {
                self.tenants.push(tenant);
            }
        }
        let class = fields.text("slo_class")?.filter(|class| !class.is_empty());
        workload.slo = class.map(|class| Slo { class, ttft_ns: None, tpot_ns: None, e2e_ns: None });
        Ok(workload)
    }
}

/// The rate of a client: constant, or only within its windows.
fn rate(fields: &mut Fields, rate_per_s: f64) -> Result<Curve, String> {
    let Some(mut lifecycle) = fields.fields("lifecycle")? else { return Ok(Curve::constant(rate_per_s)) };
    let mut pieces = Vec::new();
    let mut now_ns = 0;
    for mut window in lifecycle.list("windows")? {
        let [start_ns, end_ns] = ["start_us", "end_us"].map(|key| {
            let us = window.whole(key)?;
            window.needed(key, us).map(|us| us.saturating_mul(NS_PER_US))
        });
        let (start_ns, end_ns) = (start_ns?, end_ns?);
        if start_ns < now_ns || end_ns < start_ns {
            return Err(format!("{}: expected windows one after another", window.place("start_us")));
        }
        pieces.push(Piece::level(start_ns - now_ns, 0.0));
        pieces.push(Piece::level(end_ns - start_ns, rate_per_s));
        now_ns = end_ns;
    }
    Ok(Curve::once(pieces))
}

fn gaps(fields: &mut Fields) -> Result<Gaps, String> {
    let arrival = fields.fields("arrival")?;
    let mut arrival = fields.needed("arrival", arrival)?;
    let process = arrival.text("process")?;
    let process = arrival.needed("process", process)?;
    let mut variation = || -> Result<f64, String> {
        let cv = arrival.needed_number("cv")?;
        let is_known = (0.01..=10.4).contains(&cv);
        is_known.then_some(cv).ok_or_else(|| format!("{}: expected 0.01 to 10.4, found {cv}", arrival.place("cv")))
    };
    match process.as_str() {
        "constant" => Ok(Gaps::Even),
        "poisson" => Ok(Gaps::Exponential),
        "gamma" => variation().map(|cv| Gaps::Gamma { shape: 1.0 / (cv * cv) }),
        "weibull" => variation().map(|cv| Gaps::Weibull { shape: weibull_shape(cv) }),
        other => Err(format!(
            "{}: `{other}` is not supported: expected poisson, gamma, weibull or constant",
            arrival.place("process")
        )),
    }
}

fn lengths(fields: &mut Fields, key: &str, ignored: &mut Vec<String>) -> Result<Lengths, String> {
    let spec = fields.fields(key)?;
    let mut spec = fields.needed(key, spec)?;
    let kind = spec.text("type")?;
    let kind = spec.needed("type", kind)?;
    let params = spec.fields("params")?;
    let mut params = spec.needed("params", params)?;
    let lengths = match kind.as_str() {
        "gaussian" => {
            let [mean, std] = [params.needed_number("mean")?, params.needed_number("std_dev")?];
            let (min, max) = (params.number("min")?, params.number("max")?);
            normal(mean, std, min, max)?
        }
        "exponential" => Lengths::Drawn(Distribution::Exponential { mean: params.needed_number("mean")? }),
        "lognormal" => {
            let [mu, sigma] = [params.needed_number("mu")?, params.needed_number("sigma")?];
            Lengths::Drawn(Distribution::log_normal_of_logarithms(mu, sigma))
        }
        "constant" => Lengths::Drawn(Distribution::Constant { value: params.needed_number("value")? }),
        "empirical" => {
            let place = spec.place("params");
            let ranges = params.into_numbers()?.into_iter().map(|(length, share)| {
                let length = length
                    .parse::<u32>()
                    .map_err(|_| format!("{place}: invalid length `{length}`: expected a number of tokens"))?;
                Ok((length, length, share))
            });
            let ranges = ranges.collect::<Result<Vec<_>, String>>()?;
            let histogram = Histogram::new(&ranges).map_err(|problem| format!("{place}: {problem}"))?;
            return Ok(Lengths::Counted(Arc::new(histogram)));
        }
        other => {
            return Err(format!(
                "{}: `{other}` is not supported: expected gaussian, exponential, lognormal, constant or empirical",
                spec.place("type")
            ));
        }
    };
    params.finish(ignored);
    spec.finish(ignored);
    Ok(lengths)
}
