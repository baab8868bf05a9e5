//! Pages of the reference repeat the code's declarations word for word. `UPDATE_DOCS=1` rewrites them.

use std::fs;
use std::process::Command;

use serde_json::Value;
use vcr_cluster::metrics::{Metric, MetricKind, Scope, Unit};
use vcr_cluster::{PoolRole, RouterConfig};
use vcr_core::sglang::{self, SglangConfigInput};
use vcr_core::ticks::{self, TickConfigInput};
use vcr_core::{
    ACCEPTANCE_RATES, Drivers, EngineConfigInput, EngineKind, EngineOption, KV_CACHE_GROUPS, OPTIONS, OptionValue,
    option,
};
use vcr_dynamo::{EngineArgs, PoolOptions, Preset, known_engine_key};
use vcr_fitted::TERMS;
use vcr_frontend::dialects::anthropic;
use vcr_tests::{Folder, check_file, check_rows, check_table, root, vcr};

/// The row of an option, with its default in these settings.
fn option_row<C: Default>(option: &EngineOption<C>, settings: &C) -> Vec<String> {
    let default = option.value_text((option.get)(settings));
    vec![format!("`{}`", option.name), option.type_text(), default, option.meaning.to_owned()]
}

#[test]
fn scenarios_have_the_declared_engine_options() {
    let page = "reference/scenarios/engines.md";
    let mut rows: Vec<_> = OPTIONS.iter().map(|option| option_row(option, &EngineConfigInput::default())).collect();
    let rates = [&format!("`{}`", ACCEPTANCE_RATES.name), "array of shares", "`[]`", ACCEPTANCE_RATES.meaning];
    rows.push(rates.map(str::to_owned).to_vec());
    let groups = [&format!("`{}`", KV_CACHE_GROUPS.name), "array of texts", "`[]`", KV_CACHE_GROUPS.meaning];
    rows.push(groups.map(str::to_owned).to_vec());
    check_rows(page, "## vLLM", &rows);
    let declared = sglang::OPTIONS.iter();
    let mut rows: Vec<_> = declared.map(|option| option_row(option, &SglangConfigInput::default())).collect();
    rows.push(rates.map(str::to_owned).to_vec());
    check_table(page, "## SGLang", &rows);
    let rows: Vec<_> = ticks::OPTIONS.iter().map(|option| option_row(option, &TickConfigInput::default())).collect();
    check_table(page, "## Ticks", &rows);
}

#[test]
fn engine_arguments_have_the_declared_options() {
    let pool = EngineArgs::default().pool(PoolOptions {
        place: "",
        name: "",
        engines: 1,
        autoscale: None,
        preset: Preset::default(),
        role: PoolRole::Aggregated,
        computes_prompts: true,
        latency: None,
        router: RouterConfig::RoundRobin,
    });
    let EngineKind::Vllm(settings) = pool.expect("the defaults are valid").engine else {
        panic!("engines are vLLM's by default")
    };
    // In engine arguments, these options have another meaning: the number of usable blocks, and an interval in
    // passes of ranks.
    let others = [option::NUM_GPU_BLOCKS.name, option::PREFILL_SCHEDULE_INTERVAL.name];
    let is_other = |option: &&EngineOption| others.contains(&option.name);
    let options = OPTIONS.iter().filter(|option| known_engine_key(option.name) && !is_other(option));
    let rows: Vec<_> = options.map(|option| option_row(option, &settings.stated())).collect();
    assert!(rows.len() >= 7, "{rows:?}");
    check_rows("reference/replay/engine-arguments.md", "## Engine options", &rows);
}

#[test]
fn vcr_play_has_the_declared_engine_options() {
    let output = Command::new(vcr()).args(["play", "--help-all"]).output().expect("it starts");
    let help = String::from_utf8(output.stdout).expect("the help is text");
    let (_, help) = help.split_once("\nEngine:").expect("there are options of the engine");
    for option in OPTIONS {
        let flag = option.flag();
        let entries = || help.split("\n      -").map(|entry| format!("-{}", entry.trim()));
        let entry = entries().find(|entry| entry.split_whitespace().next() == Some(&flag));
        let Some(entry) = entry else {
            assert_eq!(option.drivers, Drivers::Simulated, "`vcr play` has no {flag}");
            continue;
        };
        let text = entry.split_whitespace().collect::<Vec<_>>().join(" ");
        let meaning = option.flag_meaning();
        assert!(text.to_lowercase().contains(&meaning.to_lowercase()), "{flag}: \"{text}\" does not say \"{meaning}\"");
        let default =
            text.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']')).map(|(default, _)| default);
        let is_switch = matches!(option.default_value(), OptionValue::Switch(_));
        assert_eq!(default.is_none(), is_switch, "{flag}: {text}");
    }
}

#[test]
fn arguments_of_vllm_without_effect_are_listed() {
    let help = Folder::new().vcr(&["serve", "--help-all"]).ended(0).stdout;
    let (_, listed) = help.split_once("\nArguments of `vllm serve`").expect("the help lists them");
    let paragraphs = listed.split("\n\n").skip(1).map(|lines| lines.split_whitespace().collect::<Vec<_>>().join(" "));
    let row = |paragraph: String| {
        let (reason, names) = paragraph.split_once(": --").expect("a reason and its arguments");
        let names: Vec<_> = format!("--{names}").split(' ').map(|name| format!("`{name}`")).collect();
        vec![names.join(", "), reason.to_owned()]
    };
    let rows: Vec<_> = paragraphs.map(row).collect();
    assert!(rows.len() > 8, "{rows:?}");
    check_table("reference/serve/vllm-flags.md", "## Without effect", &rows);
}

