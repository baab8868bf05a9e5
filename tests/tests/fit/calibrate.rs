//! `vcr calibrate`: gates, figures, and what it says about a prediction.

use std::fs;

use serde_json::{Value, json};
use vcr_tests::{Folder, browser};

use crate::{ENGINE, table, truth, world};

/// A folder with the true model and a load, and the arguments that compare them.
fn judged() -> (Folder, Vec<&'static str>) {
    let folder = world();
    table(&folder, "a.csv", &["-e", "count=60"]);
    (folder, vec!["calibrate", "truth.json", "a.csv", "--engine", ENGINE])
}

#[test]
fn gates_decide_the_exit_code() {
    let (folder, args) = judged();
    let with = |more: &[&str]| folder.vcr(&[&args[..], more].concat());
    let said = with(&["--gate", "ttft p50 < 1%", "--gate", "itl pearson > 0.99", "--gate", "throughput < 1%"]).ended(0);
    for words in [
        "holds a.csv: ttft p50 < 1 % (0.00 %)",
        "holds a.csv: itl pearson > 0.99 (1.000)",
        "holds a.csv: throughput < 1 %",
    ] {
        assert!(said.stdout.contains(words), "`{words}` is not in:\n{}", said.stdout);
    }
    let said = with(&["--gate", "ttft p50 < 1%", "--gate", "e2e mape > 50%"]).ended(1);
    assert!(said.stdout.contains("fails a.csv: e2e mape > 50 % (0.00 %)"), "{}", said.stdout);
    // A quantity that was not measured fails its limit.
    let said = with(&["--gate", "queue p50 < 50%"]).ended(1);
    assert!(said.stdout.contains("fails a.csv: queue p50 < 50 % (not measured)"), "{}", said.stdout);
    folder.write("gates.toml", "[gates]\n\"ttft p50\" = \"< 10%\"\n\"itl mean\" = \"< 5%\"\noutside = \"< 5%\"\n");
    let _ = with(&["--gates", "gates.toml"]).ended(0);
    let _ = with(&["--gates", "gates.toml", "--gate", "ttft p50 > 10%"]).ended(1);
}

#[test]
fn gates_that_cannot_be_read_are_refused() {
    let (folder, args) = judged();
    let with = |more: &[&str]| folder.vcr(&[&args[..], more].concat());
    let _ = with(&["--gate", "ttft p51 < 3%"]).ended(0);
    for gate in ["ttft p101 < 3%", "speed", "ttft p50 < many", "ttft p50 < nan"] {
        with(&["--gate", gate]).failed(2, &[&format!("invalid gate `{gate}`"), "such as `ttft p50 < 10%`"]);
    }
    for (text, needle) in [
        ("[gates]\n\"ttft p101\" = \"< 10%\"\n", "gates.toml: invalid gate `ttft p101 < 10%`"),
        ("limits = 1\n", "expected a table [gates]"),
        ("[gates]\n\"ttft p50\" = 10\n", "gates.toml"),
        ("[gates", "gates.toml"),
    ] {
        folder.write("gates.toml", text);
        with(&["--gates", "gates.toml"]).failed(2, &["invalid gates", needle]);
    }
    with(&["--gates", "nowhere.toml"]).failed(2, &["cannot read `nowhere.toml`"]);
}

#[test]
fn predictions_are_printed_as_json() {
    let (folder, args) = judged();
    let said = folder.vcr(&[&args[..], &["--json", "--gate", "ttft p50 < 1%", "--gate", "queue p50 < 1%"]].concat());
    let said = said.ended(1).json();
    let prediction = &said["predictions"][0];
    assert_eq!((&prediction["name"], &prediction["requests"]), (&"a.csv".into(), &60.into()));
    assert_eq!(prediction["comparisons"].as_array().map(Vec::len), Some(12), "three metrics, four statistics");
    assert_eq!((&prediction["in_sample"], &prediction["outside_fitted_range"]), (&false.into(), &0.0.into()));
    assert!(prediction["per_request"][0]["pearson"].as_f64() > Some(0.999), "{prediction:#}");
    assert!(prediction["throughput"]["measured_tokens_per_s"].as_f64() > Some(0.0), "{prediction:#}");
    let gate =
        |holds: bool, name: &str, value: Value| json!({"input": "a.csv", "gate": name, "holds": holds, "value": value});
    assert_eq!(said["gates"][1], gate(false, "queue p50 < 1 %", Value::Null));
    assert_eq!((&said["gates"][0]["gate"], &said["gates"][0]["holds"]), (&"ttft p50 < 1 %".into(), &true.into()));
}

