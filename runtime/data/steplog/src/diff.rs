//! Compares two logs and finds the first step in which the engines decided differently.
//!
//! Steps are aligned by engine and by the number of the schedule, so the two logs may divide their steps into lines
//! differently. Times, `why`, `i` and `sampled` are not compared. Fields that only one log has are listed, not
//! compared.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::error::LogError;
use crate::line::{Id, StepLine};
use crate::read::{LogKind, StepLog};
use crate::steps::{EngineName, Step, Steps};

const FIELDS: [&str; 15] =
    ["add", "abort", "sched", "tot", "pre", "flush", "run", "wait", "free", "win", "out", "fin", "drafts", "pc", "ev"];

/// One of the two logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The first log.
    Left,
    /// The second log.
    Right,
}

/// The kind of the first difference.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Difference {
    /// A field has different values.
    Field {
        /// Name of the field.
        field: &'static str,
        /// The value in the first log.
        left: Value,
        /// The value in the second log.
        right: Value,
    },
    /// Only one log has the step.
    OnlyIn {
        /// The log that has the step.
        side: Side,
    },
}

/// The first difference and its position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepDifference {
    /// The engine as the first log names it.
    pub left_engine: EngineName,
    /// The engine as the second log names it.
    pub right_engine: EngineName,
    /// Number of the step's schedule.
    pub step: u64,
    /// The kind of the difference.
    #[serde(flatten)]
    pub difference: Difference,
    /// Index of the step in [`Steps`] of the first log; None if this log lacks the step.
    #[serde(skip)]
    pub left_index: Option<usize>,
    /// Index of the step in [`Steps`] of the second log; None if this log lacks the step.
    #[serde(skip)]
    pub right_index: Option<usize>,
}

/// The comparison of two logs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LogDiff {
    /// Number of engines that both logs have.
    pub engines: u64,
    /// Number of engines whose steps differ.
    pub different_engines: u64,
    /// Number of equal steps.
    pub steps: u64,
    /// Number of equal field values.
    pub fields: u64,
    /// Fields that only one log has, each with the log that has it.
    pub not_compared: Vec<(&'static str, Side)>,
    /// Engines that only one log has, each with the log that has it.
    pub unpaired: Vec<(EngineName, Side)>,
    /// The first difference: the earliest one if the logs have times, or else the one of the first engine.
    pub first: Option<StepDifference>,
}

impl LogDiff {
    /// Whether the logs have the same engines and the same decisions.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.first.is_none() && self.unpaired.is_empty()
    }
}

/// Compares two logs.
///
/// # Errors
/// If a log has no schedule, or if one log names its requests and the other numbers them.
pub fn diff(left: &Steps<'_>, right: &Steps<'_>) -> Result<LogDiff, LogError> {
    for side in [left, right] {
        if side.steps.is_empty() {
            return Err(LogError::file(&side.log.path, "expected at least one schedule (`s`)"));
        }
    }
    if let (Some(ours), Some(theirs)) = (first_id(left), first_id(right))
        && std::mem::discriminant(ours) != std::mem::discriminant(theirs)
    {
        let problem = format!(
            "requests are {} here and {} in {}, so the two cannot be compared",
            how_known(ours),
            how_known(theirs),
            right.log.path.display(),
        );
        return Err(LogError::file(&left.log.path, problem));
    }
    let mut comparison = Comparison::new(left.log, right.log);
    let mut found = LogDiff { not_compared: comparison.not_compared(), ..LogDiff::default() };
    let mut earliest = f64::INFINITY;
    for pair in pairs(&left.engines, &right.engines, &mut found.unpaired) {
        found.engines += 1;
        let Some(difference) = comparison.engine(left, right, pair) else { continue };
        found.different_engines += 1;
        let start = start_ms(left, difference.left_index).or(start_ms(right, difference.right_index));
        if found.first.is_none() || start.is_some_and(|start| start < earliest) {
            earliest = start.unwrap_or(earliest);
            found.first = Some(difference);
        }
    }
    found.steps = comparison.steps;
    found.fields = comparison.fields;
    Ok(found)
}

fn first_id<'a>(steps: &Steps<'a>) -> Option<&'a Id> {
    steps.steps.iter().find_map(|step| step.schedule.sched.as_ref()?.first().map(|row| &row.request))
}

