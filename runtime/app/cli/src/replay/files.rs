//! Output files of `vcr replay`, opened before the run.

use std::path::PathBuf;

use vcr_base::output::{OutputError, OutputFile, Outputs};
use vcr_guest_tools::registry::GuestReference;

use super::args::{ReplayArgs, RouterMode};

/// File name of a report in a folder.
const REPORT_NAME: &str = "replay_report.json";

/// Drafts of the requested files.
pub(super) struct Files {
    pub(super) report: Option<OutputFile>,
    pub(super) rows: Option<OutputFile>,
    pub(super) telemetry: Option<OutputFile>,
    pub(super) sweep: Option<OutputFile>,
}

impl Files {
    pub(super) fn open(args: &ReplayArgs) -> Result<Self, OutputError> {
        let mut outputs = Outputs::new(args.output.force);
        for input in inputs(args) {
            outputs.reads(&input)?;
        }
        let mut create = |path: Option<PathBuf>| path.map(|path| outputs.create(&path)).transpose();
        Ok(Self {
            report: create(report_path(args))?,
            rows: create(args.output.report_jsonl.clone())?,
            telemetry: create(args.output.telemetry.clone())?,
            sweep: create(args.sweep.shard.path(args.sweep.sweep_out.as_deref()))?,
        })
    }
}

/// Path of the report: the given file, or a file in the given folder.
pub(super) fn report_path(args: &ReplayArgs) -> Option<PathBuf> {
    let path = args.output.report_json.as_ref()?;
    Some(if path.is_dir() { path.join(REPORT_NAME) } else { path.clone() })
}

/// All input files in the arguments.
pub(super) fn inputs(args: &ReplayArgs) -> Vec<PathBuf> {
    let mut inputs = args.trace_files.clone();
    let (cluster, router) = (&args.cluster, &args.router);
    let texts = [
        &cluster.autoscale,
        &cluster.extra_engine_args,
        &cluster.prefill_engine_args,
        &cluster.decode_engine_args,
        &router.router_config,
    ];
    inputs.extend(texts.into_iter().flatten().filter_map(|text| text.strip_prefix('@').map(PathBuf::from)));
    inputs.extend(router.router_policy_config.iter().map(PathBuf::from));
    let guest = match &router.router_mode {
        RouterMode::Guest(guest) => Some(guest),
        _ => None,
    };
    let guests = guest.into_iter().chain(&cluster.latency);
    inputs.extend(guests.filter(|word| !GuestReference::is_oci(word)).map(PathBuf::from));
    inputs
}
