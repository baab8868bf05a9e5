//! Observations of a few requests, and their decisions.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use vcr_gate::{
    Decision, GateError, GateOptions, Input, JoinBy, Judgement, MirrorOptions, Policy, Side, Signal, Verdict,
};

#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) version: u32,
    pub(crate) id: String,
    pub(crate) latency_ns: u64,
    ok: bool,
    fields: BTreeMap<String, String>,
}

impl Line {
    pub(crate) fn set(&mut self, field: &str, json: &str) {
        self.fields.insert(field.to_owned(), json.to_owned());
    }

    pub(crate) fn unset(&mut self, field: &str) {
        self.fields.remove(field);
    }

    pub(crate) fn fail(&mut self, class: &str) {
        self.ok = false;
        self.set("error", class);
    }

    pub(crate) fn set_latency(&mut self, ns: u64) {
        self.latency_ns = ns;
    }

    pub(crate) fn set_ttft(&mut self, ns: u64) {
        self.latency_ns = 1_000_000_000;
        self.set("ttft_ns", &ns.to_string());
    }

    pub(crate) fn set_gap(&mut self, ns: u64) {
        self.set("mean_gap_ns", &ns.to_string());
    }

    fn json(&self) -> String {
        let Self { version, id, latency_ns, ok, fields } = self;
        let mut json =
            format!("{{\"observation\":{version},\"request_id\":\"{id}\",\"ok\":{ok},\"latency_ns\":{latency_ns}");
        for (field, value) in fields {
            json.push_str(&format!(",\"{field}\":{value}"));
        }
        json + "}\n"
    }
}

/// Answered requests `r0`, `r1` and so on; each takes 100 ms.
pub(crate) fn lines(count: usize) -> Vec<Line> {
    let line = |index: usize| Line {
        version: 1,
        id: format!("r{index}"),
        latency_ns: 100_000_000,
        ok: true,
        fields: BTreeMap::from([("token_ids".to_owned(), format!("[{index},1,2]"))]),
    };
    (0..count).map(line).collect()
}

pub(crate) fn same(count: usize, change: impl Fn(&mut Line)) -> Vec<Line> {
    let mut all = lines(count);
    all.iter_mut().for_each(change);
    all
}

pub(crate) struct Decided {
    pub(crate) judgement: Judgement,
}

impl Decided {
    pub(crate) fn decision(&self) -> Decision {
        self.judgement.decision
    }

    pub(crate) fn reason(&self) -> &str {
        &self.judgement.reason
    }

    pub(crate) fn failed(&self) -> Vec<Signal> {
        let signals = self.judgement.segments[0].signals.iter();
        signals.filter(|signal| signal.verdict == Verdict::Failed).map(|signal| signal.signal).collect()
    }

    pub(crate) fn verdict(&self, signal: Signal) -> Verdict {
        let found = self.judgement.segments[0].signals.iter().find(|found| found.signal == signal);
        found.expect("it is judged").verdict
    }
}

fn load(lines: &[Line]) -> Result<Side, GateError> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("observations.jsonl");
    std::fs::write(&path, lines.iter().map(Line::json).collect::<String>()).expect("it is writable");
    let options = MirrorOptions { format: Some(vcr_gate::Format::Observations), ..MirrorOptions::default() };
    vcr_gate::load(&[Input { path, run: None }], &options).map(|(side, _)| side)
}

pub(crate) fn decide(policy: &str, baseline: &[Line], candidate: &[Line]) -> Decided {
    let judgement = judged(policy, baseline, candidate).expect("they can be joined");
    Decided { judgement }
}

pub(crate) fn judged(policy: &str, baseline: &[Line], candidate: &[Line]) -> Result<Judgement, GateError> {
    // A test's policy may repeat a table; the parts are merged.
    let policy = Policy::parse(&merged(policy), "policy.toml").unwrap_or_else(|error| panic!("{error}"));
    let side = |lines| load(lines).unwrap_or_else(|error| panic!("{error}"));
    let options = GateOptions { join: JoinBy::Auto, threads: NonZeroUsize::MIN };
    vcr_gate::judge(&policy, &side(baseline), &side(candidate), &options)
}

/// Merges tables that appear more than once in a TOML text.
fn merged(text: &str) -> String {
    let mut parts: Vec<(String, String)> = vec![(String::new(), String::new())];
    for line in text.lines() {
        if line.starts_with("[[") || (line.starts_with('[') && parts.iter().all(|(head, _)| head != line)) {
            parts.push((line.to_owned(), String::new()));
            continue;
        }
        if let Some(at) = parts.iter().position(|(head, _)| head == line && !head.is_empty()) {
            let part = parts.remove(at);
            parts.push(part);
            continue;
        }
        let (_, body) = parts.last_mut().expect("there is one");
        body.push_str(line);
        body.push('\n');
    }
    parts.iter().map(|(head, body)| format!("{head}\n{body}")).collect()
}

#[track_caller]
pub(crate) fn refused(lines: &[Line], needles: &[&str]) {
    let error = load(lines).expect_err("it is refused").to_string();
    assert!(needles.iter().all(|needle| error.contains(needle)), "{error}");
}