fn how_known(id: &Id) -> &'static str {
    match id {
        Id::Number(_) => "numbered",
        Id::Name(_) => "named",
    }
}

fn start_ms(steps: &Steps<'_>, index: Option<usize>) -> Option<f64> {
    steps.steps[index?].start_ms()
}

/// Pairs the engines that have the same name. Returns their indices. Run names are ignored if each log has only one
/// run; all names are ignored if each log has only one engine.
fn pairs(left: &[EngineName], right: &[EngineName], unpaired: &mut Vec<(EngineName, Side)>) -> Vec<(usize, usize)> {
    if let ([_], [_]) = (left, right) {
        return vec![(0, 0)];
    }
    let is_one_run = |engines: &[EngineName]| engines.windows(2).all(|pair| pair[0].of == pair[1].of);
    let ignore_runs = is_one_run(left) && is_one_run(right);
    let key = |name: &EngineName| EngineName { of: name.of.clone().filter(|_| !ignore_runs), ..name.clone() };
    let mut others: BTreeMap<EngineName, usize> = right.iter().map(key).zip(0..).collect();
    let mut pairs = Vec::new();
    for (index, name) in left.iter().enumerate() {
        match others.remove(&key(name)) {
            Some(other) => pairs.push((index, other)),
            None => unpaired.push((name.clone(), Side::Left)),
        }
    }
    let mut rest: Vec<usize> = others.into_values().collect();
    rest.sort_unstable();
    unpaired.extend(rest.into_iter().map(|index| (right[index].clone(), Side::Right)));
    pairs
}

/// Whether a log records a field. A line omits empty lists, so a field also counts as recorded if the log has
/// another field that always accompanies it.
fn records(log: &StepLog, field: &str) -> bool {
    let any = |has: fn(&StepLine) -> bool| log.lines.iter().any(has);
    match field {
        "add" | "abort" => any(|line| !line.add.is_empty() || !line.abort.is_empty()),
        "sched" => any(|line| line.sched.is_some()),
        "tot" => any(|line| line.tot.is_some()),
        "pre" => any(|line| !line.pre.is_empty() || line.sched.is_some()),
        "flush" => any(|line| !line.flush.is_empty()) || log.kind == LogKind::Live || any(|line| line.out.is_some()),
        "run" => any(|line| line.run.is_some()),
        "wait" => any(|line| line.wait.is_some()),
        "free" => any(|line| line.free.is_some()),
        "win" => any(|line| !line.win.is_empty()),
        "out" => any(|line| line.out.is_some()),
        "fin" => any(|line| !line.fin.is_empty() || line.out.is_some()),
        "drafts" => any(|line| !line.drafts.is_empty()),
        "pc" => any(|line| line.pc.is_some()),
        "ev" => any(|line| !line.ev.is_empty()),
        _ => unreachable!("every field has its test"),
    }
}

struct Comparison {
    recorded: [(bool, bool); FIELDS.len()],
    steps: u64,
    fields: u64,
}

impl Comparison {
    fn new(left: &StepLog, right: &StepLog) -> Self {
        Self { recorded: FIELDS.map(|field| (records(left, field), records(right, field))), steps: 0, fields: 0 }
    }

    fn not_compared(&self) -> Vec<(&'static str, Side)> {
        let pairs = FIELDS.into_iter().zip(self.recorded);
        let one_sided = pairs.filter_map(|(field, recorded)| match recorded {
            (true, false) => Some((field, Side::Left)),
            (false, true) => Some((field, Side::Right)),
            _ => None,
        });
        one_sided.collect()
    }

    fn engine(
        &mut self,
        left: &Steps<'_>,
        right: &Steps<'_>,
        (left_engine, right_engine): (usize, usize),
    ) -> Option<StepDifference> {
        let (ours, theirs) = (by_number(left, left_engine), by_number(right, right_engine));
        let mut numbers: Vec<(u32, u64)> = ours.keys().chain(theirs.keys()).copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        for key in numbers {
            let (left_index, right_index) = (ours.get(&key).copied(), theirs.get(&key).copied());
            let outcome = match (left_index, right_index) {
                (Some(index), Some(other)) => self.step(&left.steps[index], &right.steps[other]),
                (Some(_), None) => Err(Difference::OnlyIn { side: Side::Left }),
                _ => Err(Difference::OnlyIn { side: Side::Right }),
            };
            if let Err(difference) = outcome {
                return Some(StepDifference {
                    left_engine: left.engines[left_engine].clone(),
                    right_engine: right.engines[right_engine].clone(),
                    step: key.1,
                    difference,
                    left_index,
                    right_index,
                });
            }
            self.steps += 1;
        }
        None
    }