#[test]
fn the_reference_of_errors_has_every_code() {
    let page = "reference/errors.md";
    let help = Folder::new().vcr(&["--help"]).ended(0).stdout;
    let (_, codes) = help.split_once("Exit codes:\n").expect("the help has them");
    let codes = codes.lines().map_while(|line| line.trim().split_once("  "));
    let rows: Vec<_> = codes.map(|(code, meaning)| vec![code.to_owned(), meaning.to_owned()]).collect();
    check_table(page, "## Exit codes", &rows);
    let row = |kind: &&vcr_frontend::ErrorKind| {
        let status = kind.status.as_u16();
        let theirs = anthropic::error(status, "")["error"]["type"].as_str().expect("a text").to_owned();
        vec![status.to_string(), format!("`{}`", kind.name), format!("`{theirs}`"), kind.meaning.to_owned()]
    };
    let rows: Vec<_> = vcr_frontend::ERROR_KINDS.iter().map(row).collect();
    check_table(page, "## Errors of a server", &rows);
}

#[test]
fn the_reference_of_fits_has_every_term() {
    let row = |name: &str, unit: &str, meaning: &str| vec![format!("`{name}`"), unit.to_owned(), meaning.to_owned()];
    let rows: Vec<_> = TERMS.iter().map(|term| row(term.name, term.unit, term.meaning)).collect();
    check_table("reference/fit.md", "### Terms", &rows);
}

#[test]
fn the_reference_of_gates_has_every_signal() {
    let row = |info: &vcr_gate::SignalInfo| {
        let response = if info.response == vcr_gate::Response::Rollback { "rollback" } else { "hold" };
        vec![format!("`{}.{}`", info.table(), info.name), info.default.to_string(), response.to_owned()]
    };
    let rows: Vec<_> = vcr_gate::SIGNALS.iter().map(row).collect();
    check_table("reference/gate.md", "## Signals", &rows);
}

#[test]
fn the_reference_of_assertions_has_every_metric() {
    let row = |metric: Metric| {
        let info = metric.info();
        let kind = match info.kind {
            MetricKind::Trend => "trend",
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Goodput => "goodput",
        };
        let unit = match (info.kind, info.unit) {
            (MetricKind::Counter | MetricKind::Goodput, _) => "",
            (_, Unit::Time) => ", time",
            (_, Unit::Count) => ", count",
            (_, Unit::Ratio) => ", share",
            (_, Unit::Usd) => ", US dollars",
        };
        let scope = if info.scope == Scope::Run { ", whole run only" } else { "" };
        vec![format!("`{}`", info.name), format!("{kind}{unit}{scope}"), info.meaning.to_owned()]
    };
    let rows: Vec<_> = Metric::all().map(row).collect();
    check_table("reference/scenarios/assertions.md", "## Metrics", &rows);
}

/// The report's schema has all metrics of each kind, with the report's names and the same sentences.
#[test]
fn the_schema_of_the_report_has_every_metric() {
    let path = "docs/schemas/report.schema.json";
    let mut text = fs::read_to_string(root().join(path)).expect("the schema is text");
    let schema: Value = serde_json::from_str(&text).expect("the schema is JSON");
    let metrics = &schema["$defs"]["metrics"]["properties"];
    for (kind, key) in [(MetricKind::Trend, "trends"), (MetricKind::Counter, "counters"), (MetricKind::Gauge, "gauges")]
    {
        let described = metrics[key]["properties"].as_object().expect("an object of metrics");
        let mut names: Vec<&String> = described.keys().collect();
        names.sort();
        let own: Vec<Metric> = Metric::all().filter(|metric| metric.info().kind == kind).collect();
        let mut wanted: Vec<String> = own.iter().map(|metric| metric.info().report_name()).collect();
        wanted.sort();
        assert_eq!(names, wanted.iter().collect::<Vec<_>>(), "{key} of {path}");
        for metric in own {
            let name = metric.info().report_name();
            let old = described[&name]["description"].as_str().expect("a description");
            let quoted = |text: &str| format!("\"description\": {}", Value::from(text));
            let begin = text.find(&format!("\"{key}\": {{")).expect("the object of the kind");
            let entry = begin + text[begin..].find(&format!("\"{name}\": {{")).expect("the metric's entry");
            let at = entry + text[entry..].find(&quoted(old)).expect("the metric's description");
            text.replace_range(at..at + quoted(old).len(), &quoted(&description(metric)));
        }
    }
    check_file(path, &text);
}

/// The schema's description of a metric.
fn description(metric: Metric) -> String {
    let info = metric.info();
    let mut letters = info.meaning.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let unit = match info.unit {
        Unit::Time => " Milliseconds.",
        Unit::Usd => " US dollars.",
        Unit::Count | Unit::Ratio => "",
    };
    let absent =
        if matches!(metric, Metric::Counter(counter) if counter.is_occasional()) { " Absent if 0." } else { "" };
    let scope = if info.scope == Scope::Run { " Whole run only." } else { "" };
    format!("{first}{}.{unit}{absent}{scope}", letters.as_str())
}
