//! The answer of a plan: its rows, their growth with the load, and the rows that hold despite latency model errors.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::plan::bound::{Alone, word_after};
use crate::plan::growth::{Growth, growth};
use crate::plan::halt::{Halt, in_time, too_soon};
use crate::plan::host::of_host;
use crate::plan::inputs::Inputs;
use crate::plan::kept::{Kept, kept};
use crate::plan::load::{Cut, Facts};
use crate::plan::others::{FamilyResult, result};
use crate::plan::script::Case;
use crate::plan::search::{Family, Found, Probe, Simulate, search};
use crate::plan::simulate::{Numbers, Simulated, Simulator};
use crate::plan::space::{LeftOut, Mode, Shape};
use crate::refusal::Refusal;

/// Version of the JSON of a plan.
pub(crate) const SCHEMA_VERSION: u32 = 1;
/// Largest number of rows.
const MAX_ROWS: usize = 10;
/// Number of families of which larger deployments are simulated for the front.
const WIDER: usize = 3;
/// Largest factors by which steps took longer than predicted: 1 / (1 - error), where the error is the share of the
/// measured time that the prediction lacked (33, 28 and 9 %; see docs/concepts/latency-models.md).
const SLOWER: [(&str, f64); 3] = [("roofline", 1.49), ("tables", 1.39), ("fitted", 1.1)];
/// The factor for other latency models.
const SLOWER_OTHER: f64 = 1.49;
/// A safe row may cost at most this factor, times the error factor, more than the first row.
const SAFE_WITHIN: f64 = 2.0;
/// Share of a limit from which the limit counts as binding.
const FULL: f64 = 0.99;

/// A simulated deployment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Row number, from 1.
    pub(crate) number: usize,
    pub(crate) deployment: Shape,
    /// Number of engines, or of groups of prefill and decode engines.
    pub(crate) replicas: u32,
    /// Number of leading requests that were simulated, if the search ended before the whole load was.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) requests: Option<u64>,
    pub(crate) gpus: u32,
    pub(crate) price_per_hour_usd: f64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) price_per_million_output_tokens_usd: Option<f64>,
    pub(crate) objectives: Vec<Kept>,
    /// Headroom of the tightest objective.
    pub(crate) headroom: f64,
    pub(crate) utilisation: f64,
    pub(crate) kv_peak_usage: f64,
    /// The binding limit: `kv_blocks`, `sequences`, `link`, `compute` or `bandwidth`.
    pub(crate) limited_by: String,
    pub(crate) output_tokens_per_s_per_gpu: f64,
    /// Output tokens per second of one request: 1 / mean ITL.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) tokens_per_s_per_user: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) ttft_ms_p95: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) itl_ms_p99: Option<f64>,
    /// Whether no other row has a lower price and lower latencies.
    pub(crate) on_front: bool,
    /// Whether the objectives hold if steps are longer by the latency model's error; absent if not simulated.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) holds_if_slower: Option<bool>,
    /// Fingerprint of the run.
    pub(crate) fingerprint: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    pub(crate) schema_version: u32,
    pub(crate) vcr_version: &'static str,
    pub(crate) question: Inputs,
    pub(crate) load: Facts,
    /// Whether any deployment keeps all objectives.
    pub(crate) feasible: bool,
    pub(crate) latency_model: String,
    /// Feasible deployments, the cheapest first.
    pub(crate) rows: Vec<Row>,
    /// If no deployment is feasible, the one nearest to the objectives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nearest: Option<Row>,
    /// The factor on step times for `holds_if_slower`.
    pub(crate) slower: f64,
    /// Number of the first row that keeps the objectives with slower steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) safe_row: Option<usize>,
    pub(crate) growth: Vec<Growth>,
    /// Effect of host memory for KV on the first row, as a sentence; absent if the space has no host memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host_memory: Option<String>,
    pub(crate) families: Vec<FamilyResult>,
    pub(crate) left_out: Vec<LeftOut>,
    /// Number of deployments in the space, counting replicas separately.
    pub(crate) deployments: u64,
    pub(crate) simulations: usize,
    /// Those that an earlier process has made: the answer in JSON does not depend on them.
    #[serde(skip)]
    pub(crate) made_earlier: usize,
    /// Requests of all simulations.
    pub(crate) simulated_requests: u64,
    /// Number of requests simulated by the search alone.
    pub(crate) searched_requests: u64,
    /// The cause that ended the search or the answer early: `--budget`, `--timeout` or a signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cut_by: Option<&'static str>,
}

