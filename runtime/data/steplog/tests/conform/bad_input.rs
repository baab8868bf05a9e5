//! Incomplete or invalid recordings: the error names the file, the line and the field, and nothing panics.

use vcr_steplog::conform;

use crate::recordings::{CaseCopy, group, with_text, with_value};

const SCHEDULER: &str = "random-0.33/random-1-057";
const LIVE: &str = "vllm-cpu/wire";

#[track_caller]
fn assert_refused(copy: &CaseCopy, words: &[&str]) {
    let error = copy.error();
    assert!(words.iter().all(|word| error.contains(word)), "{words:?} are not all in: {error}");
}

/// Changes line 6 of a file, and asserts that the error names this line and these words.
#[track_caller]
fn assert_line_refused(case: &str, file: &str, edit: impl Fn(&str) -> Option<String>, words: &[&str]) {
    let copy = CaseCopy::of(case);
    copy.edit_line(file, 6, |line| edit(line).unwrap_or_else(|| panic!("it cannot be changed: {line}")));
    let place = format!("{file}, line 6: ");
    assert_refused(&copy, &[&[place.as_str()], words].concat());
}

fn with(key: &'static str, value: &'static str) -> impl Fn(&str) -> Option<String> {
    move |line| with_text(line, key, |_| Some(value.to_owned()))
}

#[test]
fn lines_that_are_not_json() {
    let half = |line: &str| Some(line[..line.len() / 2].to_owned());
    for (case, file) in [
        (SCHEDULER, "steps.jsonl"),
        (SCHEDULER, "requests.jsonl"),
        (LIVE, "steps.jsonl"),
        (LIVE, "requests.jsonl"),
        (LIVE, "tokens.jsonl"),
        (LIVE, "kv_events.jsonl"),
    ] {
        assert_line_refused(case, file, half, &["not JSON: EOF while parsing"]);
        assert_line_refused(case, file, |_| Some("nonsense".to_owned()), &["not JSON: expected "]);
    }
    assert_line_refused(
        SCHEDULER,
        "steps.jsonl",
        |_| Some("[1, 2]".to_owned()),
        &["a JSON object, but this is an array"],
    );
    assert_line_refused(SCHEDULER, "steps.jsonl", |_| Some("{}".to_owned()), &["is this a step log?"]);
}

#[test]
fn settings_that_are_not_json_or_not_settings() {
    for (case, file) in [(SCHEDULER, "config.json"), (LIVE, "engine.json")] {
        let copy = CaseCopy::of(case);
        copy.write(file, "{\"config\":");
        assert_refused(&copy, &[file, "not JSON: "]);
        copy.write(file, "[]");
        assert_refused(&copy, &[file]);
    }
    let copy = CaseCopy::of(SCHEDULER);
    copy.edit_json("config.json", |file| file["config"]["spec"] = "two".into());
    assert_refused(&copy, &["config.json: `config.spec`: invalid type: string \"two\", expected u32"]);
    copy.edit_json("config.json", |file| {
        file["config"].as_object_mut().expect("an object").remove("spec");
    });
    assert_refused(&copy, &["config.json: `config`: missing field `spec`"]);
    let copy = CaseCopy::of(SCHEDULER);
    copy.edit_json("config.json", |file| file["config"]["block_size"] = 0.into());
    assert_refused(&copy, &["config.json: invalid `block_size`: expected at least 1, got 0"]);
}

