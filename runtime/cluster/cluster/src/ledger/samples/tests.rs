use super::*;
use proptest::prelude::*;

fn summary(values: impl IntoIterator<Item = u64>) -> Summary {
    let mut samples = Samples::default();
    values.into_iter().for_each(|value| samples.push(value, 1));
    CountedSamples::from(samples).summary().unwrap()
}

#[test]
fn percentiles_are_samples_by_rounded_rank() {
    let all = summary(1..=100);
    assert_eq!((all.p50, all.p90, all.p99), (51, 90, 99));
    assert_eq!((all.min, all.max, all.count), (1, 100, 100));
    assert!((all.mean - 50.5).abs() < 1e-12);
}

#[test]
fn order_and_runs_do_not_matter() {
    assert_eq!(summary([3, 3, 1, 2, 3]), summary([1, 3, 2, 3, 3]));
    assert_eq!(summary([7]).p99, 7);
}

#[test]
fn no_samples_have_no_summary() {
    assert_eq!(CountedSamples::default().summary(), None);
}

proptest! {
    #[test]
    fn ranks_are_those_of_the_samples_in_order(
        runs in prop::collection::vec(
            (
                prop_oneof![0u64..5000, 4000u64..6000, 6_000_000u64..6_010_000, any::<u64>()],
                prop_oneof![1u64..4, 1u64..3_000_000],
            ),
            1..300,
        ),
        copies in prop_oneof![4 => 1u64..12, 1 => 20u64..60],
        spread in prop_oneof![Just(0u64), Just(1), Just(1_000_003)],
        shares in prop::array::uniform8(0.0..1.0f64),
    ) {
        let mut samples = Samples::default();
        let mut model: Vec<(u64, u64)> = Vec::new();
        for (copy, &(value, times)) in (0..copies).flat_map(|copy| runs.iter().map(move |run| (copy, run))) {
            let value = value.wrapping_add(copy * spread);
            samples.push(value, times);
            model.push((value, times));
        }
        let samples = CountedSamples::from(samples);
        let mut given = Vec::new();
        samples.for_each(|value, times| given.push((value, times)));
        let joined = |mut runs: Vec<(u64, u64)>| {
            runs.sort_unstable();
            runs.chunk_by(|a, b| a.0 == b.0)
                .map(|same| (same[0].0, same.iter().map(|run| run.1).sum::<u64>()))
                .collect::<Vec<_>>()
        };
        let expected = joined(model);
        prop_assert_eq!(&joined(given), &expected);
        let count: u64 = expected.iter().map(|run| run.1).sum();
        prop_assert_eq!(samples.count(), count);
        let mut ranks = shares.map(|share| (share * count as f64) as u64);
        ranks.sort_unstable();
        let at = |rank: u64| {
            let mut smaller = 0;
            expected.iter().find(|run| { smaller += run.1; rank < smaller }).unwrap().0
        };
        prop_assert_eq!(samples.at_ranks(ranks), ranks.map(at));
        let last = count - 1;
        prop_assert_eq!(samples.at_ranks([0, last]), [at(0), at(last)]);
    }
}