    fn step(&mut self, left: &Step<'_>, right: &Step<'_>) -> Result<(), Difference> {
        let (ours, theirs) = (left.schedule, right.schedule);
        self.field("add", &left.add, &right.add)?;
        self.field("abort", &left.abort, &right.abort)?;
        self.field("sched", &ours.sched, &theirs.sched)?;
        self.field("tot", &ours.tot, &theirs.tot)?;
        self.field("pre", &ours.pre, &theirs.pre)?;
        self.field("flush", &ours.flush, &theirs.flush)?;
        self.field("run", &ours.run, &theirs.run)?;
        self.field("wait", &ours.wait, &theirs.wait)?;
        self.field("free", &ours.free, &theirs.free)?;
        self.field("win", &ours.win, &theirs.win)?;
        let nothing = StepLine::default();
        let (ours, theirs) = (left.result.unwrap_or(&nothing), right.result.unwrap_or(&nothing));
        self.field("out", &ours.out, &theirs.out)?;
        self.field("fin", &ours.fin, &theirs.fin)?;
        self.field("drafts", &ours.drafts, &theirs.drafts)?;
        self.field("pc", &ours.pc, &theirs.pc)?;
        self.field("ev", &ours.ev, &theirs.ev)
    }

    fn field<T: PartialEq + Serialize>(&mut self, field: &'static str, left: &T, right: &T) -> Result<(), Difference> {
        let index = FIELDS.iter().position(|known| *known == field).expect("every field is listed");
        if self.recorded[index] != (true, true) {
            return Ok(());
        }
        if left == right {
            self.fields += 1;
            return Ok(());
        }
        let value = |side: &T| serde_json::to_value(side).unwrap_or(Value::Null);
        Err(Difference::Field { field, left: value(left), right: value(right) })
    }
}

fn by_number(steps: &Steps<'_>, engine: usize) -> BTreeMap<(u32, u64), usize> {
    let of_engine = steps.steps.iter().enumerate().filter(|(_, step)| step.engine == engine);
    of_engine.map(|(index, step)| ((step.epoch, step.number), index)).collect()
}

/// The first entry that differs between two lists.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstEntry<'a> {
    /// Index of the entry, from 0.
    pub index: usize,
    /// The entry in the first list; None if that list is shorter.
    pub left: Option<&'a Value>,
    /// The entry in the second list; None if that list is shorter.
    pub right: Option<&'a Value>,
    /// The part of the entry that differs: (name, first value, second value). None unless both entries are of the
    /// same kind and their parts have names.
    pub part: Option<(&'static str, &'a Value, &'a Value)>,
}

/// Finds the first entry in which two values of `field` differ. None if a value is not a list, or if both are
/// equal.
#[must_use]
pub fn first_entry<'a>(field: &str, left: &'a Value, right: &'a Value) -> Option<FirstEntry<'a>> {
    let (ours, theirs) = (left.as_array()?, right.as_array()?);
    let most = ours.len().max(theirs.len());
    let index = (0..most).find(|&index| ours.get(index) != theirs.get(index))?;
    let (left, right) = (ours.get(index), theirs.get(index));
    let part = left.zip(right).and_then(|(left, right)| first_part(field, left, right));
    Some(FirstEntry { index, left, right, part })
}

