//! Explanations of steps.
//!
//! vcr's own logs state what ended the admission of waiting requests. For other logs the reason is inferred from
//! the engine's settings, in the order of the scheduler's checks. If several reasons are possible, all are listed.

use std::fmt;

use serde::Serialize;
use vcr_core::plan::AdmissionStop;

use crate::engine_log::stop_word;
use crate::line::{Id, Scheduled};
use crate::settings::Settings;
use crate::steps::{Step, Steps};

const ADAPTERS: &str = "adapters";

/// The source of an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The line states the reason.
    Log,
    /// The reason follows from the line and the settings of the engine.
    Settings,
    /// The reason is unknown.
    Nothing,
}

/// The reason why requests waited after a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Admission {
    /// Number of requests that wait after the step; None if the log does not state it.
    pub waiting: Option<u64>,
    /// Reasons that ended admission, as in a line's `why`. Several if they cannot be distinguished; empty if no
    /// request waits or no reason is known.
    pub stops: Vec<String>,
    /// The source of the reasons.
    pub source: Source,
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.stops[..], self.waiting) {
            ([], Some(0)) => Ok(()),
            ([], _) => f.write_str("?"),
            (stops, _) => f.write_str(&stops.join(" or ")),
        }
    }
}

/// The explanation of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The reason why waiting requests were not admitted.
    pub admission: Admission,
    /// The sentences of the explanation.
    pub sentences: Vec<String>,
}

/// Finds the reason why requests waited after a step.
#[must_use]
pub fn admission(steps: &Steps<'_>, step: &Step<'_>) -> Admission {
    let line = step.schedule;
    let nothing = Admission { waiting: line.wait, stops: Vec::new(), source: Source::Nothing };
    if line.wait == Some(0) {
        return Admission { source: Source::Log, ..nothing };
    }
    if let Some(word) = &line.why {
        return Admission { stops: vec![word.clone()], source: Source::Log, ..nothing };
    }
    match inferred(&steps.settings_of(step), step) {
        Some(stops) if line.wait.is_some() => {
            Admission { stops: stops.into_iter().map(str::to_owned).collect(), source: Source::Settings, ..nothing }
        }
        _ => nothing,
    }
}

/// Infers the reasons in the order of the scheduler's checks (`engine/core/src/engine/schedule.rs`).
fn inferred(settings: &Settings<'_>, step: &Step<'_>) -> Option<Vec<&'static str>> {
    let line = step.schedule;
    if !line.pre.is_empty() {
        return Some(vec![stop_word(AdmissionStop::Preemption)]);
    }
    let budget = settings.budget?;
    let left = budget.saturating_sub(u64::from(line.tot?));
    let mut stops = Vec::new();
    if left == 0 {
        stops.push(stop_word(AdmissionStop::Budget));
    } else if step.num_running >= settings.cap? {
        stops.push(stop_word(AdmissionStop::RunningSlots));
    } else {
        stops.push(stop_word(AdmissionStop::Blocks));
        if settings.chunked_prefill == Some(false) {
            stops.push(stop_word(AdmissionStop::Unchunkable));
        }
        // One token and its drafts did not fit into the budget.
        if settings.num_drafts > 0 && left <= settings.num_drafts {
            stops.push(stop_word(AdmissionStop::Drafts));
        }
    }
    // If every waiting request was skipped, the scheduler made no other check.
    if settings.max_loras > 0 {
        stops.push(ADAPTERS);
    }
    Some(stops)
}

/// A clause that explains a word of `why`, without details from settings.
#[must_use]
pub fn stop_clause(word: &str) -> String {
    clause(word, &Settings::default(), None)
}

