//! Inputs and outputs of latency models.
//!
//! The engine decides *what* a step computes; a latency model decides *how long* it takes. The interface
//! between them is a [`StepShape`], which has sums over the requests of one step. So pricing a batch of one request
//! costs the same as pricing a batch of a thousand.

use crate::plugins::request_times::RequestTimes;

pub use vcr_policy::latency::{
    EncoderShape, EngineInfo, KvGroup, KvGroupKind, KvGroupShape, RecomputeShape, StepShape,
};

/// Consecutive steps of one engine, which one call prices.
#[derive(Clone, Copy, Debug)]
pub struct StepBatch<'a> {
    /// Virtual start time of the first step.
    pub start_ns: u64,
    /// Virtual time at which an outside event may change the schedule. Except for the first step, steps that would
    /// start at or after this time are not priced, so a model with state never sees a step that
    /// does not happen.
    pub horizon_ns: u64,
    /// The steps, in order. Never empty.
    pub shapes: &'a [StepShape],
}

/// Number of blocks that a pure decode step allocates, and number of blocks that leave windows in it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockChange {
    pub(crate) taken: u32,
    pub(crate) freed: u32,
}

/// Consecutive decode steps. Each has the same requests as the previous one, with one more token in every
/// context, and possibly more blocks.
#[derive(Clone, Debug, Default)]
pub struct DecodeSteps {
    /// The step before the first of these steps, except that its number of waiting requests is the steps' own.
    before: StepShape,
    kv_active_blocks: Vec<u64>,
}

impl DecodeSteps {
    /// Removes all steps. The next step that is added follows `before`, a decode step, while
    /// `waiting_requests` requests wait.
    pub fn restart(&mut self, before: &StepShape, waiting_requests: u64) {
        self.before = *before;
        self.before.waiting_requests = waiting_requests;
        self.kv_active_blocks.clear();
    }

    /// Removes all steps.
    pub fn clear(&mut self) {
        self.kv_active_blocks.clear();
    }

    /// Adds a step with this number of active blocks.
    #[inline]
    pub fn push(&mut self, kv_active_blocks: u64) {
        self.kv_active_blocks.push(kv_active_blocks);
    }

    /// Adds a step for each entry of `changes`, as long as enough blocks are free before the step.
    pub(crate) fn push_while_room(&mut self, changes: &[BlockChange], mut free_blocks: u32) {
        let mut active_blocks = self.before.kv_active_blocks;
        for &BlockChange { taken, freed } in changes {
            let Some(left) = free_blocks.checked_sub(taken) else { return };
            free_blocks = left + freed;
            active_blocks = active_blocks + u64::from(taken) - u64::from(freed);
            self.push(active_blocks);
        }
    }

    /// Like [`Self::push_while_room`], if a step with `active_blocks` active blocks is already scheduled. That step is
    /// added first. Each step is added only if the step after it is certain.
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

    /// Whether there are no steps.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kv_active_blocks.is_empty()
    }

    /// [`StepShape::kv_active_blocks`] of each step.
    #[must_use]
    pub fn kv_active_blocks(&self) -> &[u64] {
        &self.kv_active_blocks
    }

    /// The step before these steps, with the same number of waiting requests.
    #[must_use]
    pub fn before(&self) -> &StepShape {
        &self.before
    }

    /// The step at `index`.
    ///
    /// # Panics
    /// If there are not that many steps.
    #[must_use]
    pub fn shape(&self, index: usize) -> StepShape {
        self.before.decode_step(index as u64 + 1, self.kv_active_blocks[index])
    }

    /// All steps.
    pub fn shapes(&self) -> impl Iterator<Item = StepShape> + '_ {
        (0..self.len()).map(|index| self.shape(index))
    }
}

/// The part of the priced time that lies within a model's fitted range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeUse {
    /// Total duration of the steps that the model priced.
    pub priced_ns: u64,
    /// Total duration of the steps outside the range of the fitted observations, which were extrapolated.
    pub outside_ns: u64,
    /// Total duration of steps priced with tables of measured operators.
    pub tables: TableUse,
}

/// Time priced with tables of measured operators, by how it was derived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUse {
    /// Time from rows of the tables.
    pub measured_ns: u64,
    /// Time interpolated between rows.
    pub interpolated_ns: u64,
    /// Time extrapolated beyond the rows, or taken from rows of another shape.
    pub extrapolated_ns: u64,
    /// Time from a formula, without a table.
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

    /// The sum with `other`.
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
/// One instance belongs to one engine and may keep state between steps. Equal construction and
/// equal calls must give equal answers.
pub trait LatencyModel: Send {
    /// Appends the durations in nanoseconds of the steps of `batch` to `durations_ns`, in order. Prices at least one
    /// step, and no step that starts at or after the horizon (see [`price_until_horizon`]).
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError>;

    /// Prices consecutive decode steps, the first of which starts at `start_ns`, as
    /// [`LatencyModel::price`] would. Models that price millions of steps can override this with a faster version.
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

    /// Per-request times, if the model has these instead of step durations.
    fn request_times(&self) -> Option<Box<dyn RequestTimes>> {
        None
    }

    /// Whether a call is so costly that the caller should look for several steps to
    /// price together.
    fn prefers_batches(&self) -> bool {
        false
    }

    /// The buffer for [`StepPlan::kv_group_shapes`](crate::plan::StepPlan::kv_group_shapes) of the next step, if the
    /// model reads these shapes. The caller then fills the buffer and prices steps one at a time.
    fn kv_group_shapes(&mut self) -> Option<&mut Vec<KvGroupShape>> {
        None
    }

    /// The part of the priced time that lies within the fitted range. None for models without a fitted range.
    fn range_use(&self) -> Option<RangeUse> {
        None
    }
}

/// The reason why a step could not be priced.
#[derive(Debug, thiserror::Error)]
#[error("latency model `{model}` failed: {reason}")]
pub struct LatencyError {
    /// The model's name as the user knows it.
    pub model: String,
    /// The problem and what to do about it.
    pub reason: String,
}

/// Prices steps one at a time with `price_one`, until the end of the batch or its horizon. All native models use this
/// loop.
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
