//! Lanes of engines that get requests in turn.
//!
//! The engine of each request is known, whatever the engines do. So requests are handed out in
//! batches, and each lane runs as far as its last one. The thread that began the run makes the
//! next batch meanwhile, then it helps. Which thread takes which lane makes no difference.

use core::time::Duration;
use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::Done;
use super::arrivals::{Arrival, Arrivals};
use super::lane::{Interrupt, Lane, Placement};
use super::watch::{Asking, Watch};
use crate::error::SimError;
use crate::routing::RoutedTo;

/// Requests of each lane in a batch, about.
const REQUESTS_PER_LANE: usize = 16;
/// Blocks of the prompts in a batch, about: they take memory.
const BLOCKS_PER_BATCH: usize = 1 << 18;
/// Time to wait for other threads between two looks at the observer.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Work of a lane.
#[expect(clippy::large_enum_variant, reason = "nearly all tasks of a batch are requests")]
enum Task {
    /// Let a request arrive.
    Receive(Arrival, Placement),
    /// Show the queues after this instant.
    View(u64),
    /// Run to the end.
    End,
}

/// A lane, and what it is to do in this round.
struct Place {
    lane: Lane,
    tasks: Vec<Task>,
    state: LaneState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneState {
    Running,
    /// It was told to stop on the way.
    Interrupted,
    Failed,
}

/// Lanes that threads take one after another, round by round.
struct Rounds {
    places: Vec<Mutex<Place>>,
    /// The next lane to be taken in this round.
    next: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
    stops: AtomicBool,
}

#[derive(Default)]
struct State {
    round: u64,
    /// Lanes that are through with this round.
    through: usize,
    is_over: bool,
    panic: Option<Box<dyn Any + Send>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panics ends the run with its panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rounds {
    /// Goes through the lanes that no other thread has taken.
    fn work(&self, interrupt: &mut dyn Interrupt) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(place) = self.places.get(index) else { return };
            let done = catch_unwind(AssertUnwindSafe(|| lock(place).work(interrupt)));
            let mut state = lock(&self.state);
            state.through += 1;
            if let Err(panic) = done {
                state.panic.get_or_insert(panic);
            }
            if state.through == self.places.len() {
                self.changed.notify_all();
            }
        }
    }

    /// Works in each round until all are over.
    fn help(&self) {
        let mut done = 0;
        loop {
            {
                let mut state = lock(&self.state);
                while state.round == done && !state.is_over {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                if state.is_over {
                    return;
                }
                done = state.round;
            }
            self.work(&mut &self.stops);
        }
    }

    fn begin_round(&self) {
        let mut state = lock(&self.state);
        state.through = 0;
        state.round += 1;
        self.next.store(0, Ordering::Relaxed);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until all lanes are through.
    fn end_round(&self, watch: &mut Watch<'_>) {
        let mut state = lock(&self.state);
        while state.through < self.places.len() {
            (state, _) = self.changed.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner);
            Asking(&self.stops, watch).wants_stop();
        }
        if let Some(panic) = state.panic.take() {
            drop(state);
            resume_unwind(panic);
        }
    }

    /// No round follows, even if this thread panics.
    fn end(&self) {
        lock(&self.state).is_over = true;
        self.changed.notify_all();
    }
}

impl Place {
    fn work(&mut self, interrupt: &mut dyn Interrupt) {
        let mut tasks = std::mem::take(&mut self.tasks);
        for task in tasks.drain(..) {
            if self.state == LaneState::Running {
                self.state = match self.take(task, interrupt) {
                    Ok(true) => LaneState::Running,
                    Ok(false) => LaneState::Interrupted,
                    Err(_) => LaneState::Failed,
                };
            }
        }
        self.tasks = tasks;
    }

    /// Does one thing. False if it was interrupted.
    fn take(&mut self, task: Task, interrupt: &mut dyn Interrupt) -> Result<bool, SimError> {
        let lane = &mut self.lane;
        match task {
            Task::View(at_ns) => lane.expect_view(at_ns),
            Task::End => return lane.advance(None, interrupt),
            Task::Receive(arrival, placement) => {
                if !lane.advance(Some(arrival.at_ns), interrupt)? {
                    return Ok(false);
                }
                lane.receive(arrival, placement)?;
            }
        }
        Ok(true)
    }
}

/// Ends the rounds when it is dropped.
struct EndRounds<'a>(&'a Rounds);

