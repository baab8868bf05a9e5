//! Summary of a run with Dynamo's definitions.

use vcr_cluster::metrics::Trend;
use vcr_cluster::{KvEviction, Report};

use super::Sla;
use super::distribution::Distribution;
use super::{Sums, Times};

#[derive(Clone, Copy, Debug, Default)]
pub struct ReportSettings {
    /// Latency limits of goodput.
    pub sla: Sla,
    /// GPUs of a prefill worker; 0 in an aggregated cluster.
    pub prefill_gpus_per_worker: u32,
    /// GPUs of every other worker.
    pub decode_gpus_per_worker: u32,
    /// Host time of the run, if it should be reported.
    pub wall_time_ms: Option<f64>,
    /// The eviction order of the workers' cached blocks.
    pub kv_eviction: KvEviction,
}

/// Throughput of the requests that met the [`Sla`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goodput {
    /// Number of completed requests that met the [`Sla`].
    pub completed_requests: u64,
    /// Requests per second.
    pub request_throughput_rps: f64,
    /// Output tokens per second.
    pub output_throughput_tok_s: f64,
}

/// Summary of a run. The fields are named like Dynamo's keys. Distributions are in milliseconds and cover completed
/// requests, unless stated otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Number of requests that arrived.
    pub num_requests: u64,
    pub completed_requests: u64,
    /// Prompt tokens of completed requests.
    pub total_input_tokens: u64,
    /// Output tokens of completed requests.
    pub total_output_tokens: u64,
    /// Virtual time at which the last request ended, completed or not.
    pub duration_ms: f64,
    /// Host time, if reported.
    pub wall_time_ms: Option<f64>,
    /// Completed requests per second of virtual time.
    pub request_throughput_rps: f64,
    /// Prompt tokens of completed requests per second.
    pub input_throughput_tok_s: f64,
    /// Output tokens of completed requests per second.
    pub output_throughput_tok_s: f64,
    /// Prompt and output tokens of completed requests per second.
    pub total_throughput_tok_s: f64,
    /// Seconds of prefill workers, summed over the workers.
    pub prefill_worker_seconds: f64,
    /// Seconds of other workers, summed over the workers.
    pub decode_worker_seconds: f64,
    /// See [`ReportSettings`].
    pub prefill_gpus_per_worker: u32,
    /// See [`ReportSettings`].
    pub decode_gpus_per_worker: u32,
    /// GPU hours, summed over all GPUs.
    pub gpu_hours: f64,
    /// Cached share of prompt tokens. For each request, the admission with the most cached tokens counts.
    pub prefix_cache_reused_ratio: f64,
    /// Cached share of prompt tokens at the first admission.
    pub first_admission_prefix_cache_reused_ratio: f64,
    /// See [`ReportSettings`].
    pub kv_eviction: KvEviction,
    /// Number of tokens computed in prefill chunks.
    pub committed_prefill_tokens: u64,
    /// Goodput, if an SLA is given.
    pub goodput: Option<Goodput>,
    /// Time from the arrival to the first token.
    pub ttft: Distribution,
    /// Time from the first to the second token.
    pub ttst: Distribution,
    /// Mean gap between the tokens of a request.
    pub tpot: Distribution,
    /// Every gap between tokens, of all requests.
    pub itl: Distribution,
    /// Time from the arrival to the last token.
    pub e2e_latency: Distribution,
    /// 1000 ms divided by every gap that is not 0, in tokens per second.
    pub output_token_throughput_per_user: Distribution,
}

impl Summary {
    /// Summarises a run.
    #[must_use]
    pub fn of(report: &Report, settings: &ReportSettings) -> Self {
        let sums = Sums::of(report, &settings.sla);
        let Times { ttft_ns, ttst_ns, e2e_ns, tpot_ms } = Times::of(report, sums.completed);
        // The warm-up is not measured.
        let began_ns = report.profile.map_or(0, |profile| profile.began_ns);
        let duration_ns = sums.end_ns.saturating_sub(began_ns);
        let seconds = duration_ns as f64 / 1e9;
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let share = |part: u64, whole: u64| if whole > 0 { part as f64 / whole as f64 } else { 0.0 };
        let (input, output) = (sums.prompt_tokens, sums.output_tokens);
        let (prefill_worker_seconds, decode_worker_seconds) = worker_seconds(report);
        let gpu_seconds = prefill_worker_seconds * f64::from(settings.prefill_gpus_per_worker)
            + decode_worker_seconds * f64::from(settings.decode_gpus_per_worker);
        Self {
            num_requests: report.num_requests(),
            completed_requests: sums.completed,
            total_input_tokens: input,
            total_output_tokens: output,
            duration_ms: duration_ns as f64 / 1e6,
            wall_time_ms: settings.wall_time_ms,
            kv_eviction: settings.kv_eviction,
            request_throughput_rps: rate(sums.completed),
            input_throughput_tok_s: rate(input),
            output_throughput_tok_s: rate(output),
            total_throughput_tok_s: rate(input + output),
            prefill_worker_seconds,
            decode_worker_seconds,
            prefill_gpus_per_worker: settings.prefill_gpus_per_worker,
            decode_gpus_per_worker: settings.decode_gpus_per_worker,
            gpu_hours: gpu_seconds / 3600.0,
            prefix_cache_reused_ratio: share(sums.most_cached_tokens, input),
            first_admission_prefix_cache_reused_ratio: share(sums.cached_tokens, input),
            committed_prefill_tokens: report.engines.iter().map(|engine| engine.prefill_tokens).sum(),
            goodput: settings.sla.is_set().then(|| Goodput {
                completed_requests: sums.good,
                request_throughput_rps: rate(sums.good),
                output_throughput_tok_s: rate(sums.good_output_tokens),
            }),
            ttft: Distribution::of_ns(ttft_ns),
            ttst: Distribution::of_ns(ttst_ns),
            tpot: Distribution::of_ms(tpot_ms),
            itl: Distribution::of_trend(report.metrics.trend(Trend::Itl)),
            e2e_latency: Distribution::of_ns(e2e_ns),
            output_token_throughput_per_user: Distribution::of_rates(&report.token_gaps_ns),
        }
    }

    /// The time distributions with their names in Dynamo's keys.
    #[must_use]
    pub fn latencies(&self) -> [(&'static str, &Distribution); 5] {
        [
            ("ttft", &self.ttft),
            ("ttst", &self.ttst),
            ("tpot", &self.tpot),
            ("itl", &self.itl),
            ("e2e_latency", &self.e2e_latency),
        ]
    }
}

/// Worker time of prefill workers and of other workers, in seconds.
fn worker_seconds(report: &Report) -> (f64, f64) {
    match &report.pools[..] {
        [prefill, decode, ..] => (prefill.worker_seconds, decode.worker_seconds),
        [pool] => (0.0, pool.worker_seconds),
        [] => live_worker_seconds(report),
    }
}

/// Worker time of live engines, which are up for the whole run.
fn live_worker_seconds(report: &Report) -> (f64, f64) {
    let pools = report.engines.chunk_by(|one, other| one.pool == other.pool).map(|engines| {
        let workers = engines.chunk_by(|one, other| one.engine == other.engine).count();
        workers as f64 * report.duration_ms / 1e3
    });
    match pools.collect::<Vec<_>>()[..] {
        [prefill, decode, ..] => (prefill, decode),
        [pool] => (0.0, pool),
        [] => (0.0, 0.0),
    }
}