fn first_part<'a>(field: &str, left: &'a Value, right: &'a Value) -> Option<(&'static str, &'a Value, &'a Value)> {
    let (ours, theirs) = (left.as_array()?, right.as_array()?);
    let names: &[&'static str] = match field {
        "sched" => &["request", "tokens", "computed tokens", "kind", "new blocks", "drafts"],
        "out" | "emitted" | "drafts" => &["request", "tokens"],
        "fin" | "stopped" => &["request", "reason"],
        "ev" if ours.first() == theirs.first() && ours.len() == 3 => &["kind", "parent", "blocks"],
        _ => return None,
    };
    // A row without drafts omits the number of drafts.
    let none = &Value::Null;
    let part = |row: &'a [Value], index: usize| row.get(index).unwrap_or(none);
    let index = (0..names.len()).find(|&index| part(ours, index) != part(theirs, index))?;
    Some((names[index], part(ours, index), part(theirs, index)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::log;

    const FIRST: &str = r#"{"i":0,"add":[0],"s":0,"sched":[[0,10,0,"n",[1]]],"tot":10,"run":[0],"wait":0,"free":8,"u":0,"out":[[0,1]]}"#;
    const SECOND: &str = r#"{"i":1,"s":1,"sched":[[0,1,10,"r",[]]],"tot":1,"run":[0],"wait":0,"free":8,"u":1,"out":[[0,1]],"fin":[[0,"length"]]}"#;

    fn of(left: &[&str], right: &[&str]) -> LogDiff {
        let (left, right) = (log(left), log(right));
        diff(&Steps::of(&left), &Steps::of(&right)).expect("they can be compared")
    }

    fn field_of(found: &LogDiff) -> (u64, &'static str, &Value, &Value) {
        let first = found.first.as_ref().expect("they differ");
        match &first.difference {
            Difference::Field { field, left, right } => (first.step, field, left, right),
            Difference::OnlyIn { side } => panic!("only in {side:?}"),
        }
    }

    #[test]
    fn equal_logs_are_counted() {
        let found = of(&[FIRST, SECOND], &[FIRST, SECOND]);
        assert!(found.is_equal());
        // The 22 fields: `add` and `abort`, seven of each schedule, and two of each result. There are no drafts,
        // counters or events.
        assert_eq!((found.engines, found.steps, found.fields), (1, 2, 22));
        assert_eq!(found.not_compared, []);
    }

    #[test]
    fn the_first_field_of_the_first_step_is_reported() {
        let later = SECOND.replace("\"free\":8", "\"free\":7").replace("length", "stop");
        let found = of(&[FIRST, SECOND], &[FIRST, &later]);
        assert_eq!(field_of(&found), (1, "free", &json!(8), &json!(7)));
        assert_eq!((found.steps, found.different_engines), (1, 1));
        assert_eq!(found.first.as_ref().map(|first| (first.left_index, first.right_index)), Some((Some(1), Some(1))));
    }

    /// If only one log has the end of a request, that is a difference, not a field that the other log lacks.
    #[test]
    fn an_end_that_only_one_log_tells_is_a_difference() {
        let without = SECOND.replace(r#","fin":[[0,"length"]]"#, "");
        let found = of(&[FIRST, SECOND], &[FIRST, &without]);
        assert_eq!(field_of(&found), (1, "fin", &json!([[0, "length"]]), &json!([])));
    }

    #[test]
    fn why_times_and_the_model_are_not_compared() {
        let other = FIRST.replace("\"i\":0", "\"i\":7,\"start_ms\":3.0,\"why\":\"cap\",\"sampled\":{\"0\":2}");
        assert!(of(&[FIRST, SECOND], &[&other, SECOND]).is_equal());
    }

    /// One log has a result on the line of the same schedule, the other log on the line of the next schedule.
    #[test]
    fn results_are_aligned_by_their_own_number() {
        let schedule = |line: &str| line.split(",\"u\"").next().expect("it has one").to_owned();
        let result = |line: &str| line.split(",\"u\"").nth(1).expect("it has one").to_owned();
        let second = format!("{},\"u\"{}", schedule(SECOND), result(FIRST));
        let shifted = [format!("{}}}", schedule(FIRST)), second, format!("{{\"u\"{}", result(SECOND))];
        let shifted: Vec<&str> = shifted.iter().map(String::as_str).collect();
        assert!(of(&[FIRST, SECOND], &shifted).is_equal());
    }

    #[test]
    fn fields_of_one_log_are_named() {
        let without = |line: &str| line.replace("\"run\":[0],", "");
        let with = SECOND.replace("\"u\":1", "\"u\":1,\"ev\":[[\"C\"]]");
        let found = of(&[&without(FIRST), &without(SECOND)], &[FIRST, &with]);
        assert!(found.is_equal());
        assert_eq!(found.not_compared, [("run", Side::Right), ("ev", Side::Right)]);
    }

    #[test]
    fn a_step_that_one_log_lacks_is_a_difference() {
        let found = of(&[FIRST], &[FIRST, SECOND]);
        let first = found.first.expect("they differ");
        assert_eq!((first.step, first.difference), (1, Difference::OnlyIn { side: Side::Right }));
        assert_eq!((first.left_index, first.right_index), (None, Some(1)));
    }

    fn line_of(of: &str, engine: u32, start_ms: f64, free: u32) -> String {
        format!(r#"{{"of":"{of}","pool":"p","engine":{engine},"s":0,"free":{free},"u":0,"start_ms":{start_ms}}}"#)
    }

    #[test]
    fn engines_are_paired_by_name_and_the_earliest_difference_comes_first() {
        let left = [line_of("a", 0, 9.0, 1), line_of("a", 1, 2.0, 1), line_of("a", 2, 0.0, 1)];
        let right = [line_of("b", 3, 0.0, 1), line_of("b", 1, 2.0, 5), line_of("b", 0, 9.0, 5)];
        let found = of(&left.each_ref().map(String::as_str), &right.each_ref().map(String::as_str));
        assert_eq!((found.engines, found.different_engines), (2, 2));
        assert_eq!(found.first.as_ref().and_then(|first| first.left_engine.engine), Some(1));
        let unpaired: Vec<_> = found.unpaired.iter().map(|(name, side)| (name.engine, *side)).collect();
        assert_eq!(unpaired, [(Some(2), Side::Left), (Some(3), Side::Right)]);
    }

    #[test]
    fn one_engine_is_compared_with_one_whatever_their_names() {
        let left = line_of("a", 3, 0.0, 1);
        assert!(of(&[&left], &[r#"{"s":0,"free":1}"#]).is_equal());
    }

    #[test]
    fn several_runs_are_distinguished() {
        let both = [line_of("a", 0, 0.0, 1), line_of("b", 0, 0.0, 2)];
        let found = of(&both.each_ref().map(String::as_str), &[&line_of("b", 0, 0.0, 2)]);
        assert!(found.first.is_none());
        assert_eq!(found.unpaired.len(), 1);
        assert!(!found.is_equal());
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        let refused = |left: &str, right: &str| {
            let (left, right) = (log(&[left]), log(&[right]));
            diff(&Steps::of(&left), &Steps::of(&right)).expect_err("it is refused").to_string()
        };
        assert!(refused(FIRST, r#"{"add":[0]}"#).contains("expected at least one schedule"));
        let named = FIRST.replace("[0,10", "[\"a\",10");
        let error = refused(FIRST, &named);
        assert!(error.contains("requests are numbered here and named in steps.jsonl"), "{error}");
    }

    #[test]
    fn the_first_entry_and_its_part_are_found() {
        let ours = json!([[0, 1, 9, "r", []], [3, 40, 0, "n", [7, 8]]]);
        let theirs = json!([[0, 1, 9, "r", []], [3, 32, 0, "n", [7, 8]]]);
        let found = first_entry("sched", &ours, &theirs).expect("they differ");
        assert_eq!((found.index, found.left), (1, Some(&json!([3, 40, 0, "n", [7, 8]]))));
        assert_eq!(found.part, Some(("tokens", &json!(40), &json!(32))));
    }

    #[test]
    fn a_list_may_end_before_the_other() {
        let (ours, theirs) = (json!([1, 2]), json!([1, 2, 3]));
        let found = first_entry("run", &ours, &theirs).expect("they differ");
        assert_eq!((found.index, found.left, found.right), (2, None, Some(&json!(3))));
        assert_eq!(found.part, None);
    }

    #[test]
    fn drafts_may_be_missing_on_one_side() {
        let (ours, theirs) = (json!([[0, 3, 9, "r", [], 2]]), json!([[0, 3, 9, "r", []]]));
        let found = first_entry("sched", &ours, &theirs).expect("they differ");
        assert_eq!(found.part, Some(("drafts", &json!(2), &json!(null))));
    }

    #[test]
    fn what_is_no_list_has_no_entry() {
        assert_eq!(first_entry("free", &json!(3), &json!(4)), None);
        assert_eq!(first_entry("sched", &json!(null), &json!([])), None);
        assert_eq!(first_entry("run", &json!([1]), &json!([1])), None);
    }
}
