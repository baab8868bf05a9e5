//! The search: finds, for each family of deployments, flags and the fewest replicas that keep all objectives.
//!
//! Deployments of a family have the same model, GPU, parallel sizes and mode. Its shapes differ in flags, and a
//! replica of each shape costs the same. Bisection finds the fewest replicas that carry the load. If more replicas
//! hurt an objective, such as a cost, only these replicas can keep it. Flags are compared on parts of the load, the
//! shortest part first; the best quarter advances to the next part. Families that would cost much more than the
//! cheapest one drop out. The remaining families are decided on the whole load.
//!
//! The search is pure: it simulates through [`Simulate`], which runs each simulation only once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A deployment and a part of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Probe {
    /// Index of the shape.
    pub(crate) shape: usize,
    pub(crate) replicas: u32,
    /// Index of the part of the load; the last part is the whole.
    pub(crate) part: usize,
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Score {
    /// Whether all objectives are kept.
    pub(crate) passed: bool,
    /// Whether all objectives that more replicas do not hurt are kept.
    pub(crate) carries: bool,
    /// Headroom of the tightest objective, as a share of its limit.
    pub(crate) headroom: f64,
}

/// Runs simulations, several concurrently.
pub(crate) trait Simulate: Sync {
    type Error: Send;

    /// Returns scores in the order of the probes.
    fn simulate(&self, probes: &[Probe]) -> Result<Vec<Score>, Self::Error>;

    /// Calls `act` for each index concurrently, and returns the results in order.
    fn each<T: Send>(&self, count: usize, act: &(dyn Fn(usize) -> T + Sync)) -> Vec<T>;

    /// Whether the time for the search is over. Then running simulations finish, and only one family is still
    /// decided.
    fn is_over(&self) -> bool;
}

/// Deployments of one model, GPU, parallel sizes and mode.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Family {
    /// Indices of its shapes.
    pub(crate) shapes: Vec<usize>,
    /// Price of a replica.
    pub(crate) price: f64,
    /// Number of replicas at which the search starts: by estimate, fewer cannot carry the load.
    pub(crate) least: u32,
    /// Smallest and largest allowed number of replicas.
    pub(crate) fewest: u32,
    pub(crate) most: u32,
}