fn clause(word: &str, settings: &Settings<'_>, step: Option<&Step<'_>>) -> String {
    let number = |value: Option<u64>| value.map_or(String::new(), |value| format!(" ({value})"));
    let line = step.map(|step| step.schedule);
    let is = |stop: AdmissionStop| word == stop_word(stop);
    if is(AdmissionStop::Budget) {
        return format!("the step's budget of tokens{} was used up", number(settings.budget));
    }
    if is(AdmissionStop::RunningSlots) {
        return format!("as many requests ran as may{}", number(settings.cap));
    }
    if is(AdmissionStop::Blocks) {
        let free = line.and_then(|line| line.free);
        let free =
            free.map_or("the free blocks".to_owned(), |free| format!("the {}", count(u64::from(free), "free block")));
        let reserve = settings.watermark.filter(|&share| share > 0.0);
        let reserve = reserve.map_or(String::new(), |share| format!(", {}% of the pool kept back", share * 100.0));
        return format!("the KV of the next request did not fit into {free}{reserve}");
    }
    if is(AdmissionStop::Preemption) {
        return "a step that preempts admits no request".to_owned();
    }
    if is(AdmissionStop::Unchunkable) {
        let left = settings
            .budget
            .zip(line.and_then(|line| line.tot))
            .map(|(budget, tot)| budget.saturating_sub(u64::from(tot)));
        let left =
            left.map_or("the rest of the budget".to_owned(), |left| format!("the {} left", count(left, "token")));
        return format!("the next prompt did not fit into {left}, and chunked prefill is off");
    }
    if is(AdmissionStop::Drafts) {
        return "the next request's drafts did not fit into the rest of the budget".to_owned();
    }
    if is(AdmissionStop::Encoder) {
        return "the next request begins with an image or other media that the rest of the encoder's budget or cache \
                did not allow"
            .to_owned();
    }
    if is(AdmissionStop::Interval) {
        return "prompts were put off until the interval between prefills is over".to_owned();
    }
    if is(AdmissionStop::Paused) {
        return "the scheduler was paused".to_owned();
    }
    if is(AdmissionStop::Drained) {
        return "those that wait were stepped over: their KV is still on its way, their adapters would have been too \
                many, or output from before a preemption is yet to come"
            .to_owned();
    }
    if word == ADAPTERS {
        return format!("the adapters of those that wait would have been too many (at most {})", settings.max_loras);
    }
    format!("the log has \"{word}\"")
}

/// Explains the step at `index`.
///
/// # Panics
/// If there is no such step.
#[must_use]
pub fn explain(steps: &Steps<'_>, index: usize) -> Explanation {
    let step = &steps.steps[index];
    let settings = steps.settings_of(step);
    let admission = admission(steps, step);
    let mut sentences = Vec::new();
    sentences.extend(of_emptiness(step));
    sentences.extend(of_preemptions(step, &settings));
    sentences.extend(of_idle_requests(step, &settings));
    sentences.extend(of_cut_prompts(steps, index, &settings));
    sentences.extend(of_admission(step, &settings, &admission));
    if sentences.is_empty() {
        sentences.push("every request got all the tokens it could use".to_owned());
    }
    Explanation { admission, sentences }
}

fn of_emptiness(step: &Step<'_>) -> Option<String> {
    let line = step.schedule;
    if line.sched.as_ref().is_none_or(|rows| !rows.is_empty()) {
        return None;
    }
    let reason = match (line.pre.is_empty(), line.flush.is_empty(), step.num_running) {
        (false, ..) => "the preemptions made room for the next step",
        (true, false, 0) => "it only informs the workers of ended requests",
        (true, true, 0) => "no request could run",
        (true, _, _) => "all that run wait for results that are in flight",
    };
    Some(format!("no request got any tokens: {reason}"))
}

fn of_preemptions(step: &Step<'_>, settings: &Settings<'_>) -> Option<String> {
    let preempted = &step.schedule.pre;
    if preempted.is_empty() {
        return None;
    }
    let victim = match settings.policy {
        Some("fcfs") => "; FCFS takes the last of the running list",
        Some("priority") => "; the policy takes the one of largest (priority, arrival)",
        _ => "",
    };
    let (who, verb) = (named(preempted.iter()), if preempted.len() == 1 { "was" } else { "were" });
    Some(format!("{who} {verb} preempted: the running requests needed more blocks than were free{victim}"))
}

fn of_idle_requests(step: &Step<'_>, settings: &Settings<'_>) -> Option<String> {
    let line = step.schedule;
    let (run, rows) = line.run.as_ref().zip(line.sched.as_ref())?;
    let idle: Vec<&Id> = run.iter().filter(|id| !rows.iter().any(|row| row.request == **id)).collect();
    if idle.is_empty() || rows.is_empty() {
        return None;
    }
    let reason = if settings.decode_width.is_some() {
        "it was the turn of others (`decode_width`)"
    } else if settings.budget.is_some() && settings.budget == line.tot.map(u64::from) {
        "the budget was used up before the end of the running list"
    } else if !line.pre.is_empty() {
        "the preemption ended the round over the running list"
    } else if settings.is_async {
        "their last tokens are in flight"
    } else {
        "the log does not have the reason"
    };
    let who = named(idle.iter().copied());
    Some(format!("{who} {} but got no tokens: {reason}", if idle.len() == 1 { "runs" } else { "run" }))
}

