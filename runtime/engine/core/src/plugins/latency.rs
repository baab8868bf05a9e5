//! Inputs and outputs of latency models.
//!
//! The engine decides *what* a step computes; a latency model decides *how long* it takes. The two
//! meet only here: a [`StepShape`] is a flat sum over the requests of one step, so pricing costs
//! the same for a batch of one and a batch of a thousand.

use crate::plugins::request_times::RequestTimes;

pub use vcr_policy::latency::{
    EncoderShape, EngineInfo, KvGroup, KvGroupKind, KvGroupShape, RecomputeShape, StepShape,
};

/// Consecutive steps of one engine, to be priced in one call.
#[derive(Clone, Copy, Debug)]
pub struct StepBatch<'a> {
    /// Virtual start time of the first step.
    pub start_ns: u64,
    /// Virtual time at which an outside event may change the schedule. Steps that would start at or
    /// after it are not priced (except the first), so a model with state never sees a step that
    /// does not happen.
    pub horizon_ns: u64,
    /// The steps in order; never empty.
    pub shapes: &'a [StepShape],
}

/// Blocks that a pure decode step takes, and blocks that leave windows in it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockChange {
    pub(crate) taken: u32,
    pub(crate) freed: u32,
}

/// Consecutive decode steps: each has the same requests as the previous one, with one more token in every
/// context, and possibly more blocks.
#[derive(Clone, Debug, Default)]
pub struct DecodeSteps {
    /// The step before the first of them, except for waiting requests.
    before: StepShape,
    /// [`StepShape::kv_active_blocks`] of each.
    kv_active_blocks: Vec<u64>,
}

impl DecodeSteps {
    /// Forgets all steps. The first that is added will follow `before`, which decodes,
    /// while this number of requests waits.
    pub fn restart(&mut self, before: &StepShape, waiting_requests: u64) {
        self.before = *before;
        self.before.waiting_requests = waiting_requests;
        self.kv_active_blocks.clear();
    }

    /// Forgets all steps.
    pub fn clear(&mut self) {
        self.kv_active_blocks.clear();
    }

    /// Adds a step that references this number of blocks.
    #[inline]
    pub fn push(&mut self, kv_active_blocks: u64) {
        self.kv_active_blocks.push(kv_active_blocks);
    }

    /// Adds a step for each of `changes` while the blocks that it allocates are free before it.
    pub(crate) fn push_while_room(&mut self, changes: &[BlockChange], mut free_blocks: u32) {
        let mut active_blocks = self.before.kv_active_blocks;
        for &BlockChange { taken, freed } in changes {
            let Some(left) = free_blocks.checked_sub(taken) else { return };
            free_blocks = left + freed;
            active_blocks = active_blocks + u64::from(taken) - u64::from(freed);
            self.push(active_blocks);
        }
    }

    /// The same where a step with this number of active blocks is scheduled already, which is
    /// added first: each step is added if the one after it is sure to come.
    pub(crate) fn push_after_scheduled(&mut self, mut active_blocks: u64, changes: &[BlockChange], free_blocks: u32) {
        let before = std::mem::replace(&mut self.before.kv_active_blocks, active_blocks);
        self.push_while_room(changes, free_blocks);
        self.before.kv_active_blocks = before;
        for after in &mut self.kv_active_blocks {
            std::mem::swap(after, &mut active_blocks);
        }
    }

    /// Number of steps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kv_active_blocks.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kv_active_blocks.is_empty()
    }

    /// [`StepShape::kv_active_blocks`] of each step.
    #[must_use]
    pub fn kv_active_blocks(&self) -> &[u64] {
        &self.kv_active_blocks
    }

    /// The step before them, with the same number of waiting requests.
    #[must_use]
    pub fn before(&self) -> &StepShape {
        &self.before
    }

    /// The step at `index`.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn shape(&self, index: usize) -> StepShape {
        self.before.decode_step(index as u64 + 1, self.kv_active_blocks[index])
    }

    /// All steps.
    pub fn shapes(&self) -> impl Iterator<Item = StepShape> + '_ {
        (0..self.len()).map(|index| self.shape(index))
    }
}

/// Share of the priced steps that resemble the fitted ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeUse {
    /// Duration of all steps that it has priced.
    pub priced_ns: u64,
    /// The steps among these beyond the range of its observations: extrapolated.
    pub outside_ns: u64,
    /// Duration of steps that tables of measured operators have priced.
    pub tables: TableUse,
}

