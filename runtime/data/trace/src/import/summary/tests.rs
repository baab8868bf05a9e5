use super::*;
use crate::MediaItem;
use crate::capture::{BlockHash, CaptureEnd, GapSummary, StepRecord};
use serde_json::json;

/// Two requests that overlap by 10 ms and have one common block.
fn sample() -> Vec<CaptureLine> {
    let request = |arrival_ms: u64, concurrency, hashes: &[u64]| RequestRecord {
        arrival_ns: Some(arrival_ms * 1_000_000),
        concurrency: Some(concurrency),
        prompt_tokens: 40,
        cached_tokens: 10,
        output_tokens: 4,
        block_hashes: hashes.iter().map(|hash| BlockHash(*hash)).collect(),
        session: Some("s".to_owned()),
        ttft_ns: Some(10_000_000),
        gap_ns: vec![5_000_000, 5_000_000],
        gap_tokens: Some(vec![1, 2]),
        finish_reason: Some("stop".to_owned()),
        mm_items: vec![MediaItem { hash: "cat".to_owned(), offset: 3, tokens: 5, ..MediaItem::default() }],
        ..RequestRecord::default()
    };
    let step = |step, at_ns, running| {
        let scheduler = Some(json!({"num_running_reqs": running, "num_waiting_reqs": 0, "kv_cache_usage": 0.25}));
        CaptureLine::Step(Box::new(StepRecord {
            step,
            at_ns,
            tokens: 2,
            outputs: 1,
            scheduler,
            ..StepRecord::default()
        }))
    };
    let mm_hashes = vec!["dog".to_owned()];
    let unfinished = RequestRecord { prompt_tokens: 20, output_tokens: 0, mm_hashes, ..RequestRecord::default() };
    let means = RequestRecord {
        prompt_tokens: 1,
        output_tokens: 3,
        gap_summary: Some(GapSummary { mean_ns: 8_000_000, count: 2 }),
        end_ns: Some(1),
        ..RequestRecord::default()
    };
    vec![
        CaptureLine::Meta(Box::default()),
        CaptureLine::Request(Box::new(request(0, 1, &[1, 2]))),
        CaptureLine::Request(Box::new(request(10, 2, &[1, 3]))),
        CaptureLine::Request(Box::new(unfinished)),
        CaptureLine::Request(Box::new(means)),
        step(0, 5, 1),
        step(1, 25, 3),
        CaptureLine::End(CaptureEnd::default()),
    ]
}

#[test]
fn every_number_is_as_computed_by_hand() {
    let mut builder = SummaryBuilder::default();
    sample().iter().for_each(|line| builder.add(line));
    let summary = builder.finish();
    assert_eq!(
        (summary.requests, summary.prompt_tokens, summary.output_tokens, summary.cached_tokens),
        (4, 101, 11, 20)
    );
    let finished: Vec<_> = summary.finished.iter().map(|(reason, count)| (reason.as_str(), *count)).collect();
    assert_eq!(finished, [("ended", 1), ("stop", 2), ("unfinished", 1)]);
    // The capture lasts from 0 to 10 + 20 ms.
    assert_eq!(summary.duration_ns, 30_000_000);
    assert_eq!(summary.requests_per_s, Some(100.0));
    assert_eq!((summary.peak_concurrency, summary.mean_concurrency), (Some(2), Some(40.0 / 30.0)));
    let itl = summary.itl_ns.expect("gaps");
    assert_eq!((itl.count, itl.p50, itl.max, summary.itl_of_means), (6, 5_000_000, 8_000_000, 2));
    assert_eq!(itl.mean, 6_000_000.0);
    assert_eq!(summary.bursts, Some(Bursts { outputs: 2, tokens_per_output: 8.0 / 6.0, max_tokens: 2 }));
    // The last output of a request does not count, and the other outputs have one token.
    assert!(summary.acceptance_rates.is_empty());
    assert_eq!(summary.sessions, Some(Sessions { count: 1, requests: 2, max_turns: 2 }));
    assert_eq!(summary.prefixes, Some(Prefixes { blocks: 4, distinct_blocks: 3, shared: 0.25 }));
    let media = MediaCounts { requests: 3, items: 3, distinct_items: 2, tokens: 10 };
    assert_eq!(summary.media, Some(media));
    assert_eq!(summary.classes.len(), 2);
    let steps = summary.steps.expect("steps");
    assert_eq!((steps.count, steps.interval_ns.expect("one").max), (2, 20));
    assert_eq!((steps.running.expect("two").max, steps.max_kv_usage), (3, Some(0.25)));
    assert!(summary.is_ended && !summary.is_workload);
}

#[test]
fn many_concurrencies_are_put_together() {
    let mut builder = SummaryBuilder::default();
    for concurrency in 1..=20 {
        let request = RequestRecord { concurrency: Some(concurrency), prompt_tokens: 1, ..RequestRecord::default() };
        builder.add(&CaptureLine::Request(Box::new(request)));
    }
    let classes = builder.finish().classes;
    let ranges: Vec<_> =
        classes.iter().map(|class| (class.concurrency_from, class.concurrency_to, class.requests)).collect();
    assert_eq!(ranges, [(1, 1, 1), (2, 2, 1), (3, 4, 2), (5, 8, 4), (9, 16, 8), (17, 32, 4)]);
}
