//! `vcr mirror` and `vcr gate`.

use std::fs;

use serde_json::{Value, json};
use vcr_tests::{Folder, Said, browser, frontend_model, vllm_rs};

/// Observations of requests; `change` modifies each by its index.
fn observations(count: usize, change: impl Fn(usize, &mut Value)) -> String {
    let one = |index: usize| {
        let mut line = json!({"observation": 1, "request_id": format!("r{index}"), "ok": true,
            "latency_ns": 200_000_000 + index, "ttft_ns": 50_000_000, "token_ids": [index, 1, 2], "tenant": "a",
            "backend": "vllm", "backend_version": "0.27.1"});
        change(index, &mut line);
        format!("{line}\n")
    };
    (0..count).map(one).collect()
}

fn gate(folder: &Folder, more: &[&str]) -> Said {
    folder.vcr(&[&["gate", "--baseline", "before.jsonl", "--candidate", "after.jsonl"], more].concat())
}

/// A folder with the observations of two systems.
fn sides(change: impl Fn(usize, &mut Value)) -> Folder {
    let folder = Folder::new();
    folder.write("before.jsonl", observations(300, |_, _| {}));
    folder.write("after.jsonl", observations(300, change));
    folder
}

#[test]
fn the_exit_code_is_the_decision() {
    let same = sides(|_, line| line["backend_version"] = "0.33.0".into());
    let said = gate(&same, &[]).ended(0).stdout;
    let promoted = "promote: every observed signal keeps to its limit; not observed: memory_pressure, token_gap_p95";
    assert!(said.contains(promoted), "{said}");
    assert!(said.contains("300 × backend=vllm backend_version=0.27.1->0.33.0"), "{said}");

    let slow = sides(|_, line| line["ttft_ns"] = 60_000_000.into());
    let said = gate(&slow, &[]).ended(10).stdout;
    assert!(said.contains("hold: ttft_p95 of all: from 50 ms to 60 ms, +20.00 %, at most +5.00 % allowed"), "{said}");
    assert!(said.contains("owner scheduling"), "{said}");

    let different = sides(|index, line| {
        if index == 7 {
            line["token_ids"] = json!([7, 1, 3]);
        }
    });
    let said = gate(&different, &[]).ended(20).stdout;
    for part in [
        "rollback: output_mismatch of all: 0.33 %",
        "r7",
        "first difference of token_ids: token 2",
        "- 7 1 2",
        "+ 7 1 3",
    ] {
        assert!(said.contains(part), "`{part}` is not in:\n{said}");
    }
}

#[test]
fn files_of_a_decision_agree() {
    let folder = sides(|index, line| {
        if index < 40 {
            line["ok"] = false.into();
            line["error"] = "<timeout>".into();
        }
    });
    let said = gate(&folder, &["--json", "--out", "gate"]).ended(20);
    let read = |name: &str| fs::read_to_string(folder.path().join("gate").join(name)).expect("it was written");
    let report: Value = serde_json::from_str(&read("gate.json")).expect("it is JSON");
    assert_eq!(report, said.json());
    assert_eq!((&report["decision"], &report["errors"]["<timeout>"]), (&"rollback".into(), &json!([0, 40])));
    let signal = &report["segments"][0]["signals"][2];
    assert_eq!((&signal["signal"], &signal["verdict"]), (&"error_rate_increase".into(), &"failed".into()));
    let page = read("gate.html");
    assert!(page.contains("&lt;timeout&gt;") && !page.contains("<timeout>"), "{page}");
    if let Some(browser) = browser() {
        let seen = browser.page(&folder.path().join("gate/gate.html"));
        assert!(seen["banner"][1].as_str().is_some_and(|text| text.starts_with("rollback: error_rate_increase")));
        assert_eq!((&seen["tiles"][0][0], &seen["tiles"][0][1]), (&"error rate increase".into(), &"13.33 %".into()));
        let tooltip = seen["tooltips"]["ttft"].as_str().unwrap_or_default();
        assert!(tooltip.contains("baseline: ") && tooltip.contains("candidate: "), "{tooltip}");
    }
    assert!(read("junit.xml").contains("<failure message=\"observed from 0 % to 13.33 %"), "{}", read("junit.xml"));
    assert!(read("summary.md").starts_with("### ❌ gate default: "), "{}", read("summary.md"));
    // The folder of an earlier gate may be replaced; inputs may not.
    let _ = gate(&folder, &["--out", "gate", "--threads", "1"]).ended(20);
    assert_eq!(read("gate.html"), page);
    folder.write("other.txt", "mine");
    fs::create_dir(folder.path().join("mine")).expect("the folder is writable");
    folder.write("mine/gate.json", "mine");
    gate(&folder, &["--out", "mine"]).failed(2, &["gate.json"]);
}