#[test]
fn values_of_a_wrong_type() {
    let steps = "steps.jsonl";
    assert_line_refused(
        SCHEDULER,
        steps,
        with("wait", "\"many\""),
        &["`wait`: invalid type: string \"many\", expected u64"],
    );
    assert_line_refused(SCHEDULER, steps, with("tot", "-1"), &["`tot`: invalid value: integer `-1`, expected u32"]);
    assert_line_refused(SCHEDULER, steps, with("run", "[0.5]"), &["`run[0]`: ", "expected a request's number or name"]);
    assert_line_refused(
        SCHEDULER,
        steps,
        with("sched", "[[1,2,3]]"),
        &["`sched[0]`: invalid length 3, expected [request, "],
    );
    assert_line_refused(
        SCHEDULER,
        steps,
        with("sched", "[[1,2,3,\"q\",[]]]"),
        &["`sched[0]", "expected \"n\", \"p\" or \"r\""],
    );
    assert_line_refused(SCHEDULER, steps, with("sched", "[[1,2,3,\"n\",[],0,0]]"), &["`sched[0]", "invalid length 7"]);
    assert_line_refused(
        SCHEDULER,
        steps,
        with("sched", "[[1,2,3,\"n\",[4294967296]]]"),
        &["`sched[0][4][0]`: ", "expected u32"],
    );
    assert_line_refused(SCHEDULER, steps, with("u", "{}"), &["`u`: invalid type: map"]);
    assert_line_refused(SCHEDULER, "requests.jsonl", with("prompt", "[[1]]"), &["`prompt[0]`: invalid length 1"]);
    assert_line_refused(SCHEDULER, "requests.jsonl", with("id", "\"a\""), &["`id`: invalid type: string"]);
    assert_line_refused(LIVE, steps, with("free_blocks", "1.5"), &["`free_blocks`: invalid type: floating point"]);
    assert_line_refused(LIVE, steps, with("emitted", "[1]"), &["`emitted`: ", "an object of tokens by request"]);
    assert_line_refused(LIVE, "requests.jsonl", with("prompt", "[-4]"), &["`prompt[0]`: invalid value"]);
    assert_line_refused(LIVE, "kv_events.jsonl", with("seq", "null"), &["`seq`: invalid type: null"]);
    let event = "[0,[{\"type\":\"BlockStolen\"}],0]";
    assert_line_refused(
        LIVE,
        "kv_events.jsonl",
        with("batch", event),
        &["`batch[1][0]", "unknown variant `BlockStolen`"],
    );
}

#[test]
fn ids_that_are_there_twice() {
    let copy = CaseCopy::of(SCHEDULER);
    let second = copy.text("requests.jsonl").lines().nth(1).expect("a second request").to_owned();
    copy.edit_line("requests.jsonl", 6, |_| second);
    assert_refused(&copy, &["requests.jsonl, line 6: `id`: request 1 occurs twice"]);
    for (file, id) in [("requests.jsonl", "w1"), ("tokens.jsonl", "w1")] {
        let line = with_text(CaseCopy::of(LIVE).text(file).lines().nth(5).expect("a line"), "id", |_| {
            Some("\"w1\"".to_owned())
        });
        let copy = CaseCopy::of(LIVE);
        copy.edit_line(file, 6, |_| line.expect("it has an id"));
        assert_refused(&copy, &[file, &format!("line 6: `id`: request {id} occurs twice")]);
    }
    let copy = CaseCopy::of(LIVE);
    let second = copy.text("kv_events.jsonl").lines().nth(1).expect("a second batch").to_owned();
    copy.edit_line("kv_events.jsonl", 6, |_| second);
    assert_refused(&copy, &["kv_events.jsonl, line 6: `seq`: batch 1 occurs twice"]);
}

#[test]
fn requests_that_are_unknown_or_run_already() {
    let add = |ids: &str| {
        let copy = CaseCopy::of(SCHEDULER);
        let line = copy.edit_first("steps.jsonl", |line| with_text(line, "add", |_| Some(ids.to_owned())));
        (copy, format!("steps.jsonl, line {line}: `add`: "))
    };
    let (copy, place) = add("[0,4711]");
    assert_refused(&copy, &[&place, "request 4711 is not in `requests.jsonl`"]);
    let (copy, place) = add("[0,0]");
    assert_refused(&copy, &[&place, "request 0 is added a second time while it is in the engine", "assertion"]);
    let (copy, place) = add("[\"r0\"]");
    assert_refused(&copy, &[&place, "request \"r0\" has a name"]);

    let copy = CaseCopy::of(LIVE);
    let line = copy.edit_first("steps.jsonl", |line| {
        with_text(line, "added", |text| {
            let one = text.strip_prefix('[')?.strip_suffix(']').filter(|one| !one.is_empty())?;
            Some(format!("[{one},{one}]"))
        })
    });
    assert_refused(&copy, &[&format!("steps.jsonl, line {line}: `added`: request "), "a second time", "assertion"]);
}

/// Lengths that would fill the memory are refused before tokens are made.
#[test]
fn requests_that_cannot_run() {
    let copy = CaseCopy::of(SCHEDULER);
    copy.edit_line("requests.jsonl", 1, |line| {
        with_text(line, "prompt", |_| Some("[[1,4000000000],[2,4000000000]]".to_owned())).expect("it has a prompt")
    });
    assert_refused(&copy, &["`add`: request 0 cannot run here: the prompt leaves no room"]);
    let copy = CaseCopy::of(LIVE);
    copy.edit_line("steps.jsonl", 2, |line| line.replace("\"prompt\":200", "\"prompt\":4000000000"));
    assert_refused(&copy, &["steps.jsonl, line 2: `added`: request warm0 cannot run here"]);
    copy.edit_line("steps.jsonl", 2, |line| {
        line.replace("\"id\":\"warm0\",\"prompt\":4000000000", "\"id\":\"w0\",\"prompt\":7")
    });
    assert_refused(&copy, &["request w0 reached the scheduler with 7 prompt tokens, but `requests.jsonl` has 70"]);
}