impl Family {
    pub(crate) fn range(&self) -> (u32, u32) {
        (self.fewest, self.most)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Found {
    /// The fewest replicas that keep all objectives with the whole load, and their best flags.
    Least { shape: usize, replicas: u32 },
    /// No number of replicas keeps the objectives. `shape` and `replicas` are nearest to them: the most replicas, or
    /// the fewest that carry the load if more hurt an objective.
    Infeasible { shape: usize, replicas: u32, part: usize },
    /// These replicas are needed for a part of the load, and cost more than other families.
    Dearer { shape: usize, replicas: u32, part: usize },
    /// The time was over first.
    Unfinished,
}

/// A family takes part in the comparison of flags if its first flags cost at most this factor more than the cheapest.
const WITHIN_FIRST: f64 = 2.0;
/// A family advances to the next part if it costs at most this factor more than the cheapest.
const WITHIN: f64 = 1.5;
/// One in this many shapes of a family advances to the next part.
const ONE_IN: usize = 4;
/// Number of families that advance at least.
const AT_LEAST: usize = 2;
/// Largest number of shapes of a family that are simulated with the whole load.
const FINALISTS: usize = 2;
/// If an objective that more replicas hurt is missed by at most this fraction of its limit, all flags are tried.
const CLOSE: f64 = -0.1;

/// The state of a family during the search.
#[derive(Clone, Debug)]
struct Racing {
    /// Shapes that advance, the best first.
    shapes: Vec<usize>,
    /// The fewest replicas that carried the last part; none if no number of replicas did.
    replicas: Option<u32>,
}

/// Searches all families; `found` gets their results in order, even after an error. The load has `parts` parts.
pub(crate) fn search<S: Simulate>(
    simulate: &S,
    families: &[Family],
    parts: usize,
    found: &mut Vec<Found>,
) -> Result<(), S::Error> {
    let whole = parts - 1;
    let mut racing: Vec<Racing> =
        families.iter().map(|family| Racing { shapes: family.shapes.clone(), replicas: Some(family.least) }).collect();
    *found = vec![Found::Unfinished; families.len()];
    let mut active = promising(simulate, families, &mut racing, found)?;
    for part in 0..whole {
        if simulate.is_over() {
            break;
        }
        let raced = simulate.each(active.len(), &|index| {
            let number = active[index];
            race(simulate, &families[number], &racing[number], part)
        });
        for (number, raced) in active.iter().zip(raced) {
            racing[*number] = raced?;
        }
        active = next_active(families, &racing, found, active, part);
    }
    // Decide the family with the lowest estimated price first, because its price rules out others.
    let mut order = active;
    let estimate = |racing: &[Racing], number: usize| price(&families[number], racing[number].replicas);
    order.sort_by(|a, b| estimate(&racing[..], *a).total_cmp(&estimate(&racing[..], *b)));
    let mut cheapest = f64::INFINITY;
    let mut next = order.iter().take(1).copied().collect::<Vec<_>>();
    let mut decided = vec![false; families.len()];
    while !next.is_empty() {
        let results = simulate.each(next.len(), &|index| {
            let number = next[index];
            decide(simulate, &families[number], &racing[number], whole, cheapest)
        });
        let mut failed = None;
        for (number, result) in next.iter().zip(results) {
            match result {
                Ok(result) => found[*number] = result,
                Err(error) => failed = Some(error),
            }
            decided[*number] = true;
            if let Found::Least { replicas, .. } = found[*number] {
                cheapest = cheapest.min(price(&families[*number], Some(replicas)));
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if simulate.is_over() && cheapest.is_finite() {
            break;
        }
        // Families that may be cheaper by their result on a part, and families that advanced to the whole load.
        let may_be_cheaper = |number: &usize| match found[*number] {
            Found::Dearer { replicas, .. } => price(&families[*number], Some(replicas)) <= cheapest,
            _ => order.contains(number),
        };
        next = (0..families.len()).filter(|number| !decided[*number] && may_be_cheaper(number)).collect();
        next.sort_by(|a, b| estimate(&racing[..], *a).total_cmp(&estimate(&racing[..], *b)));
        if cheapest.is_infinite() {
            next.truncate(1);
        }
    }
    if !simulate.is_over() {
        polish(simulate, families, found, whole)?;
    }
    Ok(())
}

/// Tries all flags of the cheapest deployments on the whole load, because its parts do not show the best flags.
fn polish<S: Simulate>(simulate: &S, families: &[Family], found: &mut [Found], whole: usize) -> Result<(), S::Error> {
    let price_of = |family: &Family, found: &Found| match *found {
        Found::Least { replicas, .. } => price(family, Some(replicas)),
        _ => f64::INFINITY,
    };
    let prices = families.iter().zip(&*found).map(|(family, found)| price_of(family, found));
    let cheapest = prices.fold(f64::INFINITY, f64::min);
    for (family, found) in families.iter().zip(found) {
        let Found::Least { replicas, .. } = *found else { continue };
        if price(family, Some(replicas)) > cheapest {
            continue;
        }
        let mut shapes = family.shapes.clone();
        let scores = scores(simulate, &shapes, replicas, whole)?;
        sort(&mut shapes, &scores);
        *found = Found::Least { shape: shapes[0], replicas };
    }
    Ok(())
}

/// The families whose flags are compared: those whose first flags cost at most [`WITHIN_FIRST`] times the cheapest on
/// the first part of the load. If the first flags fail with all replicas, other flags may pass, so the estimated
/// replicas are used.
fn promising<S: Simulate>(
    simulate: &S,
    families: &[Family],
    racing: &mut [Racing],
    found: &mut [Found],
) -> Result<Vec<usize>, S::Error> {
    let first = simulate.each(families.len(), &|number| {
        let family = &families[number];
        if simulate.is_over() {
            return Ok(None);
        }
        least(simulate, family.shapes[0], family.least, family.range(), 0)
    });
    let first = first.into_iter().collect::<Result<Vec<_>, _>>()?;
    let prices = families.iter().zip(&first).map(|(family, replicas)| price(family, *replicas));
    let limit = prices.fold(f64::INFINITY, f64::min) * WITHIN_FIRST;
    let mut kept = Vec::new();
    for (number, (family, replicas)) in families.iter().zip(&first).enumerate() {
        let replicas = replicas.unwrap_or(family.least);
        racing[number].replicas = Some(replicas);
        if price(family, Some(replicas)) <= limit {
            kept.push(number);
        } else {
            found[number] = Found::Dearer { shape: family.shapes[0], replicas, part: 0 };
        }
    }
    Ok(kept)
}

fn price(family: &Family, replicas: Option<u32>) -> f64 {
    replicas.map_or(f64::INFINITY, |replicas| family.price * f64::from(replicas))
}

/// Returns the families that advance to the next part, and records the results of the others.
fn next_active(
    families: &[Family],
    racing: &[Racing],
    found: &mut [Found],
    active: Vec<usize>,
    part: usize,
) -> Vec<usize> {
    let of = |number: usize| price(&families[number], racing[number].replicas);
    let mut by_price = active;
    by_price.sort_by(|a, b| of(*a).total_cmp(&of(*b)));
    let limit = by_price.first().map_or(f64::INFINITY, |first| of(*first) * WITHIN);
    let mut kept = Vec::new();
    for number in by_price {
        let Racing { shapes, replicas } = &racing[number];
        match replicas {
            None => found[number] = Found::Infeasible { shape: shapes[0], replicas: families[number].most, part },
            Some(_) if kept.len() < AT_LEAST || of(number) <= limit => kept.push(number),
            Some(replicas) => found[number] = Found::Dearer { shape: shapes[0], replicas: *replicas, part },
        }
    }
    kept.sort_unstable();
    kept
}

/// Compares the shapes of a family on a part of the load: finds the fewest replicas and the best shapes.
fn race<S: Simulate>(simulate: &S, family: &Family, before: &Racing, part: usize) -> Result<Racing, S::Error> {
    if simulate.is_over() {
        return Ok(before.clone());
    }
    let mut shapes = before.shapes.clone();
    let guess = before.replicas.unwrap_or(family.most);
    let Some(mut replicas) = least(simulate, shapes[0], guess, family.range(), part)? else {
        return race_beyond(simulate, family, shapes, part);
    };
    // Other shapes may pass with fewer replicas than the first one.
    while replicas > family.fewest {
        let scores = scores(simulate, &shapes, replicas - 1, part)?;
        let passing = shapes.iter().zip(&scores).filter(|(_, score)| score.carries);
        let mut passing: Vec<(usize, Score)> = passing.map(|(shape, score)| (*shape, *score)).collect();
        if passing.is_empty() {
            sort(&mut shapes, &scores);
            break;
        }
        passing.sort_by(|a, b| b.1.headroom.total_cmp(&a.1.headroom));
        let best = passing[0].0;
        shapes = passing.into_iter().map(|(shape, _)| shape).collect();
        replicas = least(simulate, best, replicas - 1, (family.fewest, replicas - 1), part)?.unwrap_or(replicas - 1);
    }
    if replicas == family.fewest {
        let scores = scores(simulate, &shapes, replicas, part)?;
        sort(&mut shapes, &scores);
    }
    shapes.truncate(shapes.len().div_ceil(ONE_IN).max(FINALISTS));
    Ok(Racing { shapes, replicas: Some(replicas) })
}

/// Compares the shapes with the most replicas, after the first shape failed with all of them.
fn race_beyond<S: Simulate>(
    simulate: &S,
    family: &Family,
    mut shapes: Vec<usize>,
    part: usize,
) -> Result<Racing, S::Error> {
    let scores = scores(simulate, &shapes, family.most, part)?;
    let carrying = shapes.iter().zip(&scores).filter(|(_, score)| score.carries);
    let carries = carrying.max_by(|a, b| a.1.headroom.total_cmp(&b.1.headroom)).map(|(shape, _)| *shape);
    sort(&mut shapes, &scores);
    let replicas = match carries {
        Some(shape) => least(simulate, shape, family.most, family.range(), part)?,
        None => None,
    };
    shapes.truncate(shapes.len().div_ceil(ONE_IN).max(FINALISTS));
    Ok(Racing { shapes, replicas })
}

/// Finds the fewest replicas of a family with the whole load, and their best shape. If one replica less would cost no
/// more than the cheapest family so far, flags dropped on parts of the load are tried too: parts have short queues,
/// so they favour small batches.
fn decide<S: Simulate>(
    simulate: &S,
    family: &Family,
    racing: &Racing,
    whole: usize,
    cheapest: f64,
) -> Result<Found, S::Error> {
    let shapes = &racing.shapes[..racing.shapes.len().min(FINALISTS)];
    let mut guess = racing.replicas.unwrap_or(family.most);
    let mut best: Option<(u32, usize)> = None;
    for shape in shapes {
        let most = best.map_or(family.most, |(replicas, _)| replicas);
        let Some(replicas) = least(simulate, *shape, guess.min(most), (family.fewest, most), whole)? else { continue };
        let headroom =
            |shape: usize| -> Result<f64, S::Error> { Ok(scores(simulate, &[shape], replicas, whole)?[0].headroom) };
        let is_better = match best {
            Some((known, other)) => replicas < known || headroom(*shape)? > headroom(other)?,
            None => true,
        };
        if is_better {
            best = Some((replicas, *shape));
        }
        guess = replicas;
    }
    while let Some((replicas, _)) = best
        && replicas > family.fewest
        && price(family, Some(replicas - 1)) <= cheapest
        && !simulate.is_over()
    {
        let scores = scores(simulate, &family.shapes, replicas - 1, whole)?;
        let passing = family.shapes.iter().zip(scores).filter(|(_, score)| score.carries);
        let Some((shape, _)) = passing.max_by(|a, b| a.1.headroom.total_cmp(&b.1.headroom)) else { break };
        let fewer = least(simulate, *shape, replicas - 1, (family.fewest, replicas - 1), whole)?;
        let fewer = fewer.unwrap_or(replicas - 1);
        best = Some((fewer, *shape));
    }
    let Some((replicas, shape)) = best else {
        return Ok(Found::Infeasible { shape: shapes[0], replicas: family.most, part: whole });
    };
    let score = scores(simulate, &[shape], replicas, whole)?[0];
    if score.passed {
        return Ok(Found::Least { shape, replicas });
    }
    // More replicas would make the failed objective worse.
    let tried = if score.headroom >= CLOSE { &family.shapes[..] } else { shapes };
    let scores = scores(simulate, tried, replicas, whole)?;
    let rank = |score: &Score| (score.passed, score.headroom);
    let (shape, score) = tried
        .iter()
        .zip(scores)
        .fold((shape, score), |best, (shape, score)| if rank(&score) > rank(&best.1) { (*shape, score) } else { best });
    Ok(match score.passed {
        true => Found::Least { shape, replicas },
        false => Found::Infeasible { shape, replicas, part: whole },
    })
}

/// The fewest replicas in a range that carry the load with a shape. The search starts at `guess`.
fn least<S: Simulate>(
    simulate: &S,
    shape: usize,
    guess: u32,
    range: (u32, u32),
    part: usize,
) -> Result<Option<u32>, S::Error> {
    least_holding(guess, range, |replicas| {
        simulate.simulate(&[Probe { shape, replicas, part }]).map(|scores| scores[0].carries)
    })
}

/// The smallest number in a range for which the monotonic `holds` is true: growing steps from `guess`, then
/// bisection.
fn least_holding<E>(
    guess: u32,
    (fewest, most): (u32, u32),
    holds: impl Fn(u32) -> Result<bool, E>,
) -> Result<Option<u32>, E> {
    // `broken` fails or is below the range; `kept` passes.
    let (mut broken, mut kept) = (fewest - 1, guess.clamp(fewest, most));
    let mut step = 1;
    if holds(kept)? {
        while kept > fewest {
            let tried = kept.saturating_sub(step).max(fewest);
            if !holds(tried)? {
                broken = tried;
                break;
            }
            kept = tried;
            step *= 2;
        }
    } else {
        loop {
            broken = kept;
            if broken == most {
                return Ok(None);
            }
            kept = broken.saturating_add(step).min(most);
            if holds(kept)? {
                break;
            }
            step *= 2;
        }
    }
    while kept - broken > 1 {
        let middle = broken + (kept - broken) / 2;
        if holds(middle)? { kept = middle } else { broken = middle }
    }
    Ok(Some(kept))
}

fn scores<S: Simulate>(simulate: &S, shapes: &[usize], replicas: u32, part: usize) -> Result<Vec<Score>, S::Error> {
    let probes: Vec<Probe> = shapes.iter().map(|shape| Probe { shape: *shape, replicas, part }).collect();
    simulate.simulate(&probes)
}

/// Sorts shapes by descending headroom. The sort is stable.
fn sort(shapes: &mut [usize], scores: &[Score]) {
    let by_shape: BTreeMap<usize, f64> =
        shapes.iter().copied().zip(scores.iter().map(|score| score.headroom)).collect();
    shapes.sort_by(|a, b| by_shape[b].total_cmp(&by_shape[a]));
}

/// Decides each family by simulating all deployments with the whole load.
pub(crate) fn exhaustive<S: Simulate>(
    simulate: &S,
    families: &[Family],
    whole: usize,
    found: &mut Vec<Found>,
) -> Result<(), S::Error> {
    *found = vec![Found::Unfinished; families.len()];
    for (family, found) in families.iter().zip(found) {
        if simulate.is_over() {
            break;
        }
        let mut nearest = (f64::NEG_INFINITY, family.shapes[0], family.most);
        let mut best = None;
        for replicas in family.fewest..=family.most {
            let scores = scores(simulate, &family.shapes, replicas, whole)?;
            let mut all: Vec<(usize, Score)> = family.shapes.iter().copied().zip(scores).collect();
            all.sort_by(|a, b| b.1.headroom.total_cmp(&a.1.headroom));
            if all[0].1.headroom > nearest.0 {
                nearest = (all[0].1.headroom, all[0].0, replicas);
            }
            if let Some((shape, _)) = all.into_iter().find(|(_, score)| score.passed)
                && best.is_none()
            {
                best = Some(Found::Least { shape, replicas });
            }
        }
        let (_, shape, replicas) = nearest;
        *found = best.unwrap_or(Found::Infeasible { shape, replicas, part: whole });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
