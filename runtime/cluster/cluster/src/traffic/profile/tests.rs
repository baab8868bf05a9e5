use vcr_trace::{Format, TraceOptions};

use super::*;

const S: u64 = 1_000_000_000;

/// A trace with one play: a main conversation with requests at 0, 40 and 100 s that take 10 s each, and a branch
/// with requests at 20 and 60 s.
fn trace() -> Arc<Trace> {
    let row = |id: &str, session: &str, at_s: u64, ids: &str, dependencies: &str| {
        format!(
            r#"{{"request_id":"{id}","session_id":"{session}","play_id":"p","not_before_ms":{},"recorded_api_time_ms":10000,"output_length":2,"hash_ids":{ids},"dependencies":[{dependencies}]}}"#,
            at_s * 1000
        )
    };
    let on = |id: &str, trigger: &str, delay_s: u64| {
        format!(r#"{{"request_id":"{id}","trigger":"{trigger}","delay_ms":{}}}"#, delay_s * 1000)
    };
    let rows = [
        r#"{"schema":"dynamo.agentic_mooncake","version":2,"block_size":4,"hash_id_scope":"local"}"#.to_owned(),
        row("a", "main", 0, "[1]", ""),
        row("b", "branch", 20, "[1,9]", &on("a", "dispatch", 20)),
        row("c", "main", 40, "[1,2]", &on("a", "completion", 30)),
        row("d", "branch", 60, "[1,9,8]", &on("b", "completion", 30)),
        row("e", "main", 100, "[1,2,3]", &[on("c", "completion", 50), on("d", "completion", 30)].join(",")),
    ];
    let options = TraceOptions::default();
    Arc::new(Trace::read(rows.join("\n").as_bytes(), "t", Format::AgenticMooncake, &options).unwrap())
}

/// Released nodes as pairs of seconds and row, by time.
fn released(profile: &mut Profile) -> Vec<(u64, u32)> {
    let mut released: Vec<_> =
        std::iter::from_fn(|| profile.pop_released()).map(|(at_ns, node)| (at_ns / S, split(node).1)).collect();
    released.sort_unstable();
    released
}

fn of(config: ProfileConfig) -> Profile {
    Profile::new(&trace(), config)
}

#[test]
fn a_lane_takes_the_next_play_when_its_own_ends() {
    let mut profile = of(ProfileConfig { duration_ns: Some(1000 * S), ..ProfileConfig::new(1) });
    profile.begin(5 * S);
    assert_eq!(released(&mut profile), [(5, 0)]);
    for (row, at_s, next) in [(0, 5, vec![(25, 1)]), (1, 25, vec![])] {
        assert_eq!(profile.start(node(0, row), at_s * S).map(|due| due.row), Some(row));
        assert_eq!(released(&mut profile), next);
    }
    // It ended at 6 s. The next row is due 30 s later, but not before the recorded 40 s.
    assert!(!profile.ended(node(0, 0), true, 6 * S));
    assert_eq!(released(&mut profile), [(45, 2)]);
    profile.ended(node(0, 1), true, 26 * S);
    assert_eq!(released(&mut profile), [(65, 3)]);
    for (row, at_s) in [(2, 45), (3, 65)] {
        profile.start(node(0, row), at_s * S);
        profile.ended(node(0, row), true, (at_s + 1) * S);
    }
    assert_eq!(released(&mut profile), [(105, 4)]);
    profile.start(node(0, 4), 105 * S);
    profile.ended(node(0, 4), true, 200 * S);
    assert_eq!(released(&mut profile), [(200, 0)]);
    assert_eq!(profile.start(node(1, 0), 200 * S), Some(DueRow { row: 0, copy: 1, is_warmup: false }));
    assert_eq!((profile.counts().plays_started, profile.counts().plays_ended), (2, 1));
}

#[test]
fn a_snapshot_starts_where_the_recording_was() {
    let trace = trace();
    let source = Source::new(&trace, 1.0);
    // At half of 100 s, rows 0 to 2 were sent, and row 2 ended at 50 s.
    let mut play = source.open(0, 0, Some(0.5));
    assert_eq!(play.begin(0).map(|(at_ns, row)| (at_ns / S, row)).collect::<Vec<_>>(), [(10, 3)]);
    assert_eq!(play.start(&source, 3, 10 * S), Some(3));
    assert_eq!(play.happened(&source, 3, Trigger::Completion, 12 * S).collect::<Vec<_>>(), [(50 * S, 4)]);
    // Both conversations continue. Their last requests fill the caches and are then repeated in turn.
    assert_eq!(source.warmup(&play, 3), [2, 1, 2, 1, 2]);
    assert_eq!(source.warmup(&source.open(0, 0, None), 2), [0, 0]);
    // With double speed, all times halve.
    let faster = Source::new(&trace, 2.0);
    assert_eq!(faster.open(0, 0, Some(0.5)).begin(0).collect::<Vec<_>>(), [(5 * S, 3)]);
}

#[test]
fn snapshots_follow_from_their_seed_and_lane() {
    let cut = |seed| {
        let mut profile = of(ProfileConfig { snapshot_seed: Some(seed), ..ProfileConfig::new(1) });
        profile.begin(0);
        let mut at_ns: Vec<u64> = std::iter::from_fn(|| profile.pop_released()).map(|(at_ns, _)| at_ns).collect();
        at_ns.sort_unstable();
        at_ns
    };
    assert_eq!(cut(7), cut(7));
    let all: std::collections::BTreeSet<_> = (0..20).map(cut).collect();
    assert!(all.len() > 10, "{all:?}");
    // The cut is between 25 s and 75 s, so the second row has ended and the last has not started.
    assert!(all.iter().all(|times| times.iter().all(|at_ns| *at_ns <= 75 * S)));
}

#[test]
fn the_warm_up_goes_lane_by_lane_and_is_over_with_the_last() {
    let mut profile = of(ProfileConfig { warmup_requests: 2, ..ProfileConfig::new(4) });
    profile.begin(0);
    // The trace has one play, so there is one lane.
    assert_eq!(profile.pop_released(), Some((0, WARMUP)));
    for at_s in [0, 3] {
        assert_eq!(profile.start(WARMUP, at_s * S), Some(DueRow { row: 0, copy: 0, is_warmup: true }));
        let is_over = at_s == 3;
        assert_eq!(profile.ended(WARMUP, true, (at_s + 1) * S), is_over);
    }
    assert_eq!(profile.pop_released(), Some((4 * S, node(0, 0))));
    let counts = profile.counts();
    assert_eq!((counts.began_ns, counts.warmup_requests, counts.plays_started), (4 * S, 2, 1));
    assert_eq!(profile.start(WARMUP, 5 * S), None);
}

#[test]
fn waits_with_nothing_in_flight_are_cut() {
    let config = ProfileConfig { play_idle_cap_ns: Some(5 * S), ..ProfileConfig::new(1) };
    let mut profile = of(config);
    profile.begin(0);
    profile.start(node(0, 0), 0);
    let _planned = released(&mut profile);
    profile.ended(node(0, 0), true, S);
    // Rows 1 and 2 were due at 20 and 40 s. Now row 1 is due 5 s after the end.
    let mut again = released(&mut profile);
    again.dedup();
    assert!(again.contains(&(6, 1)) && again.contains(&(26, 2)), "{again:?}");
    // The event of the former due time does nothing.
    assert_eq!(profile.start(node(0, 2), 25 * S), None);
    assert_eq!(profile.start(node(0, 1), 6 * S).map(|due| due.row), Some(1));
    assert_eq!(profile.start(node(0, 1), 20 * S), None);
    assert_eq!((profile.counts().idle_cuts, profile.counts().idle_cut_ns), (1, 14 * S));
    // The common idle cap has no effect while any play has a request in flight.
    let mut all = of(ProfileConfig { idle_cap_ns: Some(2 * S), duration_ns: Some(900 * S), ..ProfileConfig::new(2) });
    all.begin(0);
    all.start(node(0, 0), 0);
    all.start(node(1, 0), 0);
    all.ended(node(0, 0), true, S);
    assert_eq!(all.counts().idle_cuts, 0);
    all.ended(node(1, 0), true, 2 * S);
    assert_eq!(all.counts().idle_cut_ns, 16 * S);
}

#[test]
fn nothing_starts_after_the_profile_and_hopeless_lanes_end() {
    let mut profile = of(ProfileConfig { duration_ns: Some(30 * S), grace_ns: 5 * S, ..ProfileConfig::new(1) });
    profile.begin(0);
    profile.start(node(0, 0), 0);
    profile.ended(node(0, 0), true, S);
    assert_eq!(released(&mut profile), [(0, 0), (20, 1)], "row 2 would be due at 40 s");
    assert_eq!(profile.cancels_at_ns(), Some(35 * S));
    let mut hopeless = of(ProfileConfig { duration_ns: Some(900 * S), ..ProfileConfig::new(1) });
    hopeless.begin(0);
    while let Some((at_ns, node)) = hopeless.pop_released() {
        // None if the node was released again with an earlier time.
        if hopeless.start(node, at_ns).is_some() {
            hopeless.ended(node, false, at_ns);
        }
    }
    assert_eq!((hopeless.counts().plays_started, hopeless.counts().plays_ended), (1, 1));
}
