//! Exercises a guest in more ways than an engine does.
//!
//! A check draws thousands of calls of the guest's world from a seed and makes them under the guest's limits. It
//! verifies that
//!
//! - every answer follows the interface;
//! - equally configured instances give equal answers: one after another, alternately, and after another instance was
//!   dropped midway;
//! - the host's grouping of calls does not matter.
//!
//! It also measures the cost of calls. Each world has a module that plays the engine; this module makes the instances
//! and compares. Nothing here prints or reads a clock.

mod bench;
mod draw;
mod faults;
mod input;
mod latency;
mod meter;
mod policy;
mod report;
mod router;
mod scaler;
#[cfg(test)]
mod tests;
mod tokens;

pub use crate::check::bench::{BenchReport, NativeTwin, bench};
pub use crate::check::report::{CallCost, Check, CheckReport, FailedCall, Outcome, Used};

use vcr_core::latency::EngineInfo;

use crate::check::draw::Draw;
use crate::check::meter::Meter;
use crate::error::{CallFault, GuestError};
use crate::latest::{Maker, Metered, OpenGuest, Setup};
use crate::limits::Limits;
use crate::module::GuestModule;

/// Checks a guest with this config and seed. The seed configures instances and draws the calls. `clock_ns` is a
/// monotonic clock in nanoseconds.
///
/// # Errors
/// When the guest refuses the config or fails while it configures itself. Later failures are in the report.
pub fn check(
    module: &GuestModule,
    config_json: &str,
    seed: u64,
    clock_ns: &dyn Fn() -> u64,
) -> Result<CheckReport, GuestError> {
    // Configures a first instance here, so that a refused config is an error instead of a failed check.
    module.try_config_with(config_json, seed)?;
    let subject = Subject { limits: *module.limits(), config_json, seed };
    let findings = match module.open_guest() {
        OpenGuest::Latency(maker) => subject.examine::<latency::Pricing>(maker.as_ref(), clock_ns),
        OpenGuest::Tokens(maker) => subject.examine::<tokens::Emitting>(maker.as_ref(), clock_ns),
        OpenGuest::Faults(maker) => subject.examine::<faults::FaultWorkload>(maker.as_ref(), clock_ns),
        OpenGuest::Policy(maker) => subject.examine::<policy::Scheduling>(maker.as_ref(), clock_ns),
        OpenGuest::Router(maker) => subject.examine::<router::Routing>(maker.as_ref(), clock_ns),
        OpenGuest::Scaler(maker) => subject.examine::<scaler::Scaling>(maker.as_ref(), clock_ns),
    };
    Ok(CheckReport {
        guest: module.name().to_owned(),
        world: module.world(),
        api_version: module.api_version(),
        digest: module.digest().to_owned(),
        checks: findings.checks,
        failed_call: findings.failed_call,
        configure_fuel: findings.configure_fuel,
        memory_bytes: findings.memory_bytes,
        calls: findings.calls,
    })
}

/// Plays the engine or cluster around an instance.
trait Driver {
    type Instance: Metered + ?Sized;

    /// Makes a workload from `seed`, with calls grouped by `split`.
    fn new(seed: u64, split: Split) -> Self;

    /// Makes the calls of the next step and checks their answers.
    fn step(&mut self, table: &mut Table<'_, '_, Self::Instance>) -> Result<Step, GuestFailure>;

    /// Formats one word of an answer.
    fn show(word: u64) -> String {
        word.to_string()
    }

    /// The other ways to split the workload into calls, and the claim that they give the same answers.
    const SPLITS: (&'static [Split], &'static str) = (&[], "");
}

/// How the workload is split into calls, where the interface leaves that to the host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Split {
    /// Items are grouped as by the engine.
    AsItComes,
    /// As few items as possible in each call.
    Finest,
    /// As many items as possible in each call.
    Coarsest,
}

enum Step {
    /// The answer, as words to compare.
    Answered(Vec<u64>),
    Over,
}

struct GuestFailure(CallFault);

impl From<CallFault> for GuestFailure {
    fn from(fault: CallFault) -> Self {
        Self(fault)
    }
}

impl GuestFailure {
    fn outcome(self, call: &str) -> Outcome {
        let Self(fault) = self;
        let reason = format!("{call}: {}", fault.with_hint());
        match fault {
            CallFault::Host { .. } => Outcome::HostFailed { reason },
            fault if fault.is_about_answer() => Outcome::Broken { reason },
            _ => Outcome::GuestFailed { reason },
        }
    }
}

/// An instance, its limits and the meter of its calls.
struct Table<'a, 'm, I: ?Sized> {
    instance: &'a mut I,
    limits: &'a Limits,
    meter: &'a mut Meter<'m>,
}

