//! The stages of an engine with pipeline parallelism, and the batch queue in front of them.
//!
//! vLLM's engine core (`step_with_batch_queue`) fills the queue while a batch has work or requests
//! exist. An empty schedule also takes a place. If the queue is full, the engine core only waits for the outputs of
//! the oldest batch.

use std::collections::VecDeque;

use crate::config::EngineConfig;

#[derive(Clone, Copy, Debug)]
struct Batch {
    /// Number of the schedule that made the batch.
    schedule: u64,
    scheduled_ns: u64,
    has_work: bool,
    /// Whether the end of its computation is known.
    is_timed: bool,
}

/// A pipeline-parallel engine's batches and stages.
#[derive(Clone, Debug)]
pub struct Pipeline {
    queue: VecDeque<Batch>,
    queue_size: usize,
    /// When each stage finishes its latest batch.
    stage_ends_ns: Box<[u64]>,
    /// Ends of the latest batches whose tokens the first stage awaits, each with its schedule number. None
    /// if requests in flight are never scheduled again.
    sampled: Option<VecDeque<(u64, u64)>>,
    num_schedules: u64,
    /// Number of consecutive schedules without a step while no batch had work.
    num_idle: usize,
    is_waiting: bool,
}

impl Pipeline {
    /// An empty pipeline. None for an engine with one stage.
    #[must_use]
    pub fn new(config: &EngineConfig) -> Option<Self> {
        let stages = config.pipeline_parallel_size() as usize;
        (stages > 1).then(|| Self {
            queue: VecDeque::new(),
            queue_size: config.max_steps_in_flight(),
            stage_ends_ns: vec![0; stages].into_boxed_slice(),
            sampled: config.async_scheduling().then(VecDeque::new),
            num_schedules: 0,
            num_idle: 0,
            is_waiting: false,
        })
    }

    /// Whether the engine core waits for its oldest batch and makes no schedule.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Records a schedule. Returns whether the next schedule follows immediately.
    pub fn push(&mut self, has_work: bool, now_ns: u64) -> bool {
        self.num_schedules += 1;
        let batch = Batch { schedule: self.num_schedules, scheduled_ns: now_ns, has_work, is_timed: false };
        self.queue.push_back(batch);
        let any_work = self.queue.iter().any(|batch| batch.has_work);
        self.num_idle = if any_work { 0 } else { self.num_idle + 1 };
        if self.queue.len() == self.queue_size {
            self.is_waiting = self.queue[0].has_work;
            if !self.is_waiting {
                self.queue.pop_front();
            }
        }
        // Each request has had its turn.
        let is_idle = self.num_idle > self.queue_size + self.stage_ends_ns.len();
        if is_idle {
            self.drop_empty_batches();
        }
        !self.is_waiting && !is_idle
    }

    /// Drops empty batches when there is nothing to schedule. The engine core then waits for the oldest batch with
    /// work.
    pub fn drop_empty_batches(&mut self) {
        while self.queue.front().is_some_and(|batch| !batch.has_work) {
            self.queue.pop_front();
        }
        self.is_waiting = !self.queue.is_empty();
        self.num_idle = 0;
    }

    /// Sends the oldest untimed batch through the stages. Returns when the last stage has computed
    /// the batch. All stages together take `price_ns`, and each stage takes an equal part.
    ///
    /// # Panics
    /// If there is no such batch: a driver bug.
    pub fn end_ns(&mut self, price_ns: u64) -> u64 {
        let batch = self.queue.iter_mut().find(|batch| batch.has_work && !batch.is_timed);
        let batch = batch.expect("a batch is in the pipeline");
        batch.is_timed = true;
        let mut at_ns = batch.scheduled_ns;
        let stages = self.stage_ends_ns.len() as u64;
        if let Some(sampled) = &mut self.sampled {
            // These requests decode again, and need their tokens from the last stage.
            while let Some(&(schedule, end_ns)) = sampled.front()
                && schedule + stages <= batch.schedule
            {
                at_ns = at_ns.max(end_ns);
                sampled.pop_front();
            }
        }
        for (stage, stage_end_ns) in (0..).zip(&mut self.stage_ends_ns) {
            let part_ns = part(price_ns, stage + 1, stages) - part(price_ns, stage, stages);
            at_ns = at_ns.max(*stage_end_ns).saturating_add(part_ns);
            *stage_end_ns = at_ns;
        }
        if let Some(sampled) = &mut self.sampled {
            sampled.push_back((batch.schedule, at_ns));
        }
        at_ns
    }

    /// Removes the oldest batch, whose outputs have been applied.
    pub fn pop(&mut self) {
        self.is_waiting = false;
        while self.queue.pop_front().is_some_and(|batch| !batch.has_work) {}
    }

