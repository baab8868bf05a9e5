//! How a run on lanes could be spread over cores, by its dependencies.
//!
//! A run on lanes consists of rounds. Within a round lanes are independent; the next round
//! begins when all are through. One thread alone makes the requests of the next round
//! meanwhile, and does what is between rounds. [`LaneWork`] has the work of each lane in each
//! round, in instants of virtual time that it goes through; [`LaneWork::estimate`] has any number
//! of cores take the lanes as threads do.

/// The work of a run by round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneWork {
    /// Its rounds.
    pub rounds: Vec<LaneRound>,
    /// Instants of each lane until now, and requests.
    seen: (Vec<u64>, u64),
}

/// The work of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneRound {
    /// Instants that each lane goes through.
    pub instants: Vec<u64>,
    /// Requests that one thread makes meanwhile.
    pub requests: u64,
}

/// Time of the parts of a run, in nanoseconds of one core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneCosts {
    /// An instant of a lane.
    pub instant_ns: f64,
    /// To make a request.
    pub request_ns: f64,
    /// To begin and end a round with several threads.
    pub round_ns: f64,
    /// Before the first round and after the last: the workload is read, results are summed up.
    pub rest_ns: f64,
}

/// A run on a number of cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoresEstimate {
    /// Its time.
    pub wall_ns: f64,
    /// That of one core.
    pub work_ns: f64,
    /// The least time on any number of cores: the longest lane of each round, and what one thread
    /// does alone.
    pub critical_ns: f64,
}

impl LaneWork {
    /// A round is over, before which `requests` were made; `instants` counts those that each lane
    /// has gone through since the beginning.
    pub(super) fn note_round(&mut self, requests: u64, instants: impl Iterator<Item = u64>) {
        let (before, requests_before) = &mut self.seen;
        let now: Vec<u64> = instants.collect();
        before.resize(now.len(), 0);
        let during = now.iter().zip(&*before).map(|(now, before)| now - before).collect();
        self.rounds.push(LaneRound { instants: during, requests: requests - *requests_before });
        self.seen = (now, requests);
    }

    /// The run on `cores` cores.
    #[must_use]
    pub fn estimate(&self, cores: usize, costs: &LaneCosts) -> CoresEstimate {
        let cores = cores.max(1);
        let mut estimate = CoresEstimate { wall_ns: costs.rest_ns, work_ns: costs.rest_ns, critical_ns: costs.rest_ns };
        for round in &self.rounds {
            let made_ns = costs.request_ns * round.requests as f64;
            let lanes_ns: Vec<f64> = round.instants.iter().map(|count| *count as f64 * costs.instant_ns).collect();
            let longest_ns = lanes_ns.iter().copied().fold(0.0, f64::max);
            let all_ns: f64 = lanes_ns.iter().sum();
            estimate.work_ns += all_ns + made_ns;
            estimate.critical_ns += longest_ns.max(made_ns);
            estimate.wall_ns += match cores {
                1 => all_ns + made_ns,
                _ => costs.round_ns + round_ns(cores, &lanes_ns, made_ns),
            };
        }
        estimate
    }
}

/// Until all lanes are through: each free core takes the next one, the first after it has made the
/// requests of the next round.
fn round_ns(cores: usize, lanes_ns: &[f64], made_ns: f64) -> f64 {
    let mut free_ns = vec![0.0; cores];
    free_ns[0] = made_ns;
    for lane_ns in lanes_ns {
        let next = free_ns.iter_mut().min_by(|a, b| a.total_cmp(b)).expect("there is a core");
        *next += lane_ns;
    }
    free_ns.into_iter().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COSTS: LaneCosts = LaneCosts { instant_ns: 10.0, request_ns: 3.0, round_ns: 0.0, rest_ns: 100.0 };

    fn work(rounds: &[(&[u64], u64)]) -> LaneWork {
        let round =
            |(instants, requests): &(&[u64], u64)| LaneRound { instants: instants.to_vec(), requests: *requests };
        LaneWork { rounds: rounds.iter().map(round).collect(), ..LaneWork::default() }
    }

    #[test]
    fn free_cores_take_the_next_lane() {
        let work = work(&[(&[5, 1, 4, 2], 2), (&[3, 0, 0, 0], 0)]);
        // 100 of the rest, 12 instants and 2 requests, 3 instants.
        assert_eq!(work.estimate(1, &COSTS).wall_ns, 100.0 + 126.0 + 30.0);
        // The second core takes 50, the first after 6 the others: 10 and 40 until 56, and then 20.
        let on_two = work.estimate(2, &COSTS);
        assert_eq!(on_two.wall_ns, 100.0 + 70.0 + 30.0);
        assert_eq!((on_two.work_ns, on_two.critical_ns), (256.0, 100.0 + 50.0 + 30.0));
        assert_eq!(work.estimate(64, &COSTS).wall_ns, on_two.critical_ns);
    }

    proptest! {
        #[test]
        fn no_number_of_cores_is_faster_than_the_critical_path(
            rounds in prop::collection::vec((prop::collection::vec(0u64..50, 1..20), 0u64..9), 1..20),
            cores in 1usize..40,
        ) {
            let rounds: Vec<(&[u64], u64)> = rounds.iter().map(|(lanes, made)| (&lanes[..], *made)).collect();
            let work = work(&rounds);
            let estimate = work.estimate(cores, &COSTS);
            prop_assert!(estimate.critical_ns <= estimate.wall_ns + 1e-6);
            prop_assert!(estimate.wall_ns <= estimate.work_ns + 1e-6);
            prop_assert!(estimate.wall_ns * cores as f64 >= estimate.work_ns - 1e-6);
        }
    }
}