/// The guest's limits and arguments.
struct Subject<'a> {
    limits: Limits,
    config_json: &'a str,
    seed: u64,
}

/// The contents of the report.
struct Findings {
    checks: Vec<Check>,
    failed_call: Option<FailedCall>,
    configure_fuel: Used,
    memory_bytes: Used,
    calls: Vec<CallCost>,
}

/// All answers of a workload.
#[derive(Default)]
struct Log {
    words: Vec<u64>,
    /// Index of the end of each step in `words`.
    ends: Vec<usize>,
}

impl Log {
    fn push(&mut self, words: &[u64]) {
        self.words.extend_from_slice(words);
        self.ends.push(self.words.len());
    }

    fn step(&self, index: usize) -> Option<&[u64]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.words[start..end])
    }
}

/// An instance and the driver that plays its workload.
struct Player<D: Driver> {
    driver: D,
    instance: Box<D::Instance>,
    steps: usize,
}

impl<D: Driver> Player<D> {
    /// Plays a step and returns the answer; none at the end.
    fn step(&mut self, limits: &Limits, meter: &mut Meter<'_>) -> Result<Option<Vec<u64>>, Outcome> {
        let mut table = Table { instance: &mut *self.instance, limits, meter };
        let made = self.driver.step(&mut table);
        self.steps += 1;
        match made {
            Ok(Step::Answered(words)) => Ok(Some(words)),
            Ok(Step::Over) => Ok(None),
            Err(trouble) => Err(trouble.outcome(&format!("in step {} of the workload", self.steps - 1))),
        }
    }
}

/// Names and claims of the checks of every guest.
const ANSWERS: (&str, &str) = ("answers", "every answer follows the interface");
const REPEATED: (&str, &str) = ("repeated", "a second instance gives the same answers to the same calls");
const INTERLEAVED: (&str, &str) =
    ("interleaved", "two instances called alternately give the same answers as one alone");
const UNSTAINED: (&str, &str) =
    ("unstained", "an instance gives the same answers after another was dropped during other work");

/// Number of steps of other work before the other instance is dropped.
const STAINING_STEPS: usize = 200;

/// Number of steps that the second instance lags behind the first.
const LAG_STEPS: u64 = 5;

