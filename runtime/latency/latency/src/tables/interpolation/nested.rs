//! Tables with several axes as measured: ragged, with holes at large sizes.

use std::collections::BTreeMap;

use crate::tables::Source;

/// A point beyond the table takes the utilisation of this many nearest rows.
const NEIGHBOURS: usize = 4;

/// A table over several axes, outermost first. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// The keys of one axis, each with the rest of the table.
    Branch(BTreeMap<u32, Node>),
    Leaf(f64),
}

/// Rules for points between and beyond rows.
pub(crate) struct Rules<'a> {
    /// The minimum time that the hardware allows at a point of the table.
    pub(crate) limit: &'a dyn Fn(&[f64]) -> f64,
    /// The axis along which times grow with the square. Along it, square roots are interpolated.
    pub(crate) square_axis: Option<usize>,
}

/// The point is not between rows.
struct Outside;

impl Default for Node {
    fn default() -> Self {
        Self::Branch(BTreeMap::new())
    }
}

impl Node {
    /// Inserts a row. If the row exists already, the earlier one stays.
    pub(crate) fn insert(&mut self, path: &[u32], ns: f64) {
        let Self::Branch(children) = self else { return };
        match path {
            [] => {}
            [key] => {
                children.entry(*key).or_insert(Self::Leaf(ns));
            }
            [key, rest @ ..] => children.entry(*key).or_default().insert(rest, ns),
        }
    }

    pub(crate) fn children(&self) -> Option<&BTreeMap<u32, Self>> {
        match self {
            Self::Branch(children) => Some(children),
            Self::Leaf(_) => None,
        }
    }

    /// Position and time of each row.
    pub(crate) fn leaves(&self) -> Vec<(Vec<f64>, f64)> {
        let mut leaves = Vec::new();
        self.collect(&mut Vec::new(), &mut leaves);
        leaves
    }

    fn collect(&self, path: &mut Vec<f64>, leaves: &mut Vec<(Vec<f64>, f64)>) {
        match self {
            Self::Leaf(ns) => leaves.push((path.clone(), *ns)),
            Self::Branch(children) => {
                for (&key, child) in children {
                    path.push(f64::from(key));
                    child.collect(path, leaves);
                    path.pop();
                }
            }
        }
    }

    /// The keys of one axis, from all branches.
    pub(crate) fn keys(&self, axis: usize) -> Vec<u32> {
        let mut keys = Vec::new();
        self.collect_keys(axis, &mut keys);
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn collect_keys(&self, axis: usize, keys: &mut Vec<u32>) {
        let Self::Branch(children) = self else { return };
        if axis == 0 {
            keys.extend(children.keys());
            return;
        }
        for child in children.values() {
            child.collect_keys(axis - 1, keys);
        }
    }

    /// The time at a point. None for a table without rows.
    pub(crate) fn price(&self, rules: &Rules<'_>, leaves: &[(Vec<f64>, f64)], point: &[f64]) -> Option<(f64, Source)> {
        match self.inside(rules, point, 0) {
            Ok(priced) => Some(priced),
            Err(Outside) => beyond(rules, leaves, point).map(|ns| (ns, Source::Extrapolated)),
        }
    }

    fn inside(&self, rules: &Rules<'_>, point: &[f64], axis: usize) -> Result<(f64, Source), Outside> {
        let children = match self {
            Self::Leaf(ns) => return Ok((*ns, Source::Measured)),
            Self::Branch(children) => children,
        };
        let at = *point.get(axis).ok_or(Outside)?;
        if at >= 0.0
            && at.fract() == 0.0
            && let Some(child) = children.get(&(at as u32))
        {
            return child.inside(rules, point, axis + 1);
        }
        let below = children.range(..=at.max(0.0) as u32).next_back().ok_or(Outside)?;
        let above = children.range(at.max(0.0) as u32 + 1..).next().ok_or(Outside)?;
        let priced = [below, above].map(|(key, child)| (f64::from(*key), child.inside(rules, point, axis + 1).ok()));
        match priced {
            [(low, Some(below)), (high, Some(above))] => {
                let weight = (at - low) / (high - low);
                let ns = if rules.square_axis == Some(axis) {
                    let root = below.0.sqrt() + (above.0.sqrt() - below.0.sqrt()) * weight;
                    root * root
                } else {
                    below.0 + (above.0 - below.0) * weight
                };
                Ok((ns, below.1.max(above.1).max(Source::Interpolated)))
            }
            // Only one of the two keys has rows there. The other key's time follows by the growth of the limit.
            [(key, Some((ns, _))), (_, None)] | [(_, None), (key, Some((ns, _)))] => {
                let mut there = point.to_vec();
                there[axis] = key;
                let growth = (rules.limit)(point) / (rules.limit)(&there);
                let ns = if growth.is_finite() && growth > 0.0 { ns * growth } else { ns };
                Ok((ns, Source::Extrapolated))
            }
            _ => Err(Outside),
        }
    }
}

/// The time at a point beyond the rows: the hardware's limit, scaled by the utilisation of the nearest rows. Distances
/// are in doublings along all axes. A row's weight falls to 0 at the distance of the next row, so that no row enters or
/// leaves with a jump.
fn beyond(rules: &Rules<'_>, leaves: &[(Vec<f64>, f64)], point: &[f64]) -> Option<f64> {
    let log = |value: f64| libm::log2(value.max(1e-12));
    let here: Vec<f64> = point.iter().map(|&value| log(value)).collect();
    let mut near: Vec<(f64, f64)> = leaves
        .iter()
        .filter_map(|(at, ns)| {
            let limit = (rules.limit)(at);
            let squares = at.iter().zip(&here).map(|(&value, &here)| (log(value) - here) * (log(value) - here));
            (*ns > 0.0 && limit.is_finite() && limit > 0.0).then(|| (squares.sum::<f64>().sqrt(), limit / ns))
        })
        .collect();
    near.sort_by(|one, other| one.0.total_cmp(&other.0));
    let reach = near.get(NEIGHBOURS).map_or(f64::INFINITY, |next| next.0);
    near.truncate(NEIGHBOURS);
    let weight = |distance: f64| {
        if reach.is_infinite() {
            return 1.0 / (distance * distance + 1e-12);
        }
        let share = (reach - distance).max(0.0) / (reach * distance + 1e-12);
        share * share
    };
    let mut weights: Vec<f64> = near.iter().map(|&(distance, _)| weight(distance)).collect();
    if weights.iter().sum::<f64>() <= 0.0 {
        weights.fill(1.0);
    }
    let utilisation = near.iter().zip(&weights).map(|((_, utilisation), weight)| utilisation * weight).sum::<f64>()
        / weights.iter().sum::<f64>();
    let ns = (rules.limit)(point) / utilisation;
    (ns.is_finite() && ns > 0.0).then_some(ns)
}
