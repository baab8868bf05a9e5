//! Step digests, which show where two runs of a scenario diverge.

use crate::manifest::{EngineSteps, RunSteps};

const DIGEST_BYTES: usize = 4;

/// The first step that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    pub run: String,
    /// Name of the engine; empty if the run has different engines.
    pub engine: String,
    /// Index of the step among the engine's steps, from 0.
    pub step: u64,
    /// Numbers of expected and of actual steps of the engine.
    pub steps: (u64, u64),
}

/// Encodes the digests of runs as an entry of a pack.
pub fn to_bytes<'a>(runs: impl IntoIterator<Item = &'a Vec<Vec<u32>>>) -> Vec<u8> {
    runs.into_iter().flatten().flatten().flat_map(|digest| digest.to_le_bytes()).collect()
}

/// Decodes the digests of the engines of `runs` from an entry of a pack.
///
/// # Errors
/// When the number of digests differs from the manifest.
pub fn from_bytes(bytes: &[u8], runs: &[RunSteps]) -> Result<Vec<Vec<Vec<u32>>>, String> {
    let expected: u64 =
        runs.iter().flat_map(|run| &run.engines).map(|engine| engine.steps).fold(0, u64::saturating_add);
    let (digests, rest) = bytes.as_chunks::<DIGEST_BYTES>();
    if digests.len() as u64 != expected || !rest.is_empty() {
        return Err(format!("{} digests of steps: expected {expected}", digests.len()));
    }
    let mut digests = digests.iter().map(|digest| u32::from_le_bytes(*digest));
    let mut engine = |engine: &EngineSteps| digests.by_ref().take(engine.steps as usize).collect::<Vec<u32>>();
    Ok(runs.iter().map(|run| run.engines.iter().map(&mut engine).collect()).collect())
}

/// Finds the first divergence of `found` from `expected`, each with names of runs and engines. A digest covers all
/// earlier steps too, so the first different digest belongs to the first different step. If several engines of a run
/// differ, the first one in order is returned, which may not be the earliest in time.
#[must_use]
pub fn first_divergence(
    (expected_runs, expected): (&[RunSteps], &[Vec<Vec<u32>>]),
    (found_runs, found): (&[RunSteps], &[Vec<Vec<u32>>]),
) -> Option<Divergence> {
    for (index, run) in expected_runs.iter().enumerate() {
        let divergence =
            |engine: &str, step, steps| Divergence { run: run.name.clone(), engine: engine.to_owned(), step, steps };
        let same =
            found_runs.get(index).filter(|other| other.name == run.name && other.engines.len() == run.engines.len());
        let Some(other) = same else { return Some(divergence("", 0, (0, 0))) };
        for (engine, name) in run.engines.iter().enumerate() {
            if other.engines[engine].name != name.name {
                return Some(divergence("", 0, (0, 0)));
            }
            let (left, right) = (&expected[index][engine], &found[index][engine]);
            if left != right {
                let step = left.iter().zip(right).take_while(|(a, b)| a == b).count() as u64;
                return Some(divergence(&name.name, step, (left.len() as u64, right.len() as u64)));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(steps: &[u64]) -> Vec<RunSteps> {
        let engine = |(index, steps): (usize, &u64)| EngineSteps { name: format!("e{index}"), steps: *steps };
        vec![RunSteps { name: "r".to_owned(), engines: steps.iter().enumerate().map(engine).collect() }]
    }

    #[test]
    fn digests_survive_and_are_counted() {
        let digests = vec![vec![vec![1, 2, u32::MAX], vec![]]];
        let bytes = to_bytes(&digests);
        assert_eq!(from_bytes(&bytes, &runs(&[3, 0])), Ok(digests));
        assert!(from_bytes(&bytes, &runs(&[3, 1])).is_err());
        assert!(from_bytes(&bytes[1..], &runs(&[3, 0])).is_err());
        assert!(from_bytes(&bytes, &runs(&[u64::MAX, 5])).is_err());
    }

    #[test]
    fn the_first_step_that_differs_is_named() {
        let of = |left: [Vec<u32>; 2], right: [Vec<u32>; 2]| {
            let counts = |side: &[Vec<u32>; 2]| runs(&[side[0].len() as u64, side[1].len() as u64]);
            let (left_runs, right_runs) = (counts(&left), counts(&right));
            first_divergence((&left_runs, &[left.to_vec()]), (&right_runs, &[right.to_vec()]))
        };
        assert_eq!(of([vec![1], vec![2, 3]], [vec![1], vec![2, 3]]), None);
        let found = of([vec![1], vec![2, 3, 4]], [vec![1], vec![2, 9, 9]]).expect("they differ");
        assert_eq!((found.engine.as_str(), found.step), ("e1", 1));
        let found = of([vec![1, 2], vec![]], [vec![1], vec![]]).expect("one has more");
        assert_eq!((found.step, found.steps), (1, (2, 1)));
    }
}
