//! The steps of a log, engine by engine.
//!
//! A line of a log is an iteration of an engine's loop. Under async scheduling, the schedule and the result on one
//! line belong to different steps. A [`Step`] joins the schedule and the result of one step.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::LogError;
use crate::line::{Id, StepLine};
use crate::read::StepLog;
use crate::settings::Settings;

/// The name of an engine in its log. A recording has one engine without a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct EngineName {
    /// Name of the scenario's run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// Name of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Index of the engine in the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<u32>,
}

impl EngineName {
    /// Whether the log does not name the engine.
    #[must_use]
    pub fn is_unnamed(&self) -> bool {
        *self == Self::default()
    }

    /// Pool and index, in the form that `--engine` takes.
    #[must_use]
    pub fn place(&self) -> String {
        match (&self.pool, self.engine) {
            (Some(pool), Some(engine)) => format!("{pool}/{engine}"),
            (Some(pool), None) => pool.clone(),
            (None, Some(engine)) => engine.to_string(),
            (None, None) => String::new(),
        }
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.place().as_str(), &self.of) {
            ("", None) => f.write_str("the engine"),
            ("", Some(of)) => write!(f, "the engine of run {of}"),
            (place, None) => f.write_str(place),
            (place, Some(of)) => write!(f, "{place} of run {of}"),
        }
    }
}

/// One step: the schedule and its result.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// Index of the engine in [`Steps::engines`].
    pub engine: usize,
    /// Number of restarts of the engine's step numbers before this step, for example after a crash.
    pub epoch: u32,
    /// Number of the schedule.
    pub number: u64,
    /// Requests added since the previous schedule.
    pub add: Vec<&'a Id>,
    /// Requests aborted since the previous schedule.
    pub abort: Vec<&'a Id>,
    /// The line with the schedule.
    pub schedule: &'a StepLine,
    /// The line with the result; None if the log ends before, or if the step has no result.
    pub result: Option<&'a StepLine>,
    /// Number of running requests after scheduling. If the log does not list them, computed from arrivals and ends.
    pub num_running: u64,
}

impl Step<'_> {
    /// Start of the step. The times of a line belong to the step whose result is in the line.
    #[must_use]
    pub fn start_ms(&self) -> Option<f64> {
        self.result?.start_ms
    }

    /// Duration of the step.
    #[must_use]
    pub fn duration_ms(&self) -> Option<f64> {
        self.result?.duration_ms
    }
}

/// All steps of a log, in order.
#[derive(Clone, Debug)]
pub struct Steps<'a> {
    /// The log.
    pub log: &'a StepLog,
    /// The engines, sorted by name.
    pub engines: Vec<EngineName>,
    /// The steps of all engines.
    pub steps: Vec<Step<'a>>,
    settings: Vec<&'a Map<String, Value>>,
}

#[derive(Default)]
struct Cursor<'a> {
    epoch: u32,
    latest: Option<u64>,
    add: Vec<&'a Id>,
    abort: Vec<&'a Id>,
    running: HashSet<&'a Id>,
    steps: HashMap<u64, usize>,
}

impl<'a> Steps<'a> {
    /// Joins the lines of a log into steps.
    #[must_use]
    pub fn of(log: &'a StepLog) -> Self {
        let engines = log.engines();
        let index_of: BTreeMap<&EngineName, usize> = engines.iter().zip(0..).collect();
        let mut settings = vec![&log.settings; engines.len()];
        let mut cursors: Vec<Cursor<'a>> = engines.iter().map(|_| Cursor::default()).collect();
        let mut steps: Vec<Step<'a>> = Vec::new();
        for line in &log.lines {
            let engine = index_of[&line.engine_name()];
            if let Some(own) = &line.settings {
                settings[engine] = own;
            }
            let cursor = &mut cursors[engine];
            cursor.add.extend(&line.add);
            cursor.abort.extend(&line.abort);
            for id in &line.abort {
                cursor.running.remove(id);
            }
            if let Some(number) = line.s {
                if cursor.latest.is_some_and(|latest| number <= latest) {
                    cursor.epoch += 1;
                    cursor.running.clear();
                }
                cursor.latest = Some(number);
                cursor.steps.insert(number, steps.len());
                steps.push(cursor.step(engine, number, line));
            }
            if let Some(number) = line.u
                && let Some(&index) = cursor.steps.get(&number)
            {
                steps[index].result.get_or_insert(line);
            }
            for (id, _) in &line.fin {
                cursor.running.remove(id);
            }
        }
        Self { log, engines, steps, settings }
    }

    pub(crate) fn settings_of(&self, step: &Step<'_>) -> Settings<'a> {
        Settings::of(self.settings[step.engine])
    }

    /// The name of a step's engine.
    #[must_use]
    pub fn engine_of(&self, step: &Step<'_>) -> &EngineName {
        &self.engines[step.engine]
    }
}

impl<'a> Cursor<'a> {
    fn step(&mut self, engine: usize, number: u64, line: &'a StepLine) -> Step<'a> {
        for id in &line.pre {
            self.running.remove(id);
        }
        self.running.extend(line.sched.iter().flatten().map(|row| &row.request));
        let counted = line.run.as_ref().map_or(self.running.len(), Vec::len);
        Step {
            engine,
            epoch: self.epoch,
            number,
            add: std::mem::take(&mut self.add),
            abort: std::mem::take(&mut self.abort),
            schedule: line,
            result: None,
            num_running: counted as u64,
        }
    }
}

impl StepLine {
    /// Name of the engine that wrote the line.
    #[must_use]
    pub fn engine_name(&self) -> EngineName {
        EngineName { of: self.of.clone(), pool: self.pool.clone(), engine: self.engine }
    }
}

impl StepLog {
    /// The engines of the log, sorted by name.
    #[must_use]
    pub fn engines(&self) -> Vec<EngineName> {
        let mut names: Vec<EngineName> = Vec::new();
        let mut seen = HashSet::new();
        for line in &self.lines {
            let name = line.engine_name();
            if seen.insert(name.clone()) {
                names.push(name);
            }
        }
        names.sort();
        names
    }