#[test]
fn steps_outside_of_the_fitted_range_are_said() {
    let (folder, args) = judged();
    let mut narrow = truth();
    narrow["step"]["range"]["max_decode_tokens"] = json!(2);
    folder.write("narrow.json", narrow.to_string());
    let args: Vec<&str> = args.iter().map(|arg| if *arg == "truth.json" { "narrow.json" } else { arg }).collect();
    let said = folder.vcr(&[&args[..], &["--gate", "outside < 5%"]].concat()).ended(1);
    assert!(said.stdout.contains("of the step time is outside the fitted range"), "{}", said.stdout);
    assert!(!said.stdout.contains(" 0.0 % of the step time"), "{}", said.stdout);
    assert!(said.stdout.contains("fails a.csv: outside < 5 %"), "{}", said.stdout);
}

#[test]
fn figures_and_a_page_are_written_once() {
    let (folder, args) = judged();
    let gates = ["--gate", "ttft p50 < 1%", "--gate", "queue p50 < 1%", "--html", "gates.html"];
    let _ = folder.vcr(&[&args[..], &gates].concat()).ended(1);
    let page = fs::read_to_string(folder.path().join("gates.html")).expect("it was written");
    for text in ["1 of 2 gates fail", "queue p50 &lt; 1 %", "not measured"] {
        assert!(page.contains(text), "`{text}` is not in:\n{}", &page[..page.len().min(2000)]);
    }
    let out = ["--figures", "figures", "--html", "page.html"];
    let _ = folder.vcr(&[&args[..], &out].concat()).ended(0);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder.path().join("figures")).expect("it was written") {
        let path = entry.expect("it can be listed").path();
        let svg = fs::read_to_string(&path).expect("it is text");
        assert!(svg.contains("<svg") && (svg.contains("<polyline") || svg.contains("<circle")), "{}", path.display());
        names.push(path.file_name().expect("a file").to_string_lossy().into_owned());
    }
    for name in ["0-cdf-ttft.svg", "0-qq-e2e.svg", "0-survival-itl.svg", "0-in-flight.svg", "0-error-by-prompt.svg"] {
        assert!(names.iter().any(|known| known == name), "no {name} among {names:?}");
    }
    let page = fs::read_to_string(folder.path().join("page.html")).expect("it was written");
    assert!(page.contains("<h2>Errors</h2>") && page.contains(">a.csv</th>"), "{page}");
    assert!(!page.contains(&folder.path().display().to_string()), "names are relative");
    if let Some(browser) = browser() {
        let seen = browser.page(&folder.path().join("page.html"));
        assert_eq!(seen["tiles"][0][0], "Outside the fitted range");
        assert!(seen["tooltips"]["cdf-ttft-0"].as_str().is_some_and(|text| text.contains("measured: ")), "{seen}");
    }
    // If one file may not be replaced, nothing is written.
    folder.vcr(&[&args[..], &["--html", "page.html"]].concat()).failed(2, &["cannot write `page.html`", "--force"]);
    let other = ["--figures", "figures", "--html", "other.html"];
    folder.vcr(&[&args[..], &other].concat()).failed(2, &["figures", "--force"]);
    assert!(!folder.path().join("other.html").exists());
    let _ = folder.vcr(&[&args[..], &out, &["--force"]].concat()).ended(0);
    // Inputs are never overwritten, even with `--force`.
    folder.vcr(&[&args[..], &["--html", "a.csv", "--force"]].concat()).failed(2, &["a.csv"]);
}