    /// Delays all batches in flight.
    pub fn delay(&mut self, by_ns: u64) {
        let sampled = self.sampled.iter_mut().flatten().map(|(_, end_ns)| end_ns);
        for end_ns in self.stage_ends_ns.iter_mut().chain(sampled) {
            *end_ns = end_ns.saturating_add(by_ns);
        }
    }
}

fn part(ns: u64, count: u64, parts: u64) -> u64 {
    (u128::from(ns) * u128::from(count) / u128::from(parts)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineConfigInput;

    fn pipeline(pipeline_parallel_size: u32, async_scheduling: bool) -> Pipeline {
        let input = EngineConfigInput { pipeline_parallel_size, async_scheduling, ..EngineConfigInput::default() };
        Pipeline::new(&EngineConfig::new(input).unwrap()).expect("several stages")
    }

    #[test]
    fn one_stage_is_no_pipeline() {
        assert!(Pipeline::new(&EngineConfig::new(EngineConfigInput::default()).unwrap()).is_none());
    }

    #[test]
    fn a_batch_takes_all_of_its_price_and_those_behind_it_follow_by_the_part_of_a_stage() {
        let mut pipeline = pipeline(4, false);
        assert_eq!([0, 0, 0].map(|now_ns| pipeline.push(true, now_ns)), [true; 3]);
        assert!(!pipeline.push(true, 0), "the queue is full");
        assert_eq!([100, 100, 100, 100].map(|price_ns| pipeline.end_ns(price_ns)), [100, 125, 150, 175]);
        pipeline.pop();
        assert!(!pipeline.push(true, 100));
        // The first stage has been free since time 100.
        assert_eq!(pipeline.end_ns(100), 200);
    }

    #[test]
    fn a_long_batch_holds_up_those_behind_it_and_a_short_one_waits_in_between() {
        let mut pipeline = pipeline(2, false);
        pipeline.push(true, 0);
        pipeline.push(true, 0);
        // First batch: stages 0 to 100 and 100 to 200. Second batch: 100 to 105 and 200 to 205.
        assert_eq!([200, 10].map(|price_ns| pipeline.end_ns(price_ns)), [200, 205]);
    }

    #[test]
    fn parts_of_a_price_that_does_not_divide_come_to_all_of_it() {
        let mut pipeline = pipeline(3, false);
        pipeline.push(true, 7);
        assert_eq!(pipeline.end_ns(100), 107);
    }

    #[test]
    fn schedules_without_work_fill_the_queue_until_the_engine_waits() {
        let mut pipeline = pipeline(3, false);
        assert!(pipeline.push(true, 0) && pipeline.push(false, 0));
        assert!(!pipeline.push(false, 0) && pipeline.is_waiting());
        assert_eq!(pipeline.end_ns(30), 30);
        pipeline.pop();
        assert!(!pipeline.is_waiting());
        // Two places are still taken, so the queue is full, and its oldest batch is complete
        // at once.
        assert!(pipeline.push(true, 30) && pipeline.push(false, 30));
        assert!(!pipeline.push(false, 30) && pipeline.is_waiting());
        assert_eq!(pipeline.end_ns(30), 60);
    }

    #[test]
    fn an_engine_with_nothing_to_do_is_idle_in_the_end() {
        let mut pipeline = pipeline(2, true);
        let more = (0..100).position(|_| !pipeline.push(false, 0));
        assert!(more.is_some_and(|schedules| schedules > 2), "{more:?}");
        assert!(!pipeline.is_waiting());
        assert!(pipeline.push(true, 5));
        pipeline.drop_empty_batches();
        assert!(pipeline.is_waiting());
    }

    #[test]
    fn under_async_scheduling_a_decode_awaits_the_token_before_it() {
        let mut pipeline = pipeline(2, true);
        assert!(pipeline.push(true, 0) && pipeline.push(false, 0));
        assert!(!pipeline.push(true, 0), "the queue has three places");
        // The second decode comes two schedules later, and begins when the first has passed both stages.
        assert_eq!([100, 100].map(|price_ns| pipeline.end_ns(price_ns)), [100, 200]);
        // Now batches of other requests are in between.
        let mut pipeline = self::pipeline(2, true);
        pipeline.push(true, 0);
        pipeline.push(true, 0);
        pipeline.push(true, 0);
        assert_eq!([100, 100, 100].map(|price_ns| pipeline.end_ns(price_ns)), [100, 150, 200]);
    }

    #[test]
    fn a_delay_moves_all_stages() {
        let mut pipeline = pipeline(2, false);
        pipeline.push(true, 0);
        pipeline.push(true, 0);
        assert_eq!(pipeline.end_ns(100), 100);
        pipeline.delay(1000);
        assert_eq!(pipeline.end_ns(100), 1150);
    }
}
