//! Lanes of engines whose router chooses by their state.
//!
//! Between two requests no lane can be reached, so the next request is the horizon of all.
//! Threads take groups of lanes, bring them to that instant and look up there what the router
//! needs. The thread that began the run makes the request after it meanwhile. Then it asks the
//! router, alone.
//!
//! That is a few microseconds of work each time, so threads do not sleep in between. A group
//! that no other thread has taken is done by the thread that began the run: it never waits for
//! one that the operating system has set aside, but for one that was so in the middle of a
//! group.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use vcr_core::hash::BlockHash;
use vcr_core::route::WorkerLoad;

use super::Done;
use super::arrivals::{Arrival, Arrivals};
use super::lane::{Interrupt, Lane, Placement};
use super::watch::{Asking, Watch};
use crate::error::SimError;
use crate::routing::{Look, Note, PoolRouter, Routed, RoutedTo};

/// Groups of lanes for each thread: more of them share the work more evenly.
const GROUPS_PER_THREAD: usize = 2;
/// Looks at what there is to do before a thread lets others have its core.
const SPINS: u32 = 4_000;
/// Requests between two looks at the observer, and at how the other threads do.
const REQUESTS_PER_LOOK: u64 = 256;
/// Of these, requests at which this thread may have to wait long for another.
const MAX_LATE: u64 = REQUESTS_PER_LOOK / 8;

/// Work of a group.
#[derive(Clone)]
enum Task {
    /// To go on to this instant, and to look up these blocks there, if the router minds.
    Until { at_ns: u64, blocks: Option<Arc<[BlockHash]>> },
    /// To run to the end.
    End,
}

/// Neighbouring lanes.
#[derive(Default)]
struct Group {
    lanes: Vec<Lane>,
    task: Option<Task>,
    loads: Vec<WorkerLoad>,
    notes: Vec<Note>,
    has_failed: bool,
    panic: Option<Box<dyn std::any::Any + Send>>,
}

impl Group {
    /// Does what is to be done, if that has not been done.
    fn work(&mut self, interrupt: &mut dyn Interrupt) {
        let Some(task) = self.task.take() else { return };
        if self.has_failed {
            return;
        }
        match catch_unwind(AssertUnwindSafe(|| self.go_on(&task, interrupt))) {
            Ok(done) => self.has_failed = done.is_err(),
            Err(panic) => (self.panic, self.has_failed) = (Some(panic), true),
        }
    }

    fn go_on(&mut self, task: &Task, interrupt: &mut dyn Interrupt) -> Result<(), ()> {
        let until_ns = match task {
            Task::Until { at_ns, .. } => Some(*at_ns),
            Task::End => None,
        };
        for lane in &mut self.lanes {
            if until_ns.is_some_and(|at_ns| !lane.is_due(at_ns)) {
                continue;
            }
            if !lane.advance(until_ns, interrupt).map_err(|_| ())? {
                return Err(());
            }
            lane.take_notes(&mut self.notes);
        }
        self.loads.clear();
        if let Task::Until { blocks, .. } = task {
            for lane in &self.lanes {
                lane.loads(blocks.as_deref(), &mut self.loads);
            }
        }
        Ok(())
    }
}

/// Groups of lanes, and what threads have to know of them.
struct Groups {
    groups: Vec<Mutex<Group>>,
    /// Changes whenever there is something to do.
    round: AtomicU64,
    is_over: AtomicBool,
    stops: AtomicBool,
}

fn try_lock(group: &Mutex<Group>) -> Option<MutexGuard<'_, Group>> {
    match group.try_lock() {
        Ok(group) => Some(group),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Spins until the other thread is through: it is at work.
fn lock(group: &Mutex<Group>) -> MutexGuard<'_, Group> {
    lock_in(group, &mut 0)
}

/// The same; counts the looks.
fn lock_in<'a>(group: &'a Mutex<Group>, spins: &mut u32) -> MutexGuard<'a, Group> {
    loop {
        if let Some(group) = try_lock(group) {
            return group;
        }
        pause(spins);
    }
}