#[test]
fn what_is_fitted_and_what_is_predicted_are_given_in_one_command() {
    let folder = world();
    fs::create_dir(folder.path().join("loads")).expect("the folder is writable");
    for (name, rate) in [("loads/a.csv", "rate=20"), ("loads/b.csv", "rate=26")] {
        table(&folder, name, &["-e", "count=100", "-e", rate]);
    }
    let engine = ["--engine", ENGINE];
    let fit = ["calibrate", "--fit", "loads/a.csv", "--predict", "loads/b.csv", "loads/a.csv"];
    let said = folder.vcr(&[&fit[..], &engine, &["--json"]].concat()).ended(0).json();
    let in_sample: Vec<&Value> =
        said["predictions"].as_array().expect("an array").iter().map(|each| &each["in_sample"]).collect();
    assert_eq!(in_sample, [false, true]);
    let one_out = ["calibrate", "--leave-one-out", "loads", "--gate", "itl mean < 10%"];
    let said = folder.vcr(&[&one_out[..], &engine].concat()).ended(0);
    assert!(said.stdout.contains("loads/a.csv: 100 requests") && said.stdout.contains("loads/b.csv: 100 requests"));
    assert!(!said.stdout.contains("in sample"), "{}", said.stdout);
    fs::remove_file(folder.path().join("loads/b.csv")).expect("it is there");
    folder.vcr(&[&one_out[..], &engine].concat()).failed(2, &["1 input in `loads`: expected at least 2"]);
    folder.vcr(&["calibrate", "truth.json"]).failed(2, &["a model file and at least one input are needed"]);
    folder.vcr(&["calibrate", "--predict", "loads/a.csv"]).failed(2, &["--fit"]);
    folder
        .vcr(&["calibrate", "--fit", "loads/a.csv", "--predict", "loads/a.csv"])
        .failed(2, &["`--engine` is missing"]);
}

#[test]
fn recorded_steps_are_compared() {
    let folder = world();
    let _ = folder.run(&["--quiet", "--out", "run", "--files", "requests,steps", "-e", "count=100"]).ended(0);
    let args = ["calibrate", "truth.json", "run/requests.jsonl", "--engine", ENGINE, "--steps", "run/steps.jsonl"];
    let said = folder.vcr(&args).ended(0);
    for words in [" steps", " step p99 ms", " decode tokens a step", " batch size over time: r 1.000"] {
        assert!(said.stdout.contains(words), "`{words}` is not in:\n{}", said.stdout);
    }
    let steps = folder.vcr(&[&args[..], &["--json"]].concat()).ended(0).json()["predictions"][0]["steps"].clone();
    assert_eq!(steps["measured"]["steps"], steps["simulated"]["steps"], "{steps:#}");
    let both = |name: &str| ["measured", "simulated"].map(|side| steps[side][name].as_f64().expect("a number"));
    for name in ["mean_ms", "p99_ms", "decode_tokens", "prefill_tokens", "prefill_share"] {
        let [measured, simulated] = both(name);
        assert!(measured > 0.0 && (simulated / measured - 1.0).abs() < 0.01, "{name}: {measured}, {simulated}");
    }
    let two = [&args[..], &["--steps", "run/steps.jsonl"]].concat();
    folder.vcr(&two).failed(2, &["2 step logs for 1 inputs: expected one for each"]);
}

/// Doubling the load on both sides has the same effect on both; a wrong model predicts another effect.
#[test]
fn the_effect_of_a_change_is_compared() {
    let folder = world();
    table(&folder, "slow.csv", &["-e", "count=200", "-e", "rate=10"]);
    table(&folder, "fast.csv", &["-e", "count=200", "-e", "rate=40"]);
    let args = ["calibrate", "truth.json", "slow.csv", "fast.csv", "--engine", ENGINE, "--effect"];
    let said = folder.vcr(&args).ended(0);
    assert!(said.stdout.contains("effect of the change from slow.csv to fast.csv"), "{}", said.stdout);
    let effect = |args: &[&str], name: (&str, &str)| {
        let said = folder.vcr(&[args, &["--json", "--quiet"]].concat()).ended(0).json();
        let all = said["effect"].as_array().expect("effects").clone();
        let one = all.iter().find(|one| (&one["metric"], &one["statistic"]) == (&name.0.into(), &name.1.into()));
        ["measured", "simulated"].map(|side| one.expect("the effect")[side].as_f64().expect("a share"))
    };
    let [measured, simulated] = effect(&args, ("itl", "mean"));
    assert!(measured > 0.1 && (measured - simulated).abs() < 0.01, "{measured} {simulated}");
    let mut other = truth();
    other["step"]["coefficients"]["token"] = json!(0.0);
    other["step"]["coefficients"]["step"] = json!(2.0e7);
    folder.write("other.json", other.to_string());
    let args = args.map(|word| if word == "truth.json" { "other.json" } else { word });
    let [still, simulated] = effect(&args, ("itl", "mean"));
    assert_eq!(still, measured);
    assert!(simulated < measured * 0.8, "{measured} {simulated}");
    folder
        .vcr(&["calibrate", "truth.json", "slow.csv", "--engine", ENGINE, "--effect"])
        .failed(2, &["--effect with 1 predicted input: expected two", "the input before the change"]);
}