/// The results of the search.
pub(crate) struct Searched<'a> {
    pub(crate) simulator: &'a Simulator<'a>,
    pub(crate) facts: Facts,
    pub(crate) families: Vec<Family>,
    pub(crate) alones: Vec<Alone>,
    pub(crate) found: Vec<Found>,
    pub(crate) left_out: Vec<LeftOut>,
    /// Whether all families were left out, and `families` has only the nearest of them.
    pub(crate) only_nearest: bool,
}

impl Searched<'_> {
    pub(crate) fn plan(self) -> Result<Plan, Refusal> {
        let (simulator, inputs) = (self.simulator, self.simulator.inputs);
        let (_, searched_requests) = simulator.spent();
        in_time(self.widen())?;
        let mut rows = self.rows();
        let nearest = if rows.is_empty() { self.nearest()? } else { None };
        if let Some(cause) = simulator.cut_by().filter(|_| rows.is_empty() && nearest.is_none()) {
            return Err(too_soon(cause));
        }
        let all = (0..=simulator.whole()).flat_map(|part| simulator.of_part(part));
        let latency = all.map(|(_, one)| one.latency.clone()).find(|name| !name.is_empty()).unwrap_or_default();
        let slower = SLOWER.iter().find(|(name, _)| *name == latency).map_or(SLOWER_OTHER, |(_, factor)| *factor);
        let safe_row = in_time(self.try_slower(&mut rows, slower))?.flatten();
        mark_front(&mut rows);
        let first = rows.first().map(|row| (&row.deployment, row.replicas));
        let host_memory = match (first, rows.first()) {
            (Some(first), Some(row)) => in_time(of_host(simulator, &self.facts, first, row.requests))?.flatten(),
            _ => None,
        };
        // Growth needs the result of the whole load.
        let first = first.filter(|_| rows[0].requests.is_none());
        let growth = first.map(|first| growth(simulator, &self.families, &self.found, first)).transpose()?;
        let first = rows.first().map(|row| row.price_per_hour_usd);
        let known = if self.only_nearest { &[][..] } else { &self.families };
        let families =
            known.iter().zip(&self.found).map(|(family, found)| result(simulator, family, found, first)).collect();
        let deployments = known
            .iter()
            .map(|family| family.shapes.len() as u64 * u64::from(family.most - family.fewest + 1))
            .sum::<u64>();
        let (simulations, simulated_requests) = simulator.spent();
        Ok(Plan {
            schema_version: SCHEMA_VERSION,
            vcr_version: env!("CARGO_PKG_VERSION"),
            question: inputs.clone(),
            feasible: !rows.is_empty(),
            latency_model: latency,
            rows,
            nearest,
            slower,
            safe_row,
            growth: growth.unwrap_or_default(),
            host_memory,
            families,
            left_out: self.left_out,
            load: self.facts,
            deployments,
            simulations,
            made_earlier: simulator.made_earlier(),
            simulated_requests,
            searched_requests,
            cut_by: simulator.cut_by(),
        })
    }

    fn family_of(&self, shape: usize) -> usize {
        self.families.iter().position(|family| family.shapes.contains(&shape)).unwrap_or(0)
    }

    /// Simulates larger deployments of the cheapest families, because they have lower latencies.
    fn widen(&self) -> Result<(), Halt> {
        let least = self.families.iter().zip(&self.found).filter_map(|(family, found)| match *found {
            Found::Least { shape, replicas } => {
                Some((family.price * f64::from(replicas), shape, replicas, family.most))
            }
            _ => None,
        });
        let mut least: Vec<_> = least.collect();
        least.sort_by(|a, b| a.0.total_cmp(&b.0));
        let probes = least.into_iter().take(WIDER).flat_map(|(_, shape, replicas, most)| {
            let more = [replicas + 1, replicas * 2].into_iter().filter(move |more| *more <= most);
            more.map(move |replicas| Probe { shape, replicas, part: self.simulator.whole() })
        });
        self.simulator.all(&probes.collect::<Vec<_>>()).map(|_| ())
    }

    /// The rows of the whole load, or of the longest part of it if the search ended early.
    fn rows(&self) -> Vec<Row> {
        let whole = self.simulator.whole();
        let first = if self.found.contains(&Found::Unfinished) { 0 } else { whole };
        let all = (first..=whole).rev().map(|part| self.rows_of(part));
        all.into_iter().find(|rows| !rows.is_empty()).unwrap_or_default()
    }

    /// The deployments that keep all objectives on a part of the load, the cheapest first. There is one row, with the
    /// best flags, for each family and number of replicas. Deployments that fail on a longer part are excluded.
    fn rows_of(&self, part: usize) -> Vec<Row> {
        let mut best: BTreeMap<(usize, u32), (Probe, Arc<Simulated>)> = BTreeMap::new();
        let longer = (part + 1..=self.simulator.whole()).flat_map(|longer| self.simulator.of_part(longer));
        let longer: Vec<_> = longer.filter(|(_, one)| !one.score.passed).collect();
        let breaks = |probe: &Probe| {
            longer.iter().any(|(other, _)| other.shape == probe.shape && other.replicas >= probe.replicas)
        };
        for (probe, one) in self.simulator.of_part(part) {
            if breaks(&probe) {
                continue;
            }
            let key = (self.family_of(probe.shape), probe.replicas);
            let is_better = best.get(&key).is_none_or(|(_, known)| one.score.headroom > known.score.headroom);
            if one.score.passed && is_better {
                best.insert(key, (probe, one));
            }
        }
        let mut rows: Vec<Row> = best.values().map(|(probe, one)| self.row(*probe, one)).collect();
        sort(&mut rows);
        rows.truncate(MAX_ROWS);
        rows
    }

    /// The deployment nearest to the objectives.
    fn nearest(&self) -> Result<Option<Row>, Refusal> {
        let whole = self.simulator.whole();
        let tried = self.found.iter().filter_map(|found| match *found {
            Found::Infeasible { shape, replicas, .. } => Some(Probe { shape, replicas, part: whole }),
            _ => None,
        });
        in_time(self.simulator.all(&tried.collect::<Vec<_>>()))?;
        if self.simulator.inputs.objectives.iter().any(|one| one.hurts()) {
            in_time(self.fewer())?;
        }
        let mut parts = (0..=whole).rev().map(|part| self.simulator.of_part(part));
        let all = parts.find(|all| !all.is_empty()).unwrap_or_default();
        let best = all.iter().max_by(|a, b| a.1.score.headroom.total_cmp(&b.1.score.headroom));
        match best {
            Some((_, one)) if one.refused.is_some() => {
                let reason = one.refused.as_deref().unwrap_or_default();
                Err(Refusal::input(format!("no deployment can be simulated: {reason}")))
            }
            best => Ok(best.map(|(probe, one)| self.row(*probe, one))),
        }
    }

    /// Simulates fewer replicas of the nearest families. If more replicas hurt an objective, fewer may be nearer.
    fn fewer(&self) -> Result<(), Halt> {
        let mut tried: Vec<(f64, &Family, usize)> = Vec::new();
        for (family, found) in self.families.iter().zip(&self.found) {
            let Found::Infeasible { shape, replicas, .. } = *found else { continue };
            let probe = Probe { shape, replicas, part: self.simulator.whole() };
            tried.extend(self.simulator.known(&probe).map(|one| (one.score.headroom, family, shape)));
        }
        tried.sort_by(|a, b| b.0.total_cmp(&a.0));
        let probes = tried.iter().take(WIDER).flat_map(|(_, family, shape)| {
            let doubled = std::iter::successors(Some(family.fewest), |replicas| replicas.checked_mul(2));
            let (shape, part) = (*shape, self.simulator.whole());
            doubled.take_while(|replicas| *replicas < family.most).map(move |replicas| Probe { shape, replicas, part })
        });
        self.simulator.all(&probes.collect::<Vec<_>>()).map(|_| ())
    }

    fn row(&self, probe: Probe, one: &Simulated) -> Row {
        let shape = &self.simulator.shapes[probe.shape];
        let gpus = shape.gpus() * probe.replicas;
        let numbers = one.numbers;
        Row {
            number: 1,
            deployment: shape.clone(),
            replicas: probe.replicas,
            requests: self.simulator.parts[probe.part],
            gpus,
            price_per_hour_usd: shape.price() * f64::from(probe.replicas),
            price_per_million_output_tokens_usd: numbers.price_per_million_output_tokens_usd,
            objectives: kept(one),
            headroom: one.score.headroom,
            utilisation: numbers.utilisation,
            kv_peak_usage: numbers.kv_peak_usage,
            limited_by: limit(shape, &self.alones[self.family_of(probe.shape)], &numbers).to_owned(),
            output_tokens_per_s_per_gpu: numbers.output_tokens_per_s / f64::from(gpus),
            tokens_per_s_per_user: numbers.itl_ms_mean.filter(|mean| *mean > 0.0).map(|mean| 1e3 / mean),
            ttft_ms_p95: numbers.ttft_ms_p95,
            itl_ms_p99: numbers.itl_ms_p99,
            on_front: false,
            holds_if_slower: None,
            fingerprint: one.fingerprint.clone(),
        }
    }

    /// Returns the number of a row that holds with slower steps: the first row if it holds. Otherwise adds a row with
    /// the cheapest deployment that holds.
    fn try_slower(&self, rows: &mut Vec<Row>, slower: f64) -> Result<Option<usize>, Halt> {
        let Some(first) = rows.first_mut() else { return Ok(None) };
        let cut = Cut { requests: first.requests, factor: 1.0 };
        let case = Case { shape: &first.deployment, replicas: first.replicas, cut, slower };
        let holds = self.simulator.case(&case)?.score.passed;
        first.holds_if_slower = Some(holds);
        if holds {
            return Ok(Some(first.number));
        }
        if self.simulator.is_over() {
            return Ok(None);
        }
        let simulator = self.simulator.with_slower(slower);
        // If this deployment costs more than the limit, search again up to its price: other families may be cheaper.
        let limit = first.price_per_hour_usd * slower * SAFE_WITHIN;
        let safe = match self.safe_within(&simulator, limit)? {
            Some((price, ..)) if price > limit => self.safe_within(&simulator, price)?,
            safe => safe,
        };
        let Some((_, shape, replicas)) = safe else { return Ok(None) };
        let probe = Probe { shape, replicas, part: self.simulator.whole() };
        let one = self.simulator.of(probe)?;
        let row = Row { holds_if_slower: Some(true), ..self.row(probe, &one) };
        let is_row = |known: &Row| known.deployment == row.deployment && known.replicas == row.replicas;
        rows.retain(|known| !is_row(known));
        rows.push(row.clone());
        sort(rows);
        Ok(rows.iter().find(|known| is_row(known)).map(|known| known.number))
    }

    /// The cheapest deployment within `limit` that holds on a slower simulator: its price, shape and replicas.
    fn safe_within(&self, simulator: &Simulator<'_>, limit: f64) -> Result<Option<(f64, usize, u32)>, Halt> {
        let may_be_safe = |(family, found): &(&Family, &Found)| match **found {
            Found::Dearer { replicas, .. } => family.price * f64::from(replicas) <= limit,
            Found::Infeasible { .. } => false,
            Found::Least { .. } | Found::Unfinished => true,
        };
        let families = self.families.iter().zip(&self.found).filter(may_be_safe);
        let families: Vec<Family> = families.map(|(family, _)| family.clone()).collect();
        let mut found = Vec::new();
        in_time(search(simulator, &families, simulator.parts.len(), &mut found))?;
        let safe = families.iter().zip(&found).filter_map(|(family, found)| match *found {
            Found::Least { shape, replicas } => Some((family.price * f64::from(replicas), shape, replicas)),
            _ => None,
        });
        Ok(safe.min_by(|a, b| a.0.total_cmp(&b.0)))
    }
}