impl Subject<'_> {
    fn examine<D: Driver>(&self, maker: &dyn Maker<D::Instance>, clock_ns: &dyn Fn() -> u64) -> Findings {
        let mut meter = Meter::new(clock_ns);
        let mut findings = Findings {
            checks: Vec::new(),
            failed_call: None,
            configure_fuel: Used::default(),
            memory_bytes: Used::default(),
            calls: Vec::new(),
        };
        self.examine_into::<D>(maker, &mut meter, &mut findings);
        findings.memory_bytes = Used { used: meter.memory_bytes as u64, limit: self.limits.memory_bytes as u64 };
        findings.calls = meter.costs();
        findings.failed_call = meter.failed_call.take();
        findings
    }

    /// Makes the checks in order. Stops when further checks would be pointless.
    fn examine_into<D: Driver>(&self, maker: &dyn Maker<D::Instance>, meter: &mut Meter<'_>, findings: &mut Findings) {
        let mut log = Log::default();
        let answered = self.record::<D>(maker, meter, &mut findings.configure_fuel, &mut log);
        let mut may_continue = findings.note(ANSWERS, answered);
        if !may_continue {
            return;
        }
        let compared = self.compare_all::<D>(maker, meter, &log);
        may_continue = findings.note(REPEATED, compared);
        if may_continue {
            may_continue = findings.note(INTERLEAVED, self.compare_in_turns::<D>(maker, meter, &log));
        }
        if may_continue {
            let stained = self.stain::<D>(maker, meter).and_then(|()| self.compare_all::<D>(maker, meter, &log));
            may_continue = findings.note(UNSTAINED, stained);
        }
        let (splits, claim) = D::SPLITS;
        if may_continue && !splits.is_empty() {
            let compared = splits.iter().try_for_each(|split| self.compare_split::<D>(maker, meter, &log, *split));
            findings.note(("split", claim), compared);
        }
    }

    fn player<D: Driver>(&self, maker: &dyn Maker<D::Instance>, seed: u64, split: Split) -> Result<Player<D>, Outcome> {
        let setup = Setup {
            limits: &self.limits,
            config_json: self.config_json,
            seed,
            engine: &EngineInfo::default(),
            sink: None,
        };
        let made = maker.configure(setup);
        let instance = made.map_err(|fault| GuestFailure(fault).outcome("in `configure`"))?;
        Ok(Player { driver: D::new(seed, split), instance, steps: 0 })
    }

    /// Plays the whole workload and records the answers.
    fn record<D: Driver>(
        &self,
        maker: &dyn Maker<D::Instance>,
        meter: &mut Meter<'_>,
        configure_fuel: &mut Used,
        log: &mut Log,
    ) -> Result<(), Outcome> {
        let mut player = self.player::<D>(maker, self.seed, Split::AsItComes)?;
        let limit = self.limits.configure_budget(self.config_json.len()).fuel;
        *configure_fuel = Used { used: limit.saturating_sub(player.instance.fuel_left()), limit };
        while let Some(words) = player.step(&self.limits, meter)? {
            log.push(&words);
        }
        Ok(())
    }

    /// Plays the whole workload and compares each step with the log.
    fn compare_all<D: Driver>(
        &self,
        maker: &dyn Maker<D::Instance>,
        meter: &mut Meter<'_>,
        log: &Log,
    ) -> Result<(), Outcome> {
        let mut player = self.player::<D>(maker, self.seed, Split::AsItComes)?;
        while self.compare_step(&mut player, meter, log)? {}
        Ok(())
    }

    /// Plays a step and compares it with the log; returns whether the workload continues.
    fn compare_step<D: Driver>(
        &self,
        player: &mut Player<D>,
        meter: &mut Meter<'_>,
        log: &Log,
    ) -> Result<bool, Outcome> {
        let index = player.steps;
        let words = player.step(&self.limits, meter)?;
        match (log.step(index), &words) {
            (Some(before), Some(words)) => same::<D>(before, words)
                .map(|()| true)
                .map_err(|what| Outcome::Broken { reason: format!("step {index} of the workload: {what}") }),
            (None, None) => Ok(false),
            _ => Err(Outcome::Broken { reason: format!("the workload ends at another step than before: {index}") }),
        }
    }

    /// Plays two instances alternately, the second some steps behind, and compares both with the log.
    fn compare_in_turns<D: Driver>(
        &self,
        maker: &dyn Maker<D::Instance>,
        meter: &mut Meter<'_>,
        log: &Log,
    ) -> Result<(), Outcome> {
        let mut turns = Draw::new(self.seed, "turns");
        let mut players = [
            self.player::<D>(maker, self.seed, Split::AsItComes)?,
            self.player::<D>(maker, self.seed, Split::AsItComes)?,
        ];
        for _ in 0..LAG_STEPS.min(log.ends.len() as u64) {
            self.compare_step(&mut players[0], meter, log)?;
        }
        let mut at_it = [true, true];
        while at_it.contains(&true) {
            let picked = turns.below(2) as usize;
            let index = if at_it[picked] { picked } else { 1 - picked };
            at_it[index] = self.compare_step(&mut players[index], meter, log)?;
        }
        Ok(())
    }

    /// Plays the beginning of another workload and drops the instance.
    fn stain<D: Driver>(&self, maker: &dyn Maker<D::Instance>, meter: &mut Meter<'_>) -> Result<(), Outcome> {
        let mut player = self.player::<D>(maker, !self.seed, Split::AsItComes)?;
        while player.steps < STAINING_STEPS && player.step(&self.limits, meter)?.is_some() {}
        Ok(())
    }

    /// Plays the whole workload with another split and compares all answers with the log.
    fn compare_split<D: Driver>(
        &self,
        maker: &dyn Maker<D::Instance>,
        meter: &mut Meter<'_>,
        log: &Log,
        split: Split,
    ) -> Result<(), Outcome> {
        let mut player = self.player::<D>(maker, self.seed, split)?;
        let mut words = Vec::new();
        while let Some(answered) = player.step(&self.limits, meter)? {
            words.extend(answered);
        }
        same::<D>(&log.words, &words).map_err(|reason| Outcome::Broken { reason })
    }
}

/// Describes the first difference between two answers, if any.
fn same<D: Driver>(before: &[u64], words: &[u64]) -> Result<(), String> {
    let differs = before.iter().zip(words).position(|(a, b)| a != b);
    match differs {
        Some(index) => {
            let (was, is) = (D::show(before[index]), D::show(words[index]));
            Err(format!("answer {index} is {is}, but was {was} before"))
        }
        None if before.len() == words.len() => Ok(()),
        None => Err(format!("{} words were answered, but {} before", words.len(), before.len())),
    }
}

impl Findings {
    fn note(&mut self, (name, claim): (&'static str, &'static str), result: Result<(), Outcome>) -> bool {
        let outcome = result.err().unwrap_or(Outcome::Passed);
        // After a guest failed or violated the interface, every further check would report the same.
        let may_continue = match &outcome {
            Outcome::Passed => true,
            Outcome::Broken { .. } => name != ANSWERS.0,
            Outcome::GuestFailed { .. } | Outcome::HostFailed { .. } => false,
        };
        self.checks.push(Check { name, claim, outcome });
        may_continue
    }
}