/// The time that tables of measured operators have priced, by how it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUse {
    /// Priced by rows of the tables.
    pub measured_ns: u64,
    /// Between rows.
    pub interpolated_ns: u64,
    /// Priced by extrapolation beyond rows, or from rows of another shape.
    pub extrapolated_ns: u64,
    /// Priced by a formula, without a table.
    pub formula_ns: u64,
}

impl TableUse {
    /// The total time.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        [self.interpolated_ns, self.extrapolated_ns, self.formula_ns]
            .into_iter()
            .fold(self.measured_ns, u64::saturating_add)
    }

    fn plus(self, other: Self) -> Self {
        Self {
            measured_ns: self.measured_ns.saturating_add(other.measured_ns),
            interpolated_ns: self.interpolated_ns.saturating_add(other.interpolated_ns),
            extrapolated_ns: self.extrapolated_ns.saturating_add(other.extrapolated_ns),
            formula_ns: self.formula_ns.saturating_add(other.formula_ns),
        }
    }
}

impl RangeUse {
    /// Counts a step.
    #[inline]
    pub fn count(&mut self, duration_ns: u64, is_inside: bool) {
        self.priced_ns = self.priced_ns.saturating_add(duration_ns);
        self.outside_ns = self.outside_ns.saturating_add(if is_inside { 0 } else { duration_ns });
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            priced_ns: self.priced_ns.saturating_add(other.priced_ns),
            outside_ns: self.outside_ns.saturating_add(other.outside_ns),
            tables: self.tables.plus(other.tables),
        }
    }
}

/// Prices engine steps.
///
/// One instance belongs to one engine; it may keep state between steps. Equal construction and
/// equal calls must give equal answers.
pub trait LatencyModel: Send {
    /// Appends the duration in nanoseconds of each step of `batch` to
    /// `durations_ns`, in order: at least one, and no more than start before
    /// the horizon (see [`price_until_horizon`]).
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError>;

    /// Prices consecutive decode steps, the first starting at `start_ns`, as
    /// [`LatencyModel::price`] would. A model that prices millions of them may implement it faster.
    fn price_decodes(
        &mut self,
        start_ns: u64,
        horizon_ns: u64,
        steps: &DecodeSteps,
        durations_ns: &mut Vec<u64>,
    ) -> Result<(), LatencyError> {
        let shapes: Vec<StepShape> = steps.shapes().collect();
        self.price(&StepBatch { start_ns, horizon_ns, shapes: &shapes }, durations_ns)
    }

    /// Per-request times, if the model has them instead of prices of steps.
    fn request_times(&self) -> Option<Box<dyn RequestTimes>> {
        None
    }

    /// Whether a call is so costly that the caller should look for steps to
    /// price together.
    fn prefers_batches(&self) -> bool {
        false
    }

    /// The place for [`StepPlan::kv_group_shapes`](crate::plan::StepPlan::kv_group_shapes) of the next step, if the model
    /// reads them. The caller fills it and prices steps one at a time.
    fn kv_group_shapes(&mut self) -> Option<&mut Vec<KvGroupShape>> {
        None
    }

    /// Share of the priced steps in the fitted range; None for a model without such a range.
    fn range_use(&self) -> Option<RangeUse> {
        None
    }
}

/// Why a step could not be priced.
#[derive(Debug, thiserror::Error)]
#[error("latency model `{model}` failed: {reason}")]
pub struct LatencyError {
    /// The model's name as the user knows it.
    pub model: String,
    /// The problem and its remedy.
    pub reason: String,
}

/// Prices steps one at a time with `price_one` until the batch or its horizon
/// ends: the loop that every native model shares.
///
/// # Errors
/// The first error of `price_one`.
pub fn price_until_horizon(
    batch: &StepBatch<'_>,
    durations_ns: &mut Vec<u64>,
    mut price_one: impl FnMut(&StepShape) -> Result<u64, LatencyError>,
) -> Result<(), LatencyError> {
    let mut now_ns = batch.start_ns;
    for (index, shape) in batch.shapes.iter().enumerate() {
        if index > 0 && now_ns >= batch.horizon_ns {
            break;
        }
        let duration_ns = price_one(shape)?;
        durations_ns.push(duration_ns);
        now_ns = now_ns.saturating_add(duration_ns);
    }
    Ok(())
}