#[test]
fn a_policy_decides_and_is_printed() {
    let folder = sides(|_, line| line["ttft_ns"] = 60_000_000.into());
    let printed = folder.vcr(&["gate", "--print-policy"]).ended(0).stdout;
    assert!(printed.contains("\n# 5 % is below what users notice"), "{printed}");
    folder.write("policy.toml", printed.replace("ttft_p95 = 0.05", "ttft_p95 = 0.25"));
    let _ = gate(&folder, &["--policy", "policy.toml"]).ended(0);
    folder.write("policy.toml", "policy = 1\n[limits]\nttft = 3\n");
    gate(&folder, &["--policy", "policy.toml"])
        .failed(2, &["`policy.toml`, field `limits.ttft`", "unknown signal `ttft`"]);
    gate(&folder, &["--policy", "none.toml"]).failed(2, &["cannot read `none.toml`"]);
    gate(&folder, &["--alpha", "0.7"]).failed(2, &["invalid alpha 0.7"]);
    folder.vcr(&["gate", "--baseline", "before.jsonl"]).failed(2, &["--candidate"]);
    gate(&folder, &["--join", "name"]).failed(2, &["expected auto, id or content"]);
    gate(&folder, &["--join", "content"]).failed(2, &["no observation of the baseline has `content`"]);
}

#[test]
fn bad_observations_are_refused_by_line() {
    let folder = sides(|_, _| {});
    folder.write(
        "after.jsonl",
        observations(3, |index, line| {
            if index == 1 {
                line["ttft_ns"] = (-4).into();
            }
        }),
    );
    gate(&folder, &[]).failed(2, &["`after.jsonl`, line 2, field `ttft_ns`", "-4", "a whole number of at least 0"]);
    folder.write("after.jsonl", observations(3, |index, line| line["request_id"] = format!("r{}", index / 2).into()));
    gate(&folder, &[]).failed(2, &["line 2, field `request_id`", "observed twice"]);
    folder.write("after.jsonl", "");
    gate(&folder, &[]).failed(2, &["`after.jsonl` holds no observation"]);
    gate(&folder, &["--baseline", "none.jsonl"]).failed(2, &["cannot read `none.jsonl`"]);
}