fn pause(spins: &mut u32) {
    if *spins < SPINS {
        *spins += 1;
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

impl Groups {
    /// Works whenever there is something to do.
    fn help(&self) {
        let (mut seen, mut spins) = (0, 0);
        while !self.is_over.load(Ordering::Acquire) {
            let round = self.round.load(Ordering::Acquire);
            if round == seen {
                pause(&mut spins);
                continue;
            }
            (seen, spins) = (round, 0);
            // From the other end than the thread that began the run.
            for group in self.groups.iter().rev().filter_map(try_lock) {
                let mut group = group;
                group.work(&mut &self.stops);
            }
        }
    }
}

/// Ends the other threads when it is dropped.
struct EndHelp<'a>(&'a Groups);

impl Drop for EndHelp<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

/// The thread that began the run.
struct Lead<'a, 'r, 'o> {
    groups: &'a Groups,
    arrivals: &'a mut Arrivals<'r>,
    router: &'a mut dyn PoolRouter,
    look: Look,
    watch: &'a mut Watch<'o>,
    lanes_per_group: usize,
    ranks: usize,
    /// The request after the present one, once it is made.
    ahead: Option<Option<Arrival>>,
    /// Requests at which this thread had to wait long: the operating system has other work for
    /// the core of the thread that it waited for.
    late: u64,
    /// Scratch: the loads of all ranks, and notes for the router.
    loads: Vec<WorkerLoad>,
    notes: Vec<Note>,
}

impl Lead<'_, '_, '_> {
    fn next(&mut self) -> Option<Arrival> {
        self.ahead.take().unwrap_or_else(|| self.arrivals.next())
    }

    /// All requests, then what is left. False if a lane has failed, or is to stop.
    fn run(&mut self) -> Result<bool, SimError> {
        let mut requests = 0;
        while let Some(arrival) = self.next() {
            if requests % REQUESTS_PER_LOOK == 0 {
                if self.watch.wants_stop() {
                    self.groups.stops.store(true, Ordering::Relaxed);
                    return Ok(false);
                }
                self.look()?;
                if std::mem::take(&mut self.late) > MAX_LATE {
                    // Alone it is faster.
                    self.groups.is_over.store(true, Ordering::Release);
                }
            }
            requests += 1;
            if let Some(at_ns) = self.watch.arrived(arrival.at_ns, arrival.tag + 1) {
                for group in &self.groups.groups {
                    lock(group).lanes.iter_mut().for_each(|lane| lane.expect_view(at_ns));
                }
            }
            let blocks = self.look.overlap.then(|| Arc::from(arrival.turn.prompt.block_hashes()));
            if !self.round(&Task::Until { at_ns: arrival.at_ns, blocks }) {
                return Ok(false);
            }
            if !self.place(arrival) {
                return Ok(false);
            }
            self.note_round();
        }
        let done = self.round(&Task::End);
        self.note_round();
        self.look()?;
        Ok(done)
    }

    fn look(&mut self) -> Result<(), SimError> {
        let mut groups: Vec<_> = self.groups.groups.iter().map(lock).collect();
        let mut lanes: Vec<&mut Lane> = groups.iter_mut().flat_map(|group| &mut group.lanes).collect();
        self.watch.check_queues(lanes.iter_mut().map(|lane| &mut **lane));
        self.watch.look(lanes.into_iter())
    }

    fn note_round(&mut self) {
        if self.watch.counts_work() {
            let groups: Vec<_> = self.groups.groups.iter().map(lock).collect();
            self.watch.note_round(groups.iter().flat_map(|group| &group.lanes));
        }
    }

    /// Has all groups do something, and gathers what they have seen. False if one has failed.
    fn round(&mut self, task: &Task) -> bool {
        for group in &self.groups.groups {
            lock(group).task = Some(task.clone());
        }
        self.groups.round.fetch_add(1, Ordering::Release);
        if matches!(task, Task::Until { .. }) && self.ahead.is_none() {
            self.ahead = Some(self.arrivals.next());
        }
        let mut asking = Asking(&self.groups.stops, self.watch);
        for group in self.groups.groups.iter().filter_map(try_lock) {
            let mut group = group;
            group.work(&mut asking);
        }
        self.loads.clear();
        let (mut is_good, mut spins) = (true, 0);
        for group in &self.groups.groups {
            let mut group = lock_in(group, &mut spins);
            group.work(&mut asking);
            if let Some(panic) = group.panic.take() {
                drop(group);
                resume_unwind(panic);
            }
            is_good &= !group.has_failed;
            self.loads.extend_from_slice(&group.loads);
            self.notes.append(&mut group.notes);
        }
        self.late += u64::from(spins >= SPINS);
        is_good
    }

    /// Asks the router about a request at whose instant all lanes are. False if something has
    /// failed.
    fn place(&mut self, arrival: Arrival) -> bool {
        // Within an instant notes may come in any order.
        self.notes.sort_by_key(|note| note.at_ns);
        for note in self.notes.drain(..) {
            match note.ended {
                Some(ended) => self.router.ended(note.at_ns, &ended),
                None => self.router.prefilled(note.at_ns, note.request),
            }
        }
        let (worker, placement) = match self.arrivals.check(&arrival.turn) {
            Err(reason) => (0, Placement::Rejected(reason)),
            Ok(()) => match self.router.route_by_loads(&self.arrivals.route_request(&arrival), &self.loads) {
                Ok(Routed::To(to)) => {
                    let rank = to.worker % self.ranks as u32;
                    (to.worker as usize, Placement::To(RoutedTo { worker: rank, ..to }))
                }
                Ok(Routed::Shed) => (0, Placement::Shed),
                Ok(Routed::Queued | Routed::Nowhere) | Err(_) => return false,
            },
        };
        let lane = worker / self.ranks;
        let mut group = lock(&self.groups.groups[lane / self.lanes_per_group]);
        group.lanes[lane % self.lanes_per_group].receive(arrival, placement).is_ok()
    }
}

