//! Tests the search on deployments with computed scores.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Mutex;

use super::*;

/// Sizes of the parts, as shares of the load.
const PARTS: [f64; 3] = [1.0 / 16.0, 0.25, 1.0];

/// Each shape carries a given load with one replica. Parts are easier than the whole.
struct Arithmetic {
    carried: Vec<f64>,
    /// Load of each part.
    loads: [f64; 3],
    made: Mutex<BTreeSet<Probe>>,
    is_over: bool,
}

impl Arithmetic {
    fn new(carried: &[f64]) -> Self {
        Self { carried: carried.to_vec(), loads: [9.0, 9.7, 10.0], made: Mutex::default(), is_over: false }
    }

    /// Sum of the simulated loads.
    fn cost(&self) -> f64 {
        self.made.lock().expect("no panic").iter().map(|probe| PARTS[probe.part]).sum()
    }
}

impl Simulate for Arithmetic {
    type Error = Infallible;

    fn simulate(&self, probes: &[Probe]) -> Result<Vec<Score>, Infallible> {
        self.made.lock().expect("no panic").extend(probes);
        let score = |probe: &Probe| {
            let headroom = 1.0 - self.loads[probe.part] / (self.carried[probe.shape] * f64::from(probe.replicas));
            Score { passed: headroom >= 0.0, carries: headroom >= 0.0, headroom }
        };
        Ok(probes.iter().map(score).collect())
    }

    fn each<T: Send>(&self, count: usize, act: &(dyn Fn(usize) -> T + Sync)) -> Vec<T> {
        (0..count).map(act).collect()
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}

fn searched<S: Simulate<Error = Infallible>>(all: &S, families: &[Family]) -> Vec<Found> {
    let mut found = Vec::new();
    search(all, families, 3, &mut found).expect("it cannot fail");
    found
}

fn family(shapes: std::ops::Range<usize>, price: f64, most: u32) -> Family {
    Family { shapes: shapes.collect(), price, least: 1, fewest: 1, most }
}

/// Three families of twelve shapes each.
fn families() -> (Arithmetic, Vec<Family>) {
    let carried: Vec<f64> =
        (0..36).map(|shape| 0.5 + f64::from(shape * 7 % 12) * 0.1 + f64::from(shape / 12)).collect();
    (Arithmetic::new(&carried), vec![family(0..12, 2.0, 32), family(12..24, 3.0, 32), family(24..36, 9.0, 16)])
}

#[test]
fn the_answer_is_that_of_an_exhaustive_search_for_less_than_a_tenth() {
    let (all, families) = families();
    let mut expected = Vec::new();
    exhaustive(&all, &families, 2, &mut expected).expect("it cannot fail");
    let (raced, _) = self::families();
    let found = searched(&raced, &families);
    let cheapest = |found: &[Found]| {
        let least = found.iter().zip(&families).filter_map(|(found, family)| match *found {
            Found::Least { shape, replicas } => Some((family.price * f64::from(replicas), shape, replicas)),
            _ => None,
        });
        least.min_by(|a, b| a.0.total_cmp(&b.0)).expect("one is feasible")
    };
    assert_eq!(cheapest(&found), cheapest(&expected));
    assert!(matches!(found[2], Found::Dearer { .. }), "{found:?}");
    assert!(raced.cost() < all.cost() / 10.0, "{} of {}", raced.cost(), all.cost());
}

#[test]
fn what_no_replicas_can_do_is_infeasible() {
    let all = Arithmetic::new(&[0.1, 0.2]);
    let found = searched(&all, &[family(0..2, 1.0, 8)]);
    assert_eq!(found, [Found::Infeasible { shape: 1, replicas: 8, part: 0 }]);
}

/// Parts of the load predict two replicas for the first three families; the whole load needs six, so the fourth wins.
#[test]
fn families_that_were_left_behind_are_tried_when_the_cheapest_turns_out_dearer() {
    struct Late(Arithmetic);
    impl Simulate for Late {
        type Error = Infallible;
        fn simulate(&self, probes: &[Probe]) -> Result<Vec<Score>, Infallible> {
            let late = |probe: &Probe| probe.part == 2 && probe.shape < 3;
            let shrunk = |probe: &Probe| if late(probe) { probe.replicas.div_ceil(5) } else { probe.replicas };
            let probes: Vec<Probe> = probes.iter().map(|probe| Probe { replicas: shrunk(probe), ..*probe }).collect();
            self.0.simulate(&probes)
        }
        fn each<T: Send>(&self, count: usize, act: &(dyn Fn(usize) -> T + Sync)) -> Vec<T> {
            self.0.each(count, act)
        }
        fn is_over(&self) -> bool {
            false
        }
    }
    let all = Late(Arithmetic::new(&[5.0, 5.0, 5.0, 5.0]));
    let families = [family(0..1, 1.0, 32), family(1..2, 1.1, 32), family(2..3, 1.2, 32), family(3..4, 2.0, 32)];
    let found = searched(&all, &families);
    assert_eq!(found[3], Found::Least { shape: 3, replicas: 2 });
    assert_eq!(found[0], Found::Least { shape: 0, replicas: 6 });
}

#[test]
fn a_search_without_time_still_has_an_answer() {
    let (mut all, families) = families();
    all.is_over = true;
    let found = searched(&all, &families);
    assert!(found.iter().any(|one| matches!(one, Found::Least { .. })), "{found:?}");
    assert!(found.contains(&Found::Unfinished));
}

#[test]
fn bisections_find_every_limit_from_every_guess() {
    for limit in 1..=20_u32 {
        let all = Arithmetic::new(&[10.0 / f64::from(limit) + 1e-9]);
        for guess in 1..=20 {
            assert_eq!(least(&all, 0, guess, (1, 20), 2), Ok(Some(limit)), "from {guess}");
        }
        assert_eq!(least(&all, 0, 1, (5, 20), 2), Ok(Some(limit.max(5))), "five at least");
        assert_eq!(least(&all, 0, 1, (1, limit.saturating_sub(1).max(1)), 2), Ok((limit == 1).then_some(1)));
    }
}

/// The first flags are best on parts of the load, but only the last flags carry the whole load with one replica.
struct Misleading;

impl Simulate for Misleading {
    type Error = Infallible;