impl Drop for EndRounds<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Runs the lanes to their end. Gives them back.
///
/// # Errors
/// When the observer finds a limit exceeded.
pub(super) fn run(
    threads: NonZeroUsize,
    lanes: Vec<Lane>,
    arrivals: &mut Arrivals<'_>,
    watch: &mut Watch<'_>,
) -> Result<(Done, Vec<Lane>), SimError> {
    let count = lanes.len();
    let place = |lane| Mutex::new(Place { lane, tasks: Vec::new(), state: LaneState::Running });
    let rounds = Rounds {
        places: lanes.into_iter().map(place).collect(),
        next: AtomicUsize::new(count),
        state: Mutex::default(),
        changed: Condvar::new(),
        stops: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let end = EndRounds(&rounds);
        for _ in 1..threads.get().min(count) {
            scope.spawn(|| rounds.help());
        }
        let mut batches = Batches::new(count, arrivals);
        let mut batch = batches.next(watch);
        loop {
            for (place, tasks) in rounds.places.iter().zip(&mut batch.tasks) {
                lock(place).tasks.append(tasks);
            }
            rounds.begin_round();
            // While others work.
            let next = if batch.is_last { None } else { Some(batches.next(watch)) };
            rounds.work(&mut Asking(&rounds.stops, watch));
            rounds.end_round(watch);
            let mut places: Vec<_> = rounds.places.iter().map(lock).collect();
            watch.check_queues(places.iter_mut().map(|place| &mut place.lane));
            watch.look(places.iter_mut().map(|place| &mut place.lane))?;
            watch.note_round(places.iter().map(|place| &place.lane));
            if places.iter().any(|place| place.state != LaneState::Running) {
                break;
            }
            let Some(next) = next else { break };
            if Asking(&rounds.stops, watch).wants_stop() {
                break;
            }
            batch = next;
        }
        drop(end);
        Ok::<_, SimError>(())
    })?;
    let is_stopped = rounds.stops.load(Ordering::Relaxed);
    let places = rounds.places.into_iter().map(|place| place.into_inner().unwrap_or_else(PoisonError::into_inner));
    let places: Vec<Place> = places.collect();
    let done = match places.iter().any(|place| place.state == LaneState::Failed) {
        true => Done::Failed,
        false if is_stopped => Done::Stopped,
        false => Done::Whole,
    };
    Ok((done, places.into_iter().map(|place| place.lane).collect()))
}

/// Work of the lanes in one round.
struct Batch {
    /// By lane.
    tasks: Vec<Vec<Task>>,
    is_last: bool,
}

/// Makes batches of all requests.
struct Batches<'a, 'r> {
    arrivals: &'a mut Arrivals<'r>,
    lanes: usize,
    ranks: usize,
    /// The turn of the next request, in a round of all ranks.
    turn: usize,
}

impl<'a, 'r> Batches<'a, 'r> {
    fn new(lanes: usize, arrivals: &'a mut Arrivals<'r>) -> Self {
        let ranks = arrivals.num_workers() as usize / lanes;
        Self { arrivals, lanes, ranks, turn: 0 }
    }

    fn next(&mut self, watch: &mut Watch<'_>) -> Batch {
        let mut tasks: Vec<Vec<Task>> = (0..self.lanes).map(|_| Vec::new()).collect();
        let (mut requests, mut blocks) = (0, 0);
        while requests < self.lanes * REQUESTS_PER_LANE && blocks < BLOCKS_PER_BATCH {
            let Some(arrival) = self.arrivals.next() else {
                tasks.iter_mut().for_each(|tasks| tasks.push(Task::End));
                return Batch { tasks, is_last: true };
            };
            requests += 1;
            blocks += arrival.turn.prompt.block_hashes().len();
            if let Some(at_ns) = watch.arrived(arrival.at_ns, self.arrivals.arrived()) {
                tasks.iter_mut().for_each(|tasks| tasks.push(Task::View(at_ns)));
            }
            let (lane, placement) = self.place(&arrival);
            tasks[lane].push(Task::Receive(arrival, placement));
        }
        Batch { tasks, is_last: false }
    }

    /// The lane of a request, and what becomes of it there.
    fn place(&mut self, arrival: &Arrival) -> (usize, Placement) {
        if let Err(reason) = self.arrivals.check(&arrival.turn) {
            return (0, Placement::Rejected(reason));
        }
        // As the round robin of one thread: first the first ranks of all engines.
        let (lane, rank) = (self.turn % self.lanes, self.turn / self.lanes);
        self.turn = (self.turn + 1) % (self.lanes * self.ranks);
        (lane, Placement::To(RoutedTo { worker: rank as u32, overlap_blocks: None }))
    }
}