/// Describes prompts that were cut: the result of such a step has no token for the request.
fn of_cut_prompts(steps: &Steps<'_>, index: usize, settings: &Settings<'_>) -> Vec<String> {
    let step = &steps.steps[index];
    let Some(out) = step.result.and_then(|result| result.out.as_ref()) else { return Vec::new() };
    let rows = step.schedule.sched.iter().flatten();
    let silent = rows.filter(|row| !out.iter().any(|(id, _)| *id == row.request));
    let later = |row: &Scheduled| {
        let mut rest = steps.steps[index + 1..].iter().filter(|other| other.engine == step.engine);
        rest.find_map(|other| {
            let row = other.schedule.sched.iter().flatten().find(|next| next.request == row.request)?;
            Some((other.number, row))
        })
    };
    let sentence = |row: &Scheduled| {
        let (number, next) = later(row)?;
        // Otherwise the request was preempted in between, and the prompt may have been complete.
        let goes_on = next.kind == 'r' && next.computed == row.computed + row.tokens;
        goes_on.then(|| {
            let reason = cut_reason(row, step, settings);
            let tokens = count(u64::from(row.tokens), "token");
            format!("the prompt of {} was cut after {tokens}: {reason}; it continues in step {number}", row.request)
        })
    };
    silent.filter_map(sentence).collect()
}

fn cut_reason(row: &Scheduled, step: &Step<'_>, settings: &Settings<'_>) -> String {
    let line = step.schedule;
    let tokens = u64::from(row.tokens);
    let threshold = settings.long_prefill_threshold;
    if threshold > 0 && (tokens == threshold || (settings.is_adaptive && tokens > threshold)) {
        return format!("a request among others gets no more of a long prompt at once (threshold {threshold})");
    }
    let said = line.why.as_deref() == Some(stop_word(AdmissionStop::Budget));
    if said || (settings.budget.is_some() && settings.budget == line.tot.map(u64::from)) {
        return "the budget was used up".to_owned();
    }
    "the log does not have the reason".to_owned()
}

fn of_admission(step: &Step<'_>, settings: &Settings<'_>, admission: &Admission) -> Option<String> {
    let waiting = admission.waiting.filter(|&waiting| waiting > 0)?;
    let verb = if waiting == 1 { "waits" } else { "wait" };
    let clauses: Vec<String> = admission.stops.iter().map(|word| clause(word, settings, Some(step))).collect();
    let reason = match (&clauses[..], admission.source) {
        ([], _) => "the log does not have the reason, and the engine's settings are not known".to_owned(),
        ([one], _) => one.clone(),
        (several, _) => format!("either {}; the log does not say which", several.join(", or ")),
    };
    Some(format!("{} {verb}: {reason}", count(waiting, "request")))
}

/// `request 3`, or `requests 3, 4 and 9`. A long list is shortened.
fn named<'a>(ids: impl ExactSizeIterator<Item = &'a Id>) -> String {
    const MOST: usize = 8;
    let len = ids.len();
    let mut names: Vec<String> = ids.take(MOST).map(Id::to_string).collect();
    if len > MOST {
        names.push(format!("{} more", len - MOST));
    }
    match names.split_last() {
        Some((last, [])) => format!("request {last}"),
        Some((last, before)) => format!("requests {} and {last}", before.join(", ")),
        None => "no request".to_owned(),
    }
}

fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{log, log_with};

    /// Explains a step with two running requests and one waiting request, under these settings.
    fn admission_of(settings: Value, more: &str) -> (String, Source) {
        let line = format!(r#"{{"s":0,"sched":[[0,1,9,"r",[]],[1,1,9,"r",[]]],"run":[0,1],"free":3,{more}}}"#);
        let log = log_with(settings, &[&line]);
        let steps = Steps::of(&log);
        let found = admission(&steps, &steps.steps[0]);
        (found.to_string(), found.source)
    }

    fn settings(more: Value) -> Value {
        let mut settings = json!({
            "max_num_batched_tokens": 512, "max_num_seqs": 32, "max_num_active_seqs": null, "chunked_prefill": true,
            "max_loras": 0, "spec": 0, "policy": "fcfs",
        });
        for (name, value) in more.as_object().expect("an object") {
            settings[name] = value.clone();
        }
        settings
    }

    #[track_caller]
    fn inferred_is(more_settings: Value, line: &str, expected: &str) {
        assert_eq!(admission_of(settings(more_settings), line), (expected.to_owned(), Source::Settings));
    }

    #[test]
    fn the_word_of_the_log_goes_before_inference() {
        let found = admission_of(settings(json!({})), r#""tot":512,"wait":1,"why":"cap""#);
        assert_eq!(found, ("cap".to_owned(), Source::Log));
    }

    #[test]
    fn nobody_waits() {
        let found = admission_of(settings(json!({})), r#""tot":512,"wait":0"#);
        assert_eq!(found, (String::new(), Source::Log));
    }

    #[test]
    fn the_scheduler_asks_in_its_order() {
        inferred_is(json!({}), r#""tot":512,"wait":1,"pre":[7]"#, "preemption");
        inferred_is(json!({ "max_num_seqs": 2 }), r#""tot":512,"wait":1"#, "budget");
        inferred_is(json!({ "max_num_seqs": 2 }), r#""tot":2,"wait":1"#, "cap");
        inferred_is(json!({ "max_num_active_seqs": 2 }), r#""tot":2,"wait":1"#, "cap");
        inferred_is(json!({}), r#""tot":2,"wait":1"#, "blocks");
    }

    #[test]
    fn what_cannot_be_distinguished_is_reported() {
        inferred_is(json!({ "max_loras": 1 }), r#""tot":2,"wait":1"#, "blocks or adapters");
        inferred_is(json!({ "max_loras": 1 }), r#""tot":512,"wait":1"#, "budget or adapters");
        inferred_is(json!({ "chunked_prefill": false }), r#""tot":2,"wait":1"#, "blocks or no chunking");
        // Drafts matter only if the budget is nearly used up.
        inferred_is(json!({ "spec": 3 }), r#""tot":2,"wait":1"#, "blocks");
        inferred_is(json!({ "spec": 3 }), r#""tot":509,"wait":1"#, "blocks or drafts");
    }

    #[test]
    fn without_settings_only_a_preemption_is_known() {
        assert_eq!(admission_of(json!({}), r#""tot":2,"wait":1"#), ("?".to_owned(), Source::Nothing));
        let found = admission_of(json!({}), r#""tot":2,"wait":1,"pre":[7]"#);
        assert_eq!(found, ("preemption".to_owned(), Source::Settings));
    }

    #[track_caller]
    fn sentences(settings: Value, lines: &[&str], expected: &[&str]) {
        let log = log_with(settings, lines);
        assert_eq!(explain(&Steps::of(&log), 0).sentences, expected);
    }

    #[test]
    fn a_cut_prompt_says_where_it_goes_on() {
        let lines = [
            r#"{"s":0,"sched":[[0,500,0,"n",[1]],[4,12,0,"n",[2]]],"tot":512,"run":[0,4],"wait":2,"free":3,"u":0,"out":[[0,1]]}"#,
            r#"{"s":1,"sched":[[0,1,500,"r",[]],[4,88,12,"r",[]]],"tot":89,"run":[0,4],"wait":0,"free":3}"#,
        ];
        let cut = "the prompt of 4 was cut after 12 tokens: the budget was used up; it continues in step 1";
        sentences(
            settings(json!({})),
            &lines,
            &[cut, "2 requests wait: the step's budget of tokens (512) was used up"],
        );
        let cut = "the prompt of 4 was cut after 12 tokens: a request among others gets no more of a long prompt at once \
                   (threshold 12); it continues in step 1";
        let waiting = "2 requests wait: the step's budget of tokens (512) was used up";
        sentences(settings(json!({ "long_prefill_token_threshold": 12 })), &lines, &[cut, waiting]);
    }

    #[test]
    fn preemptions_are_reported_with_their_rule() {
        let line = r#"{"s":0,"sched":[[0,1,9,"r",[5]]],"tot":1,"run":[0],"wait":2,"free":0,"pre":[3,4]}"#;
        let room = "requests 3 and 4 were preempted: the running requests needed more blocks than were free; FCFS takes \
                    the last of the running list";
        sentences(settings(json!({})), &[line], &[room, "2 requests wait: a step that preempts admits no request"]);
    }

    #[test]
    fn idle_and_empty_steps_are_explained() {
        let line = r#"{"s":0,"sched":[[0,512,0,"r",[5]]],"tot":512,"run":[0,1],"wait":0,"free":0}"#;
        let idle = "request 1 runs but got no tokens: the budget was used up before the end of the running list";
        sentences(settings(json!({})), &[line], &[idle]);
        let line = r#"{"s":0,"sched":[],"tot":0,"flush":[3],"run":[],"wait":0,"free":9}"#;
        let empty = "no request got any tokens: it only informs the workers of ended requests";
        sentences(settings(json!({})), &[line], &[empty]);
        let line = r#"{"s":0,"sched":[[0,1,9,"r",[5]]],"tot":1,"run":[0],"wait":0,"free":9}"#;
        sentences(settings(json!({})), &[line], &["every request got all the tokens it could use"]);
    }

    #[test]
    fn words_have_clauses_without_settings() {
        let log = log(&[r#"{"s":0,"sched":[],"tot":0,"wait":1,"why":"moonlight"}"#]);
        let explanation = explain(&Steps::of(&log), 0);
        assert!(explanation.sentences.contains(&"1 request waits: the log has \"moonlight\"".to_owned()));
        assert_eq!(stop_clause("budget"), "the step's budget of tokens was used up");
        assert_eq!(stop_clause("cap"), "as many requests ran as may");
        assert_eq!(stop_clause("paused"), "the scheduler was paused");
    }
}