    fn simulate(&self, probes: &[Probe]) -> Result<Vec<Score>, Infallible> {
        let score = |probe: &Probe| {
            let carried = if probe.shape == 5 { 10.0 } else { 6.0 };
            let headroom = match probe.part {
                2 => 1.0 - 10.0 / (carried * f64::from(probe.replicas)),
                _ => 0.9 - 0.1 * probe.shape as f64,
            };
            Score { passed: headroom >= 0.0, carries: headroom >= 0.0, headroom }
        };
        Ok(probes.iter().map(score).collect())
    }

    fn each<T: Send>(&self, count: usize, act: &(dyn Fn(usize) -> T + Sync)) -> Vec<T> {
        (0..count).map(act).collect()
    }

    fn is_over(&self) -> bool {
        false
    }
}

#[test]
fn flags_that_parts_rule_out_are_tried_where_they_may_save_a_replica() {
    let found = searched(&Misleading, &[family(0..6, 2.0, 8)]);
    assert_eq!(found, [Found::Least { shape: 5, replicas: 1 }]);
}

/// Each replica carries a third of the load, and more than four replicas cost too much.
struct Priced;

impl Simulate for Priced {
    type Error = Infallible;

    fn simulate(&self, probes: &[Probe]) -> Result<Vec<Score>, Infallible> {
        let score = |probe: &Probe| {
            let replicas = f64::from(probe.replicas);
            let carried = replicas * (1.0 + probe.shape as f64) / 3.0 - 1.0;
            let saved = 1.0 - replicas / 4.0;
            Score { passed: carried >= 0.0 && saved >= 0.0, carries: carried >= 0.0, headroom: carried.min(saved) }
        };
        Ok(probes.iter().map(score).collect())
    }

    fn each<T: Send>(&self, count: usize, act: &(dyn Fn(usize) -> T + Sync)) -> Vec<T> {
        (0..count).map(act).collect()
    }

    fn is_over(&self) -> bool {
        false
    }
}

#[test]
fn objectives_that_more_replicas_hurt_are_kept_by_the_least_that_carry_the_load() {
    // Doubling steps from one replica must not skip three and four.
    assert_eq!(searched(&Priced, &[family(0..1, 1.0, 64)]), [Found::Least { shape: 0, replicas: 3 }]);
    let many = Family { fewest: 5, least: 5, ..family(0..2, 1.0, 64) };
    assert_eq!(searched(&Priced, &[many]), [Found::Infeasible { shape: 0, replicas: 5, part: 2 }]);
}