#[test]
fn steps_in_an_impossible_order() {
    let copy = CaseCopy::of(SCHEDULER);
    copy.edit_line("steps.jsonl", 6, |line| with_text(line, "i", |_| Some("0".to_owned())).expect("it has one"));
    assert_refused(&copy, &["steps.jsonl, line 6: `i`: iteration 0 does not come after"]);

    let copy = CaseCopy::of(LIVE);
    copy.edit_line("steps.jsonl", 6, |line| with_text(line, "t", |_| Some("[9e9,9e9,1,2]".to_owned())).expect("times"));
    assert_refused(&copy, &["steps.jsonl, line 6: `t`: the result is applied before"]);

    let copy = CaseCopy::of(LIVE);
    copy.edit_line("steps.jsonl", 6, |line| with_text(line, "t", |_| Some("[1,1,9e9,9e9]".to_owned())).expect("times"));
    assert_refused(&copy, &["steps.jsonl, line 6: `t`: the schedule is made before that of an earlier step"]);

    // The result of a step comes after the next schedule, although async scheduling is off.
    let copy = CaseCopy::of(LIVE);
    copy.edit_line("steps.jsonl", 6, |line| {
        with_value(line, "t", |times| {
            times[2] = 9e9.into();
            true
        })
        .expect("times")
    });
    assert_refused(&copy, &["steps.jsonl, line 7: scheduled while as many steps were in flight as may be"]);
}

#[test]
fn recordings_that_are_empty_or_cut_off() {
    let copy = CaseCopy::of(SCHEDULER);
    copy.write("steps.jsonl", "\n");
    assert_refused(&copy, &["steps.jsonl: expected at least one schedule"]);
    let copy = CaseCopy::of(LIVE);
    let head = copy.text("steps.jsonl").lines().next().expect("a head").to_owned();
    copy.write("steps.jsonl", &head);
    assert_refused(&copy, &["steps.jsonl: expected at least one step"]);
    copy.write("steps.jsonl", "");
    assert_refused(&copy, &["steps.jsonl: the log is empty"]);
    copy.remove("steps.jsonl");
    assert_refused(&copy, &["cannot read ", "steps.jsonl"]);

    // The first lines of a recording may be right, but they are not complete.
    let copy = CaseCopy::of(SCHEDULER);
    let text = copy.text("steps.jsonl");
    copy.write("steps.jsonl", &text.lines().take(20).map(|line| format!("{line}\n")).collect::<String>());
    let report = copy.replay().expect("it can be replayed");
    assert_eq!(report.mismatch, None);
    assert!(report.notes[0].contains(" schedules are in `steps.jsonl`, but the recorder made "), "{:?}", report.notes);
}

#[test]
fn packed_recordings_that_are_cut_off() {
    for (case, file) in [(SCHEDULER, "steps.jsonl"), (SCHEDULER, "requests.jsonl"), (LIVE, "kv_events.jsonl")] {
        let bytes = std::fs::read(group(case).join(format!("{file}.gz"))).expect("it is packed");
        let copy = CaseCopy::of(case);
        copy.remove(file);
        std::fs::write(copy.folder().join(format!("{file}.gz")), &bytes[..bytes.len() * 2 / 3])
            .expect("it can be written");
        assert_refused(&copy, &[&format!("{file}.gz: the packed data is cut off; "), " whole lines were read"]);
        std::fs::write(copy.folder().join(format!("{file}.gz")), &bytes).expect("it can be written");
        assert_eq!(copy.replay().expect("it can be replayed").mismatch, None);
    }
}

#[test]
fn folders_that_are_no_recordings() {
    let folder = tempfile::tempdir().expect("there is a place for temporary files");
    let error = conform::cases(folder.path()).expect_err("it is empty").to_string();
    assert!(error.contains("no recording here") && error.contains(".jsonl.gz"), "{error}");
    let error = conform::cases(&folder.path().join("missing")).expect_err("it is missing").to_string();
    assert!(error.contains("no such file or folder"), "{error}");
    let error = conform::replay_lines(&group(LIVE)).err().expect("it is a live capture").to_string();
    assert!(error.contains("only recordings of the scheduler"), "{error}");
}
