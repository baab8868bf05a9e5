//! `sampled(#{ capture: "run.jsonl.zst" })`: steps drawn from a capture.

use std::path::Path;
use std::sync::Arc;

use vcr_latency::{Sampled, SampledAnswer, SampledGrid};
use vcr_trace::capture::{CaptureLine, CaptureReader, ReadOptions, RequestRecord};

use crate::script::context::Context;
use crate::script::error::Scripted;
use crate::script::options::Options;
use crate::vocabulary::latency::{LatencySpec, finish};

pub(super) fn make(context: &Context, mut options: Options<'_>) -> Scripted<LatencySpec> {
    let path = options.string("capture");
    options.required("capture", path.as_ref().map(|_| ()));
    let grid = path.and_then(|path| {
        context.state().inputs.named("capture", &path, context.resolve(&path));
        let path = context.resolve(&path);
        let read = context.reads(&path).map_err(|thrown| thrown.message).and_then(|()| read(&path));
        read.map_err(|message| options.problem("capture", message)).ok()
    });
    let spec = grid.map(|grid| {
        let grid = Arc::new(grid);
        LatencySpec::new(Arc::new(move |context| Ok(Box::new(Sampled::new(Arc::clone(&grid), context.seed)))))
    });
    finish(options, spec)
}

fn read(path: &Path) -> Result<SampledGrid, String> {
    let mut reader = CaptureReader::open(path, &ReadOptions::default()).map_err(|error| error.to_string())?;
    let mut records = Vec::new();
    while let Some((_, line)) = reader.next_line().map_err(|error| error.to_string())? {
        if let CaptureLine::Request(record) = line {
            records.push(*record);
        }
    }
    let under_way = UnderWay::of(&records);
    let answers: Vec<SampledAnswer> = records.iter().map(|record| answer(record, &under_way)).collect();
    SampledGrid::new(&answers).map_err(|error| format!("invalid capture `{}`: {error}", path.display()))
}

fn answer(record: &RequestRecord, all: &UnderWay) -> SampledAnswer {
    // Gaps of several tokens are not gaps of single steps.
    let gaps_ns = if record.gap_tokens.is_none() { record.gap_ns.clone() } else { Vec::new() };
    let summary = record.gap_summary.filter(|_| gaps_ns.is_empty());
    let mean = summary.into_iter().flat_map(|summary| std::iter::repeat_n(summary.mean_ns, summary.count as usize));
    let prompt_tokens = u64::from(record.prompt_tokens);
    SampledAnswer {
        prompt_tokens,
        uncached_tokens: prompt_tokens.saturating_sub(u64::from(record.cached_tokens)),
        concurrency: record.concurrency.map_or_else(|| all.at(record), u64::from),
        ttft_ns: record.ttft_ns,
        gaps_ns: gaps_ns.iter().copied().chain(mean).collect(),
    }
}

/// Arrivals and ends of all requests, each in ascending order.
struct UnderWay {
    arrivals_ns: Vec<u64>,
    ends_ns: Vec<u64>,
}

impl UnderWay {
    fn of(records: &[RequestRecord]) -> Self {
        let times =
            || records.iter().filter_map(|record| Some((record.arrival_ns?, record.duration_ns().unwrap_or(0))));
        let mut arrivals_ns: Vec<u64> = times().map(|(arrival_ns, _)| arrival_ns).collect();
        let mut ends_ns: Vec<u64> = times().map(|(arrival_ns, ns)| arrival_ns.saturating_add(ns)).collect();
        arrivals_ns.sort_unstable();
        ends_ns.sort_unstable();
        Self { arrivals_ns, ends_ns }
    }

    /// Number of requests in flight when `record` arrived, including itself.
    fn at(&self, record: &RequestRecord) -> u64 {
        let Some(at_ns) = record.arrival_ns else { return 1 };
        let arrived = self.arrivals_ns.partition_point(|ns| *ns <= at_ns);
        let ended = self.ends_ns.partition_point(|ns| *ns <= at_ns);
        (arrived.saturating_sub(ended) as u64).max(1)
    }
}
