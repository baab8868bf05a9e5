use std::path::Path;

use vcr_cluster::PoolConfig;

use crate::error::FitError;
use crate::measurements::data::Measurements;
use crate::measurements::steplog::KvCache;

/// Measurements, and the engine that served them.
#[derive(Clone)]
pub struct Source {
    /// The measurements.
    pub measurements: Measurements,
    /// The engine. The fit determines its latency model and overheads.
    pub pool: PoolConfig,
    /// The engine's settings, as the user stated them.
    pub engine: String,
}

impl Source {
    /// Creates a source. If a capture has the times of single tokens, the steps that follow from them are added.
    #[must_use]
    pub fn new(measurements: Measurements, pool: PoolConfig, engine: String) -> Self {
        let measurements = match pool.engine.as_vllm() {
            Some(vllm) => measurements.with_emitted_steps(vllm.max_num_batched_tokens(), vllm.async_scheduling()),
            None => measurements,
        };
        Self { measurements, pool, engine }
    }

    /// Adds the steps of the engine's log.
    ///
    /// # Errors
    /// If the log cannot be read, or lacks the durations of steps.
    pub fn with_steps(self, path: &Path) -> Result<Self, FitError> {
        let cache = self.pool.engine.as_vllm().map(|vllm| KvCache {
            // vLLM reserves one block.
            usable_blocks: u64::from(vllm.num_gpu_blocks()).saturating_sub(1),
            block_size_tokens: u64::from(vllm.block_size()),
        });
        Ok(Self { measurements: self.measurements.with_steps(path, cache)?, ..self })
    }

    pub(crate) fn is_async(&self) -> bool {
        self.pool.engine.as_vllm().is_some_and(|engine| engine.async_scheduling())
    }

    /// Requests and steps that began within `lasts_ns` of the first request only load the engine; they are not fitted.
    pub(crate) fn after(&self, lasts_ns: u64) -> Self {
        Self { measurements: self.measurements.after(lasts_ns), ..self.clone() }
    }

    /// Requests in part `fold` of `folds` only load the engine; they are not fitted.
    pub(crate) fn without(&self, fold: u32, folds: u32) -> Self {
        let measurements = self.measurements.compared(|index, count| index * folds as usize / count != fold as usize);
        Self { measurements, ..self.clone() }
    }

    pub(crate) fn only(&self, fold: u32, folds: u32) -> Self {
        let measurements = self.measurements.compared(|index, count| index * folds as usize / count == fold as usize);
        Self { measurements, ..self.clone() }
    }

    /// Checks that no more requests were decoded at once than the engine runs.
    pub(crate) fn check_concurrency(&self) -> Result<(), FitError> {
        let Some(config) = self.pool.engine.as_vllm() else { return Ok(()) };
        let ranks = u64::from(self.pool.engines) * u64::from(self.pool.data_parallel.size);
        let limit = u64::from(config.max_num_seqs()) * ranks;
        let mut changes: Vec<(u64, i64)> = Vec::new();
        for request in self.measurements.requests() {
            let (Some(ttft_ns), Some(e2e_ns)) = (request.ttft_ns, request.e2e_ns) else { continue };
            changes.push((request.arrival_ns.saturating_add(ttft_ns), 1));
            changes.push((request.arrival_ns.saturating_add(e2e_ns), -1));
        }
        changes.sort_unstable();
        let (mut running, mut most) = (0i64, 0i64);
        for (_, change) in changes {
            running += change;
            most = most.max(running);
        }
        let most = u64::try_from(most).unwrap_or(0);
        // Clients see a request's end a little later than the engine does.
        if most > limit + limit / 20 + 2 {
            return Err(FitError::Engine(format!(
                "{}: {most} requests were decoded at once, the engine takes {limit}; correct `max_num_seqs`, or the number \
             of engines",
                self.measurements.name()
            )));
        }
        Ok(())
    }
}