/// Runs the lanes to their end. Gives them back.
///
/// # Errors
/// When the observer finds a limit exceeded.
pub(super) fn run(
    threads: NonZeroUsize,
    mut lanes: Vec<Lane>,
    arrivals: &mut Arrivals<'_>,
    (router, look): (&mut dyn PoolRouter, Look),
    watch: &mut Watch<'_>,
) -> Result<(Done, Vec<Lane>), SimError> {
    let count = lanes.len();
    let threads = threads.get().min(count);
    let lanes_per_group = count.div_ceil(threads * GROUPS_PER_THREAD);
    let mut groups = Vec::new();
    while !lanes.is_empty() {
        let rest = lanes.split_off(lanes_per_group.min(lanes.len()));
        groups.push(Mutex::new(Group { lanes: std::mem::replace(&mut lanes, rest), ..Group::default() }));
    }
    let groups =
        Groups { groups, round: AtomicU64::new(0), is_over: AtomicBool::new(false), stops: AtomicBool::new(false) };
    let ranks = arrivals.num_workers() as usize / count;
    let is_whole = std::thread::scope(|scope| {
        let _end = EndHelp(&groups);
        for _ in 1..threads {
            scope.spawn(|| groups.help());
        }
        let (loads, notes) = (Vec::new(), Vec::new());
        let groups = &groups;
        let mut lead =
            Lead { groups, arrivals, router, look, watch, lanes_per_group, ranks, ahead: None, late: 0, loads, notes };
        lead.run()
    })?;
    let done = match is_whole {
        true => Done::Whole,
        false if groups.stops.load(Ordering::Relaxed) => Done::Stopped,
        false => Done::Failed,
    };
    let groups = groups.groups.into_iter().map(|group| group.into_inner().unwrap_or_else(|error| error.into_inner()));
    Ok((done, groups.flat_map(|group| group.lanes).collect()))
}