    /// Keeps only the lines of one run, of one engine (pool and index), or of both.
    ///
    /// # Errors
    /// If no line is left. The error lists the names in the log.
    pub fn keep(&mut self, of: Option<&str>, engine: Option<(&str, u32)>) -> Result<(), LogError> {
        let engines = self.engines();
        if let Some(of) = of {
            self.lines.retain(|line| line.of.as_deref() == Some(of));
            if self.lines.is_empty() {
                let names = engines.iter().filter_map(|name| name.of.clone());
                return Err(self.nothing_kept(&format!("run `{of}`"), "runs", names.collect()));
            }
        }
        if let Some((pool, index)) = engine {
            let engines = self.engines();
            self.lines.retain(|line| line.pool.as_deref() == Some(pool) && line.engine == Some(index));
            if self.lines.is_empty() {
                let names = engines.iter().map(EngineName::place).filter(|place| !place.is_empty());
                return Err(self.nothing_kept(&format!("engine `{pool}/{index}`"), "engines", names.collect()));
            }
        }
        Ok(())
    }

    fn nothing_kept(&self, wanted: &str, plural: &str, mut names: Vec<String>) -> LogError {
        names.sort();
        names.dedup();
        let problem = match &names[..] {
            [] => format!("unknown {wanted}: the log names no {plural}"),
            names => format!("unknown {wanted}: expected {}", names.join(", ")),
        };
        LogError::file(&self.path, problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::log;

    /// Under async scheduling, a result is on a later line than its schedule.
    #[test]
    fn a_step_has_both_of_its_halves() {
        let log = log(&[
            r#"{"i":0,"add":[0],"s":0,"sched":[[0,10,0,"n",[1]]],"tot":10,"run":[0],"wait":0,"free":8}"#,
            r#"{"i":1,"add":[1],"s":1,"sched":[[0,1,10,"r",[]]],"tot":1,"run":[0],"wait":1,"free":8,"u":0,"start_ms":3.5,"out":[[0,1]]}"#,
            r#"{"i":2,"u":1,"out":[[0,1]],"fin":[[0,"length"]]}"#,
        ]);
        let steps = Steps::of(&log);
        let halves: Vec<_> = steps.steps.iter().map(|step| (step.number, step.result.map(|line| line.i))).collect();
        assert_eq!(halves, [(0, Some(Some(1))), (1, Some(Some(2)))]);
        assert_eq!(steps.steps[1].add, [&Id::Number(1)]);
        assert_eq!((steps.steps[0].start_ms(), steps.steps[1].start_ms()), (Some(3.5), None));
        assert!(steps.engines[0].is_unnamed());
    }

    #[test]
    fn the_running_list_is_counted_where_it_is_not_logged() {
        let log = log(&[
            r#"{"s":0,"sched":[[0,10,0,"n",[1]],[1,10,0,"n",[2]],[2,10,0,"n",[3]]],"u":0,"out":[],"fin":[[0,"stop"]]}"#,
            r#"{"s":1,"sched":[[1,1,10,"r",[]]],"pre":[2],"u":1,"out":[]}"#,
            r#"{"abort":[1],"s":2,"sched":[[2,11,0,"p",[3]]],"u":2,"out":[]}"#,
        ]);
        let running: Vec<u64> = Steps::of(&log).steps.iter().map(|step| step.num_running).collect();
        assert_eq!(running, [3, 1, 1]);
    }

    #[test]
    fn numbers_that_start_again_are_of_another_epoch() {
        let log = log(&[r#"{"s":0,"u":0}"#, r#"{"s":1,"u":1}"#, r#"{"s":0,"u":0}"#]);
        let steps = Steps::of(&log);
        let epochs: Vec<_> = steps.steps.iter().map(|step| (step.epoch, step.number)).collect();
        assert_eq!(epochs, [(0, 0), (0, 1), (1, 0)]);
        assert!(steps.steps.iter().all(|step| step.result.is_some()));
    }

    #[test]
    fn what_is_kept_must_exist() {
        let lines = [
            r#"{"of":"base","pool":"engines","engine":0,"s":0}"#,
            r#"{"of":"base","pool":"engines","engine":1,"s":0}"#,
            r#"{"of":"other","pool":"decode","engine":0,"s":0}"#,
        ];
        let kept = |of, engine| {
            let mut log = log(&lines);
            log.keep(of, engine).map(|()| log.lines.len()).map_err(|error| error.to_string())
        };
        assert_eq!(kept(Some("base"), None), Ok(2));
        assert_eq!(kept(None, Some(("engines", 1))), Ok(1));
        assert_eq!(kept(Some("besa"), None), Err("steps.jsonl: unknown run `besa`: expected base, other".to_owned()));
        assert_eq!(
            kept(Some("other"), Some(("engines", 0))),
            Err("steps.jsonl: unknown engine `engines/0`: expected decode/0".to_owned())
        );
        let mut unnamed = log(&[r#"{"s":0}"#]);
        let error = unnamed.keep(Some("base"), None).expect_err("it names no runs");
        assert_eq!(error.to_string(), "steps.jsonl: unknown run `base`: the log names no runs");
    }
}