/// The limit of a deployment that must grow first.
fn limit(shape: &Shape, alone: &Alone, numbers: &Numbers) -> &'static str {
    let most_seqs = word_after(&shape.flags, "--max-num-seqs").unwrap_or(f64::INFINITY);
    let computed_tokens = numbers.prompt_tokens.saturating_sub(numbers.cached_tokens);
    let prompts_s = computed_tokens as f64 / alone.prompt_tokens_per_s.max(1.0);
    let busy_s = numbers.utilisation * numbers.engines as f64 * numbers.duration_ms / 1e3;
    if numbers.kv_peak_usage >= FULL || numbers.preemptions > 0 {
        "kv_blocks"
    } else if numbers.largest_batch >= most_seqs {
        "sequences"
    } else if shape.mode != Mode::Aggregated && numbers.link_utilisation >= FULL {
        "link"
    } else if prompts_s > busy_s / 2.0 {
        "compute"
    } else {
        "bandwidth"
    }
}

/// Sorts rows by price and numbers them.
fn sort(rows: &mut [Row]) {
    rows.sort_by(|a, b| {
        let by_price = a.price_per_hour_usd.total_cmp(&b.price_per_hour_usd);
        by_price.then(a.gpus.cmp(&b.gpus)).then(b.headroom.total_cmp(&a.headroom))
    });
    for (index, row) in rows.iter_mut().enumerate() {
        row.number = index + 1;
    }
}

/// Marks the rows that no other row beats in price, TTFT and ITL.
fn mark_front(rows: &mut [Row]) {
    let key = |row: &Row| [Some(row.price_per_hour_usd), row.ttft_ms_p95, row.itl_ms_p99];
    let keys: Vec<[f64; 3]> = rows.iter().map(|row| key(row).map(|value| value.unwrap_or(f64::INFINITY))).collect();
    for (index, row) in rows.iter_mut().enumerate() {
        let own = keys[index];
        let beats = |other: &[f64; 3]| {
            other.iter().zip(&own).all(|(other, own)| other <= own) && other.iter().zip(&own).any(|(a, b)| a < b)
        };
        row.on_front = !keys.iter().any(beats);
    }
}
