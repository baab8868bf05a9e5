//! Options that all workloads have: tenant, SLO, structured outputs, clients.

use vcr_base::random::Distribution;
use vcr_cluster::{
    CancelConfig, ClientConfig, RetryConfig, Slo, StructuredOutputs, WhenFull, WorkloadConfig, WorkloadSource,
};

use crate::script::options::Options;

/// Default wait of a client before its first retry.
const BACKOFF_NS: u64 = 1_000_000_000;
/// Default maximum wait before a retry.
const MAX_BACKOFF_NS: u64 = 60_000_000_000;

pub(super) struct CommonOptions {
    pub(super) name: String,
    is_warm_up: bool,
    priority: i32,
    tenant: u64,
    slo: Option<Slo>,
    structured: Option<StructuredOutputs>,
    client: ClientConfig,
}

impl CommonOptions {
    pub(super) fn workload(self, start_ns: u64, source: WorkloadSource) -> WorkloadConfig {
        let Self { name, is_warm_up, priority, tenant, slo, structured, client } = self;
        WorkloadConfig { name, start_ns, is_warm_up, priority, tenant, slo, structured, client, source }
    }
}

pub(super) fn common(kind: &str, options: &mut Options<'_>) -> CommonOptions {
    let name = options.name("name").unwrap_or_else(|| kind.to_owned());
    CommonOptions {
        is_warm_up: options.boolean("warm_up").unwrap_or(false),
        priority: options.i32("priority").unwrap_or(0),
        tenant: options.u64("tenant").unwrap_or(0),
        slo: slo(&name, options),
        structured: structured_outputs(options),
        client: client(options),
        name,
    }
}

/// Reads the SLO. `name` is the default of its class.
pub(super) fn slo(name: &str, options: &mut Options<'_>) -> Option<Slo> {
    options.nested("slo", "#{ ttft: \"1s\", tpot: \"50ms\" }", |slo| {
        let class = slo.name("class").unwrap_or_else(|| name.to_owned());
        let [ttft_ns, tpot_ns, e2e_ns] = ["ttft", "tpot", "e2e"].map(|latency| slo.duration_ns(latency));
        if ttft_ns.or(tpot_ns).or(e2e_ns).is_none() {
            slo.problem("slo", "`slo` needs at least one of `ttft`, `tpot` and `e2e`");
        }
        Slo { class, ttft_ns, tpot_ns, e2e_ns }
    })
}

fn structured_outputs(options: &mut Options<'_>) -> Option<StructuredOutputs> {
    options.nested("structured_outputs", "#{ compile: \"20ms\", share: 0.5 }", |structured| StructuredOutputs {
        share: structured.f64("share").unwrap_or(1.0),
        compile_ms: structured.durations_ms("compile").unwrap_or(Distribution::Constant { value: 0.0 }),
        failing_share: structured.f64("fails").unwrap_or(0.0),
    })
}

fn client(options: &mut Options<'_>) -> ClientConfig {
    let [first_token_timeout_ns, timeout_ns, deadline_ns] =
        ["first_token_timeout", "timeout", "deadline"].map(|limit| options.duration_ns(limit));
    let cancel = options.nested("cancel", "#{ share: 0.1, after: \"2s\" }", |cancel| CancelConfig {
        share: cancel.f64("share").unwrap_or(1.0),
        after_ms: cancel.durations_ms("after"),
        after_tokens: cancel.counts("after_tokens"),
    });
    let retry = options.nested("retry", "#{ max_attempts: 3, backoff: \"1s\" }", |retry| {
        let max_attempts = retry.u32("max_attempts");
        let max_attempts = retry.required("max_attempts", max_attempts);
        let backoff_ns = retry.duration_ns("backoff").unwrap_or(BACKOFF_NS);
        RetryConfig {
            max_attempts,
            backoff_ns,
            factor: retry.f64("factor").unwrap_or(2.0),
            max_backoff_ns: retry.duration_ns("max_backoff").unwrap_or(MAX_BACKOFF_NS.max(backoff_ns)),
            jitter: retry.f64("jitter").unwrap_or(0.0),
        }
    });
    let max_in_flight = options.u64("max_in_flight");
    let when_full = options.choice("when_full", &[("drop", WhenFull::Drop), ("queue", WhenFull::Delay)]);
    if when_full.is_some() && max_in_flight.is_none() {
        options.problem("when_full", "`when_full` needs `max_in_flight`, the sessions that may be in flight");
    }
    ClientConfig {
        first_token_timeout_ns,
        timeout_ns,
        deadline_ns,
        cancel,
        retry,
        max_in_flight,
        when_full: when_full.unwrap_or_default(),
    }
}
