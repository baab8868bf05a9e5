//! Checks the options of `run` and plans the run.

use std::path::Path;

use vcr_cluster::{PackedRows, RunConfig, Target};

use crate::script::context::Context;
use crate::script::error::{Scripted, Thrown};
use crate::script::options::{Options, describe};
use crate::vocabulary::capture::workloads;
use crate::vocabulary::cluster::ClusterSpec;
use crate::vocabulary::cluster::drawn::DrawnPool;
use crate::vocabulary::cluster::fault::FaultSpec;
use crate::vocabulary::run::target;

/// Seed of a run if neither the scenario nor the user sets one.
const DEFAULT_SEED: u64 = 1;

pub(super) struct PlannedRun {
    pub(super) config: RunConfig,
    pub(super) target: Target,
    /// Whether the maximum time comes from outside and overrides the script's.
    pub(super) is_limited: bool,
    /// The path in the script of the capture to write.
    pub(super) record: Option<String>,
    pub(super) drawn: Vec<Option<DrawnPool>>,
}

impl PlannedRun {
    /// Whether coefficients of the latency models can be drawn.
    pub(super) fn can_be_drawn(&self) -> bool {
        self.target.is_virtual() && self.drawn.iter().any(Option::is_some)
    }
}

/// Checks the options of a run without executing it.
pub(super) fn plan(context: &Context, mut options: Options<'_>) -> Scripted<PlannedRun> {
    let name = options.name("name");
    let name = probed_name(context, name);
    let cluster = options.made::<ClusterSpec>("cluster", "cluster(#{ ... })");
    options.required::<()>("cluster", cluster.as_ref().map(|_| ()));
    let workloads = workloads(context, &mut options);
    let faults = elements::<FaultSpec>(&mut options, "faults", "faults such as crash(#{ ... })");
    let seed = options.u64("seed");
    let max_retries = options.u32("retries").unwrap_or(0);
    let own_max_time_ns = options.duration_ns("max_time");
    let given_max_time_ns = context.options.max_time_ns;
    let is_limited = given_max_time_ns.is_some_and(|given_ns| own_max_time_ns.is_none_or(|own_ns| given_ns < own_ns));
    let max_time_ns = if is_limited { given_max_time_ns } else { own_max_time_ns };
    let target = target::taken(context, &mut options);
    let record = options.string("record");
    if record.as_deref().is_some_and(|path| Path::new(path).file_name().is_none()) {
        options.problem("record", "invalid `record`: expected the path of a file");
    }
    let faults = match &cluster {
        None => Vec::new(),
        Some(cluster) => resolve_faults(&faults, cluster, &mut options),
    };
    for (index, workload) in workloads.iter().enumerate() {
        if workloads[..index].iter().any(|other| other.name == workload.name) {
            let message = format!("two workloads are called `{}`; give each a `name`", workload.name);
            options.problem("workloads", message);
        }
    }
    let call = options.call_position();
    options.finish()?;
    let cluster = cluster.expect("a missing cluster is a problem of the options");
    let config = RunConfig {
        name,
        seed: context.options.seed.or(seed).unwrap_or(DEFAULT_SEED).wrapping_add(context.options.repetition),
        topology: cluster.topology,
        workloads,
        faults,
        max_retries,
        max_time_ns,
        samples_steps: true,
        keeps_requests: record.is_some() && !context.options.leaves_recordings_out,
        // Scripts read single requests, which packed records do not allow.
        packed_records: PackedRows::Never,
    };
    // Checked here rather than by the run, so that the error has a position.
    config.check().map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Thrown::input(lines.join("\n  ")).at(call)
    })?;
    if !target.is_virtual() {
        target::driver(context, &target, &config).map_err(|thrown| thrown.at(call))?;
    }
    Ok(PlannedRun { config, target, is_limited, record, drawn: cluster.drawn })
}

/// The name of a run: its own name, followed by the values that searches currently try.
fn probed_name(context: &Context, own: Option<String>) -> String {
    let probes = context.state().probes.join(" ");
    match (own, probes.is_empty()) {
        (own, true) => own.unwrap_or_else(|| "run".to_owned()),
        (Some(own), false) => format!("{own} {probes}"),
        (None, false) => probes,
    }
}

fn resolve_faults(
    specs: &[FaultSpec],
    cluster: &ClusterSpec,
    options: &mut Options<'_>,
) -> Vec<vcr_cluster::FaultConfig> {
    let mut faults = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        match spec.on(&cluster.topology) {
            Ok(fault) => faults.push(fault),
            Err(problem) => options.problem("faults", format!("fault {} {problem}", index + 1)),
        }
    }
    faults
}

/// Reads an array option whose elements all have the type `T`.
fn elements<T: Clone + Send + Sync + 'static>(options: &mut Options<'_>, name: &'static str, wanted: &str) -> Vec<T> {
    let mut found = Vec::new();
    for (index, value) in options.array(name).unwrap_or_default().into_iter().enumerate() {
        match value.clone().try_cast::<T>() {
            Some(element) => found.push(element),
            None => {
                let message = format!("`{name}` must hold {wanted}, but element {} is {}", index + 1, describe(&value));
                options.problem(name, message);
            }
        }
    }
    found
}
