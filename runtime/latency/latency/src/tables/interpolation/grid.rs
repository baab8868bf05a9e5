//! The attention time of one GPU's heads, as a function of batch and sequence length.

use crate::tables::interpolation::nested::{Node, Rules};
use crate::tables::{Priced, Source};

/// Sequence length and batch up to which tables are extrapolated in advance: a million tokens and four thousand
/// requests.
const SEQUENCE_MAX: u32 = 1 << 20;
const BATCH_MAX: u32 = 1 << 12;

/// The order of the axes in a table, after the axis of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Sequence, then batch: for prefills. Times grow with the square of the sequence.
    SequenceBatch,
    BatchSequence,
}

/// The minimum time for a batch and a sequence length, in nanoseconds.
pub(crate) type Limit = Box<dyn Fn(f64, f64) -> f64 + Send + Sync>;

/// A full rectangle of times, interpolated linearly.
pub(crate) struct Grid {
    batches: Vec<f64>,
    sequences: Vec<f64>,
    /// The cells by batch, then by sequence.
    cells: Vec<(f64, Source)>,
    order: Order,
    limit: Limit,
}

/// Position of a value among keys: the index of the key before it, and the fraction of the way to the next key.
#[derive(Clone, Copy)]
struct Place {
    below: usize,
    weight: f64,
}

impl Grid {
    /// Fills a rectangle from a ragged table over heads and two other axes in `order`. `table_limit` takes heads, batch
    /// and sequence. Where the table has no data, the time is `formula` of the limit.
    pub(crate) fn new(
        table: &Node,
        heads: u32,
        order: Order,
        table_limit: &dyn Fn(f64, f64, f64) -> f64,
        limit: Limit,
        formula: impl Fn(f64) -> f64,
    ) -> Self {
        let (batch_axis, sequence_axis) = match order {
            Order::SequenceBatch => (2, 1),
            Order::BatchSequence => (1, 2),
        };
        let batches = continued(&table.keys(batch_axis), BATCH_MAX);
        let sequences = continued(&table.keys(sequence_axis), SEQUENCE_MAX);
        let leaves = table.leaves();
        let of_point = |point: &[f64]| table_limit(point[0], point[batch_axis], point[sequence_axis]);
        let rules = Rules { limit: &of_point, square_axis: (order == Order::SequenceBatch).then_some(sequence_axis) };
        let cell = |batch: f64, sequence: f64| {
            let point = match order {
                Order::SequenceBatch => [f64::from(heads), sequence, batch],
                Order::BatchSequence => [f64::from(heads), batch, sequence],
            };
            table.price(&rules, &leaves, &point).unwrap_or_else(|| (formula(limit(batch, sequence)), Source::Formula))
        };
        let all = batches.iter().flat_map(|&batch| sequences.iter().map(move |&sequence| (batch, sequence)));
        let cells = all.map(|(batch, sequence)| cell(batch, sequence)).collect();
        Self { batches, sequences, cells, order, limit }
    }

    /// The time for a batch of requests with the same sequence length.
    pub(crate) fn price(&self, batch: f64, sequence: f64) -> Priced {
        let place = place(&self.batches, batch);
        let (ns, source) = self.at(place, batch, sequence);
        Priced::new(ns, source)
    }

    /// The mean over five sequence lengths from 0.9 to 1.1 times `sequence`: the cost of a batch of decodes with
    /// different lengths.
    pub(crate) fn price_around(&self, batch: f64, sequence: f64) -> Priced {
        const FACTORS: [f64; 5] = [0.9, 0.95, 1.0, 1.05, 1.1];
        let place = place(&self.batches, batch);
        let mut total = Priced::default();
        for factor in FACTORS {
            let (ns, source) = self.at(place, batch, (sequence * factor).max(1.0));
            total += Priced::new(ns / FACTORS.len() as f64, source);
        }
        total
    }

    fn at(&self, batch_place: Place, batch: f64, sequence: f64) -> (f64, Source) {
        let sequence_place = place(&self.sequences, sequence);
        let width = self.sequences.len();
        let corner = batch_place.below * width + sequence_place.below;
        let next_batch = corner + width * usize::from(batch_place.weight > 0.0);
        let next = usize::from(sequence_place.weight > 0.0);
        let corners = [corner, next_batch, corner + next, next_batch + next];
        let [a, b, c, d] = corners.map(|index| self.cells[index]);
        let (left, right) = (lerp(a.0, b.0, batch_place.weight), lerp(c.0, d.0, batch_place.weight));
        let mut ns = if self.order == Order::SequenceBatch {
            let root = lerp(left.sqrt(), right.sqrt(), sequence_place.weight);
            root * root
        } else {
            lerp(left, right, sequence_place.weight)
        };
        let mut source = a.1.max(b.1).max(c.1).max(d.1);
        if batch_place.weight > 0.0 || sequence_place.weight > 0.0 {
            source = source.max(Source::Interpolated);
        }
        let (within_batch, within_sequence) = (clamped(&self.batches, batch), clamped(&self.sequences, sequence));
        if within_batch != batch || within_sequence != sequence {
            let growth = (self.limit)(batch, sequence) / (self.limit)(within_batch, within_sequence);
            if growth.is_finite() && growth > 0.0 {
                ns *= growth;
            }
            source = source.max(Source::Extrapolated);
        }
        (ns, source)
    }
}

fn clamped(keys: &[f64], value: f64) -> f64 {
    value.clamp(keys[0], keys[keys.len() - 1])
}

/// The keys, preceded by 1 and followed by doublings up to `max`.
fn continued(keys: &[u32], max: u32) -> Vec<f64> {
    let last = keys.last().copied().unwrap_or(1);
    let beyond = std::iter::successors(last.checked_mul(2), |key| key.checked_mul(2)).take_while(|&key| key <= max);
    let mut keys: Vec<u32> =
        std::iter::once(1).chain(keys.iter().copied().filter(|&key| key > 0)).chain(beyond).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(f64::from).collect()
}

fn place(keys: &[f64], value: f64) -> Place {
    let below = keys.partition_point(|&key| key <= value).saturating_sub(1);
    match keys.get(below + 1) {
        Some(&above) if value > keys[below] => Place { below, weight: (value - keys[below]) / (above - keys[below]) },
        _ => Place { below, weight: 0.0 },
    }
}

#[inline]
fn lerp(from: f64, to: f64, weight: f64) -> f64 {
    from + (to - from) * weight
}