/// Mirrors a file and returns the observations.
fn mirrored(folder: &Folder, name: &str, text: &str, more: &[&str]) -> Vec<Value> {
    folder.write(name, text);
    let said = folder.vcr(&[&["mirror", name, "-o", "-"], more].concat()).ended(0);
    said.stdout.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

#[test]
fn streams_have_events() {
    let chunk =
        |id: &str, at_ms: f64, data: Value| format!("{}\n", json!({"request_id": id, "at_ms": at_ms, "data": data}));
    let text = |text: &str| json!({"model": "m", "choices": [{"index": 0, "delta": {"content": text}}]});
    let lines = [
        chunk("a", 12.5, json!({"choices": [{"index": 0, "delta": {"role": "assistant"}}]})),
        chunk("b", 3.0, text("x")),
        chunk("a", 20.0, text("Hel")),
        chunk("a", 30.0, json!(text("lo").to_string())),
        chunk("a", 31.0, json!("[DONE]")),
        chunk("b", 9.0, json!({"error": {"type": "overloaded"}})),
        format!("{}\n", json!({"request_id": "c", "route": "east", "chunks": [{"at_s": 0.5, "data": text("z")}]})),
    ];
    let all = mirrored(&Folder::new(), "chunks.jsonl", &lines.concat(), &["--set", "backend=vllm"]);
    assert_eq!(all.len(), 3);
    assert_eq!(
        (&all[0]["text"], &all[0]["event_ns"], &all[0]["latency_ns"]),
        (&"Hello".into(), &json!([20_000_000, 30_000_000]), &31_000_000.into())
    );
    assert_eq!((&all[0]["model"], &all[0]["backend"], &all[0]["ok"]), (&"m".into(), &"vllm".into(), &true.into()));
    // A stream without [DONE] was cut off.
    assert_eq!(
        (&all[1]["request_id"], &all[1]["error"], &all[1]["route"]),
        (&"c".into(), &"cut_stream".into(), &"east".into())
    );
    assert_eq!((&all[2]["request_id"], &all[2]["error"]), (&"b".into(), &"overloaded".into()));
    let folder = Folder::new();
    folder.write("back.jsonl", [chunk("a", 5.0, text("x")), chunk("a", 4.0, text("y"))].concat());
    folder.vcr(&["mirror", "back.jsonl", "-o", "-"]).failed(2, &["`back.jsonl`, line 2, field `at_ms`", "goes back"]);
}

/// Streams in the formats of `curl -iN`, `curl -N` and `curl -N | ts -s %.s`.
#[test]
fn streams_are_read_as_servers_send_them() {
    let chunk = |id: &str, text: &str| {
        format!("data: {}\n", json!({"id": id, "model": "m", "choices": [{"index": 0, "delta": {"content": text}}]}))
    };
    let done = "data: [DONE]\n\n";
    let plain =
        [&chunk("a", "Hel"), "\n", &chunk("b", "x"), "\n", &chunk("a", "lo"), "\n", done, &chunk("b", "y"), done];
    let all = mirrored(&Folder::new(), "plain.txt", &plain.concat(), &[]);
    assert_eq!((&all[0]["request_id"], &all[0]["text"]), (&"a".into(), &"Hello".into()));
    assert_eq!((&all[1]["request_id"], &all[1]["text"]), (&"b".into(), &"xy".into()));
    assert_eq!((all[0].get("latency_ns"), all[0].get("event_ns")), (None, None), "there are no times");

    let headers = |status: &str, id: &str| format!("HTTP/1.1 {status}\r\nX-Request-Id: {id}\r\ndate: now\r\n\r\n");
    let error = format!("{}\n", json!({"error": {"type": "BadRequestError"}}));
    let answers = [
        &headers("200 OK", "r1"),
        &chunk("cmpl-1", "x"),
        done,
        &headers("400 Bad Request", "r2"),
        &error,
        &headers("503 Service Unavailable", "r3"),
        &headers("200 OK", "r4"),
        ": ping\nevent: response.created\n",
        "data: {\"type\": \"response.created\", \"response\": {\"id\": \"resp\", \"error\": null}}\n",
        "data: {\"type\": \"response.output_text.delta\", \"delta\": \"hi\"}\n",
        "data: {\"type\": \"response.completed\", \"response\": {\"id\": \"resp\", \"error\": null}}\n",
        &headers("200 OK", "r5"),
        &chunk("cmpl-5", "cut"),
    ];
    let all = mirrored(&Folder::new(), "headers.txt", &answers.concat(), &[]);
    let ids: Vec<&Value> = all.iter().map(|line| &line["request_id"]).collect();
    assert_eq!(ids, ["r1", "r2", "r3", "r4", "r5"]);
    let errors: Vec<Option<&str>> = all.iter().map(|line| line.get("error").and_then(Value::as_str)).collect();
    assert_eq!(errors, [None, Some("BadRequestError"), Some("http 503"), None, Some("cut_stream")]);
    assert_eq!((&all[0]["text"], &all[3]["text"]), (&"x".into(), &"hi".into()));

    // An answer that cannot be read is a failed one; the others are compared.
    let garbled = ["data: {\"choices\": [\n", "data: [DONE]\n", "{\"id\": \n", "data: x\nmore\n"];
    let garbled = garbled.iter().enumerate().map(|(index, body)| headers("200 OK", &format!("g{index}")) + *body);
    let last = [&headers("200 OK", "last"), &chunk("c", "x"), done].concat();
    let text = garbled.chain([last]).collect::<String>();
    let folder = Folder::new();
    folder.write("garbled.txt", text);
    let said = folder.vcr(&["mirror", "garbled.txt", "-o", "-"]).ended(0);
    let all: Vec<Value> = said.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let errors: Vec<Option<&str>> = all.iter().map(|line| line.get("error").and_then(Value::as_str)).collect();
    assert_eq!(errors, [Some("unreadable"), Some("unreadable"), Some("unreadable"), Some("unreadable"), None]);
    assert_eq!((&all[0]["request_id"], &all[4]["request_id"]), (&"g0".into(), &"last".into()));
    let warning = "warning: garbled.txt: 4 answers cannot be read and count as failed";
    assert!(said.stderr.contains(warning), "{}", said.stderr);
    let gate = folder.vcr(&["gate", "--baseline", "garbled.txt", "--candidate", "garbled.txt"]);
    assert_eq!(gate.stderr.matches(warning).count(), 2, "{}", gate.stderr);

    let timed = format!("0.250000 {}0.250100\n0.500000 {}0.510000 {done}", chunk("a", "x"), chunk("a", "y"));
    let all = mirrored(&Folder::new(), "timed.txt", &timed, &[]);
    assert_eq!((&all[0]["event_ns"], &all[0]["latency_ns"]), (&json!([250_000_000, 500_000_000]), &510_000_000.into()));

    let folder = Folder::new();
    let two = |second: &str| format!("0.5 {}1.5 {done}{second} {}9 {done}", chunk("a", "x"), chunk("b", "y"));
    for (second, is_doubtful) in [("2", true), ("0.5", false)] {
        folder.write("two.txt", two(second));
        let said = folder.vcr(&["mirror", "two.txt", "-o", "-"]).ended(0).stderr;
        assert_eq!(said.contains("warning: two.txt: the times of 2 answers never go back"), is_doubtful, "{said}");
        let said = folder.vcr(&["gate", "--baseline", "two.txt", "--candidate", "two.txt"]).stderr;
        assert_eq!(
            said.matches("the times of 2 answers never go back").count(),
            if is_doubtful { 2 } else { 0 },
            "{said}"
        );
    }
    for (text, needles) in [
        (format!("{}0.5 {}", chunk("a", "x"), chunk("a", "y")), &["line 2, field `at_ms`", "others have none"][..]),
        (done.to_owned(), &["line 1, field `data`", "there is no chunk before it"]),
        ("data: {\n".to_owned(), &["line 1, field `data`", "invalid event"]),
        (format!("{}nothing\n", chunk("a", "x")), &["line 2", "expected `data: ...`"]),
    ] {
        folder.write("bad.txt", text);
        folder.vcr(&["mirror", "bad.txt", "-o", "-"]).failed(2, needles);
    }
}

#[test]
fn logs_of_servers_are_observations() {
    let vllm = [
        "(APIServer pid=7) INFO 11-25 15:40:01 [api_server.py:9] Starting vLLM\n",
        "(APIServer pid=7) INFO 11-25 15:40:02 [logger.py:40] Received request cmpl-1: prompt: 'Generated', params: x\n",
        "(APIServer pid=7) INFO 11-25 15:40:02 [logger.py:70] Generated response cmpl-1 (streaming delta): output: 'it', \
         output_token_ids: [5], finish_reason: None\n",
        "(APIServer pid=7) INFO 11-25 15:40:03 [logger.py:70] Generated response cmpl-2: output: \"it's\", \
         output_token_ids: [7, 8], finish_reason: length\n",
        "(APIServer pid=7) INFO 11-25 15:40:03 [logger.py:70] Generated response cmpl-1 (streaming delta): output: '\\n', \
         output_token_ids: [6], finish_reason: stop\n",
        "(APIServer pid=7) INFO 11-25 15:40:03 [logger.py:70] Generated response cmpl-1 (streaming complete): output: \
         'it\\n', output_token_ids: None, finish_reason: streaming_complete\n",
        "(APIServer pid=7) INFO 11-25 15:40:04 [logger.py:70] Generated response cmpl-3: output: '', finish_reason: abort\n",
    ];
    let folder = Folder::new();
    let all = mirrored(&folder, "vllm.log", &vllm.concat(), &[]);
    let part = |line: &Value| (line["request_id"].clone(), line["text"].clone(), line["token_ids"].clone());
    assert_eq!(part(&all[0]), ("cmpl-2".into(), "it's".into(), json!([7, 8])));
    assert_eq!(part(&all[1]), ("cmpl-1".into(), "it\n".into(), json!([5, 6])));
    assert_eq!((&all[2]["error"], &all[2]["backend"]), (&"abort".into(), &"vllm".into()));
    assert_eq!(all[0].get("latency_ns"), None, "whole seconds are not a latency");

    let printed = "[2026-01-02 03:04:05] Receive: obj=GenerateReqInput(text='a, out={')\n\
                   [2026-01-02 03:04:06] Finish: obj=GenerateReqInput(text='a, out={'), out={'text': 'b', 'output_ids': [3], \
                   'meta_info': {'id': 's', 'finish_reason': {'type': 'stop', 'matched': None}, 'e2e_latency': 0.25}}\n";
    let event = |event: &str, out: Value| {
        format!("{}\n", json!({"timestamp": "t", "event": event, "rid": "j", "obj": {"text": "a"}, "out": out}))
    };
    let out = json!({"text": "b", "output_ids": [3], "meta_info": {"e2e_latency": 0.25}});
    let json = [event("request.received", json!(null)), event("request.finished", out)].concat();
    for (name, text, id) in [("sglang.log", printed, "s"), ("json.log", json.as_str(), "j")] {
        let all = mirrored(&folder, name, text, &[]);
        assert_eq!(part(&all[0]), (id.into(), "b".into(), json!([3])), "{name}");
        assert_eq!((&all[0]["latency_ns"], &all[0]["backend"]), (&250_000_000.into(), &"sglang".into()), "{name}");
    }
    let short = event("request.finished", json!({"output_ids": [1, "...", 2], "meta_info": {}}));
    for (text, needles) in [
        (short.as_str(), &["line 1, field `output_ids`", "--log-requests-level 3"][..]),
        ("x Finish: obj=A(), out={'text': 'a' ... 'b'}\n", &["line 1, field `out`", "--log-requests-level 3"]),
        ("x Generated response a: output: b\n", &["line 1, field `output`", "invalid line of vLLM's log"]),
        (vllm[0], &["cannot tell the format"]),
        (vllm[1], &["holds no observation"]),
    ] {
        folder.write("bad.log", text);
        folder.vcr(&["mirror", "bad.log", "-o", "-"]).failed(2, needles);
    }
}

#[test]
fn responses_of_servers_are_observations() {
    let lines = [
        json!({"text": "hi", "output_ids": [5, 6], "meta_info": {"id": "s", "e2e_latency": 0.25, "completion_tokens": 2,
            "finish_reason": {"type": "stop"}, "output_token_logprobs": [[-0.5, 5, null], [-1.5, 6, null]]}}),
        json!({"latency_ms": 7, "accelerator": "h100", "response": {"request_id": "v", "choices": [{"index": 0, "token_ids": [1, 2]}]}}),
        json!({"request_id": "c", "latency_ms": 8.5, "ttft_ms": 2, "response": {"id": "cmpl", "model": "m",
            "choices": [{"message": {"content": "yes"}}]}}),
        json!({"request_id": "e", "latency_s": 1, "response": {"model": "m", "data": [{"embedding": [0.5, -1]}]}}),
        json!({"request_id": "f", "latency_ms": 1, "status": 503, "response": null}),
        json!({"request_id": "g", "latency_ms": 1, "response": {"error": {"code": 400, "message": "no"}}}),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let all = mirrored(&Folder::new(), "responses.jsonl", &text, &[]);
    let ids: Vec<&Value> = all.iter().map(|line| &line["request_id"]).collect();
    assert_eq!(ids, ["s", "v", "c", "e", "f", "g"]);
    assert_eq!(
        (&all[0]["backend"], &all[0]["latency_ns"], &all[0]["vector"]),
        (&"sglang".into(), &250_000_000.into(), &json!([-0.5, -1.5]))
    );
    assert_eq!((&all[1]["token_ids"], &all[1]["accelerator"]), (&json!([1, 2]), &"h100".into()));
    assert_eq!((&all[2]["text"], &all[2]["ttft_ns"]), (&"yes".into(), &2_000_000.into()));
    assert_eq!(all[3]["vector"], json!([0.5, -1.0]));
    assert_eq!((&all[4]["error"], &all[5]["error"], &all[5]["ok"]), (&"http 503".into(), &"400".into(), &false.into()));
    let untimed = lines[1].to_string().replace("\"latency_ms\":7,", "");
    let all = mirrored(&Folder::new(), "untimed.jsonl", &untimed, &["--format", "responses"]);
    assert_eq!((&all[0]["token_ids"], all[0].get("latency_ns")), (&json!([1, 2]), None));
}

#[test]
fn tables_have_columns_of_any_name() {
    let columns = ["--column", "request_id=id", "--column", "latency_s=total", "--column", "text=answer"];
    let csv = "id,total,answer,status,token_ids\na,0.5,\"hello, you\",200,\nb,1,,500,3 4\n";
    let all = mirrored(&Folder::new(), "table.csv", csv, &columns);
    assert_eq!((&all[0]["text"], &all[0]["latency_ns"]), (&"hello, you".into(), &500_000_000.into()));
    assert_eq!((&all[1]["ok"], &all[1]["error"], &all[1]["token_ids"]), (&false.into(), &"500".into(), &json!([3, 4])));
    let jsonl = r#"{"request_id":"a","latency_us":5,"fingerprint":"f","event_ms":[0.001,0.002],"kv_usage":0.5}"#;
    let all = mirrored(&Folder::new(), "table.jsonl", jsonl, &[]);
    assert_eq!((&all[0]["event_ns"], &all[0]["kv_usage"]), (&json!([1000, 2000]), &0.5.into()));
    let folder = Folder::new();
    for (csv, needles) in [
        ("request_id,latency_ms,text\na,-1,x\n", &["row 1, field `latency_ms`", "invalid time -1"][..]),
        ("request_id,text,backend\na,x,vllm\n", &["row 1, field `latency_ms`", "the time is missing"]),
        ("request_id,latency_ms,text\na,nan,x\n", &["row 1, field `latency_ms`", "expected a finite one"]),
        ("request_id,latency_ms,text\na,1,\n", &["row 1", "output material", "--lengths"]),
        ("request_id,latency_ms,vector\na,1,1 x\n", &["row 1, field `vector`"]),
        ("request_id,latency_ms,text\na,1\n", &["row 1"]),
    ] {
        folder.write("bad.csv", csv);
        folder.vcr(&["mirror", "bad.csv", "-o", "-"]).failed(2, needles);
    }
    folder.vcr(&["mirror", "x", "-o", "-", "--column", "speed=v"]).failed(2, &["unknown column `speed`"]);
    folder.vcr(&["mirror", "x", "-o", "-", "--set", "colour=red"]).failed(2, &["unknown label `colour`"]);
}

#[test]
fn files_of_other_tools_are_observations() {
    let record = json!({"metadata": {"session_num": 4, "turn_index": 1, "x_request_id": "u", "request_start_ns": 5, "request_end_ns": 9},
        "metrics": {"request_latency": {"value": 3.5, "unit": "ms"}, "time_to_first_token": {"value": 1, "unit": "ms"},
        "output_sequence_length": {"value": 12, "unit": "tokens"}}, "error": null});
    let folder = Folder::new();
    let all = mirrored(&folder, "profile_export.jsonl", &record.to_string(), &["--lengths"]);
    assert_eq!(
        (&all[0]["content"], &all[0]["fingerprint"], &all[0]["ttft_ns"]),
        (&"4/1".into(), &"length 12".into(), &1_000_000.into())
    );
    folder.vcr(&["mirror", "profile_export.jsonl", "-o", "-"]).failed(2, &["line 1", "output material", "--lengths"]);
    let request = json!({"request_id": "a", "prompt_tokens": 5, "output_tokens": 3, "time_to_first_token_ms": 1.5,
        "inter_token_latency_ms": 250, "request_start_time": 1_700_000_001.25, "request_latency": 0.5, "output": "yes"});
    let benchmark = json!({"requests": {"successful": [request]}, "config": {"strategy": {"type_": "poisson"}}});
    let report = json!({"metadata": {"guidellm_version": "0.6.1"}, "args": {"model": "m"}, "benchmarks": [benchmark]});
    let all = mirrored(&folder, "report.json", &report.to_string(), &[]);
    assert_eq!(
        (&all[0]["text"], &all[0]["model"], &all[0]["mean_gap_ns"]),
        (&"yes".into(), &"m".into(), &250_000_000.into())
    );
    assert_eq!(all[0]["latency_ns"], 500_000_000);
    let attribute = |name: &str, value: Value| json!({"key": name, "value": value});
    let attributes = [
        attribute("gen_ai.usage.input_tokens", json!({"intValue": 12})),
        attribute("gen_ai.usage.output_tokens", json!({"intValue": 5})),
        attribute("gen_ai.completion", json!({"stringValue": "answer"})),
    ];
    let span = json!({"traceId": "0a", "spanId": "0b", "name": "llm_request", "attributes": attributes,
        "startTimeUnixNano": "1000000000", "endTimeUnixNano": "2000000000"});
    let all = mirrored(
        &folder,
        "spans.json",
        &json!({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).to_string(),
        &[],
    );
    assert_eq!((&all[0]["text"], &all[0]["latency_ns"]), (&"answer".into(), &1_000_000_000.into()));
    // Captures do not contain texts.
    let _ = folder.vcr(&["inspect", "convert", "spans.json", "-o", "capture.jsonl"]).ended(0);
    assert!(!fs::read_to_string(folder.path().join("capture.jsonl")).expect("it was written").contains("answer"));
    folder.write("what.bin", "nothing");
    folder.vcr(&["mirror", "what.bin", "-o", "-"]).failed(2, &["`what.bin`", "cannot tell the format"]);
}

/// Two runs of one workload; the second has slower steps.
const RUNS: &str = r#"
let pool = |step| cluster(#{ engines: pool(#{ engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: step }) }) });
let load = poisson(#{ rate: "20/s", count: 250, prompt_tokens: 64, output_tokens: 8 });
run(#{ name: "old", cluster: pool.call("10ms"), workloads: [load] });
run(#{ name: "new", cluster: pool.call("12ms"), workloads: [load] });
"#;

#[test]
fn runs_and_captures_are_gated_directly() {
    let folder = Folder::with(RUNS);
    let _ = folder.run(&["--out", "out", "--files", "report,requests", "-q"]).ended(0);
    let gate = |before: &str, after: &str, more: &[&str]| {
        folder.vcr(&[&["gate", "--baseline", before, "--candidate", after, "--json"], more].concat())
    };
    let report = gate("out#old", "out#old", &[]).ended(0).json();
    assert_eq!((&report["totals"]["matched"], &report["totals"]["equal"]), (&250.into(), &250.into()));
    assert_eq!(report["inputs"]["baseline"][0]["format"], "requests");
    let report = gate("out#old", "out#new", &[]).ended(10).json();
    assert!(report["reason"].as_str().is_some_and(|reason| reason.starts_with("latency_p95 of all")), "{report:#}");
    gate("out", "out#new", &[]).failed(2, &["field `of`", "several runs", "PATH#RUN"]);
    gate("out#older", "out#new", &[]).failed(2, &["unknown run `older`: expected old, new"]);

    let _ = folder.vcr(&["inspect", "gen-demo", "-o", "real.jsonl", "--requests", "240"]).ended(0);
    gate("real.jsonl", "real.jsonl", &[]).failed(2, &["`real.jsonl`, request 1", "--lengths"]);
    let report = gate("real.jsonl", "real.jsonl", &["--lengths", "--set-candidate", "scheduler=fcfs"]).json();
    assert_eq!((&report["decision"], &report["totals"]["matched"]), (&"promote".into(), &240.into()), "{report:#}");
    assert_eq!(report["rates"]["scheduler"], json!([0.0, 1.0]));
    // With the mirror in between, the result is the same.
    for (run, file) in [("out#old", "old.jsonl"), ("out#new", "new.jsonl")] {
        let _ = folder.vcr(&["mirror", run, "-o", file]).ended(0);
    }
    folder.vcr(&["mirror", "out#old", "-o", "old.jsonl"]).failed(2, &["old.jsonl", "--force"]);
    let direct = gate("out#old", "out#new", &[]).ended(10).json();
    let mirrored = gate("old.jsonl", "new.jsonl", &[]).ended(10).json();
    assert_eq!(direct["segments"], mirrored["segments"]);
}

/// Runs of a scenario, one of which is slower.
const JUDGED: &str = r#"
let c = |step| cluster(#{ engines: pool(#{ engine: engine(#{}), latency: fixed(#{ step: step }) }) });
let load = constant(#{ rate: "10/s", count: 300, prompt_tokens: 100, output_tokens: 10 });
let result = |name, step| run(#{ name: name, cluster: c.call(step), workloads: [load] });
let before = result.call("before", "10ms");
let after = result.call("after", "12ms");
"#;

fn decided(script: &str) -> Said {
    Folder::with(&format!("{JUDGED}{script}")).run(&["--json"])
}

#[test]
fn scripts_ask_a_gate() {
    let said = decided(
        r#"
        let same = gate(before, before);
        expect(same, "decision == promote");
        let slower = gate(before, after);
        expect(slower, "decision != rollback");
        check("it names the signals", slower.failed.contains("token_gap_p95"), `${slower.failed}`);
        check("and the reason", slower.decision == "hold" && slower.reason.contains("_p95"), slower.reason);
        let all = #{ latency_p95: 0.5, ttft_p95: false, token_gap_p95: 0.3 };
        expect(gate(before, after, #{ limits: all, statistics: #{ alpha: 0.01 } }), "decision == promote");
    "#,
    );
    let report = said.ended(0).json();
    let decisions: Vec<_> = report["gates"].as_array().expect("a list").iter().map(|gate| &gate["decision"]).collect();
    assert_eq!(decisions, ["promote", "hold", "promote"]);
    assert_eq!(report["gates"][1]["inputs"]["candidate"][0]["name"], "run `after`");
    let said = decided(r#"expect(gate(before, after), "decision == promote");"#).ended(1);
    assert_eq!(said.json()["assertions"][0]["passed"], false);
}

#[test]
fn gates_of_scripts_refuse_what_they_cannot_use() {
    let refused = |script: &str, needles: &[&str]| decided(script).failed(2, needles);
    refused(r#"gate(before, 7)"#, &["test.rhai:7", "`gate` takes results of runs and captures, not"]);
    refused(r#"gate(before, after, 7)"#, &["a policy is the path of a file or a map"]);
    refused(r#"gate(before, after, "none.toml")"#, &["none.toml"]);
    refused(r#"gate(before, after, #{ limits: #{ speed: 1 } })"#, &["`policy`, field `limits.speed`"]);
    refused(r#"gate(before, after, #{ limit: #{} })"#, &["`policy`", "limit"]);
    refused(r#"gate(before, after, #{ limits: () })"#, &["invalid `limits` of a policy"]);
    refused(r#"expect(gate(before, after), "decision == maybe")"#, &["decisions are promote, hold, rollback"]);
}

/// Engines behind vLLM's own frontend, which parameters make slower or crash.
const RELEASE: &str = r#"
let fault = param("fault", "none");
let c = cluster(#{ engines: pool(#{ engine: engine(#{ num_gpu_blocks: 2_001 }), latency: fixed(#{ step: "10ms" }) }) });
let faults = if fault == "slow" { [ slow_down(#{ at: "0s", engine: 0, factor: 8.0 }) ] }
    else if fault == "crash" { [ crash(#{ at: "1s", engine: 0, restart_after: "300ms" }) ] }
    else { [] };
run(#{ name: "release", cluster: c, faults: faults, workloads: [
    // A frontend does not notice a lost engine, so clients must.
    constant(#{ rate: "80/s", count: 240, prompt_tokens: 64, output_tokens: 10, timeout: "3s" }),
] });
"#;

/// On a busy machine, times vary more than in a deployment. First-token times vary most, because they are shortest.
const LENIENT: &str = "policy = 1\n[limits]\nttft_p95 = 20.0\nlatency_p95 = 3.0\ntoken_gap_p95 = 4.0\n";

/// Two releases of vLLM are mirrored and judged: the newer one is good, then slow, then crashes.
#[test]
fn releases_of_vllm_are_judged_end_to_end() {
    let folder = Folder::with(RELEASE);
    folder.write("policy.toml", LENIENT);
    let observe = |release: &str, fault: &str, name: &str| {
        let (Some(binary), Some(model)) = (vllm_rs(release), frontend_model()) else { return false };
        let target = format!("frontend(#{{ binary: \"{}\", model: \"{}\" }})", binary.display(), model.display());
        let fault = format!("fault={fault}");
        let out = ["--out", name, "--files", "report,requests", "-e", &fault];
        let _ = folder.run(&[&["--target", &target], &out[..]].concat()).ended(0);
        let labels = ["--set", "backend=vllm", "--set", &format!("backend_version={release}")];
        let observations = format!("{name}.jsonl");
        let _ = folder.vcr(&[&["mirror", name, "-o", &observations], &labels[..]].concat()).ended(0);
        true
    };
    if !observe("0.27.1", "none", "old") {
        return;
    }
    for (fault, decision, code) in [("none", "promote", 0), ("slow", "hold", 10), ("crash", "rollback", 20)] {
        assert!(observe("0.33.0", fault, fault), "the frontends are fetched together");
        let (old, new) = ("old.jsonl", format!("{fault}.jsonl"));
        let judged = folder.vcr(&["gate", "--policy", "policy.toml", "--baseline", old, "--candidate", &new, "--json"]);
        let report = judged.ended(code).json();
        assert_eq!(report["decision"], decision, "{fault}: {}", report["reason"]);
        assert_eq!(report["totals"]["matched"], 240, "{fault}");
        let versions = report["version_transitions"].as_object().expect("an object");
        assert!(versions.keys().all(|change| change.contains("0.27.1->0.33.0")), "{versions:?}");
    }
}
