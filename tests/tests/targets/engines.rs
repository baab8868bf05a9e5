//! Virtual time compared with live engines and with `vcr serve`.

use serde_json::Value;
use vcr_tests::Folder;

use crate::{Outputs, SCENARIO};

/// Results that do not depend on times are the same on every target.
#[test]
fn live_engines_and_the_server_get_the_requests_of_virtual_time() {
    let folder = Folder::with(SCENARIO);
    let simulated = Outputs::of(&folder, "virtual", &[]);
    assert!(simulated.run()["target"].is_null(), "virtual time is the default and no target of its own");
    assert!(simulated.requests.len() > 25, "{}", simulated.requests.len());
    for target in ["live", "serve"] {
        let measured = Outputs::of(&folder, target, &[]);
        assert_eq!(measured.asked(), simulated.asked(), "{target}");
        for counter in ["requests", "completed", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions"] {
            assert_eq!(measured.counter(counter), simulated.counter(counter), "{counter} on {target}");
        }
        let run = measured.run();
        assert_eq!(run["target"]["name"], target);
        assert!(run["metrics"]["trends"]["queue_ms"]["count"].as_u64() > Some(0), "engines tell of queues: {target}");
        // By the engine's own clock, each step takes 5 ms, however late its thread is. A late thread catches up, so
        // clients may see shorter gaps.
        let number = |value: &Value| value.as_f64().expect("it is a number");
        let (steps, share) = (number(&run["engines"][0]["steps"]), number(&run["engines"][0]["utilisation"]));
        let busy_ms = share * number(&run["duration_ms"]);
        assert!((busy_ms - 5.0 * steps).abs() < 0.001, "{target}: {steps} steps in {busy_ms} ms");
        // A step gives a request at most one token.
        let most = measured.requests.iter().map(|row| number(&row["output_tokens"])).fold(0.0, f64::max);
        assert!(steps > most && number(&run["duration_ms"]) >= busy_ms, "{target}: {run:#}");
        let trends = &run["metrics"]["trends"];
        assert_eq!((number(&trends["step_ms"]["min"]), number(&trends["step_ms"]["max"])), (5.0, 5.0), "{target}");
        assert_eq!(number(&trends["batch"]["count"]), steps, "{target}");
        assert!(run["engines"][0]["steps"].as_u64() > Some(50), "{run:#}");
    }
}

/// The cluster's router chooses among the live engines.
#[test]
fn pools_of_several_engines_share_the_requests() {
    let folder = Folder::with(SCENARIO);
    let simulated = Outputs::of(&folder, "virtual", &["-e", "engines=3"]);
    for target in ["live", "serve"] {
        let measured = Outputs::of(&folder, target, &["-e", "engines=3"]);
        assert_eq!(measured.asked(), simulated.asked(), "{target}");
        let engines = measured.run()["engines"].as_array().expect("it has engines");
        assert_eq!(engines.len(), 3);
        assert!(engines.iter().all(|engine| engine["steps"].as_u64() > Some(0)), "{target}: {engines:?}");
        // Each request names the engine that the router chose.
        let with = |engine: &str| measured.requests.iter().filter(|row| row["engine"] == engine).count();
        let counts = ["engines 0", "engines 1", "engines 2"].map(with);
        assert_eq!(counts.iter().sum::<usize>(), measured.requests.len(), "{target}: {counts:?}");
        assert!(counts.iter().all(|count| *count > 0), "{target}: {counts:?}");
    }
}

#[test]
fn a_burst_on_few_blocks_is_preempted_everywhere() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{
            engine: engine(#{ num_gpu_blocks: 33, block_size: 16, max_num_seqs: 8 }), latency: fixed(#{ step: "2ms" }),
        }) });
        let r = run(#{ cluster: c, workloads: [ burst(#{ count: 6, prompt_tokens: 64, output_tokens: 60 }) ] });
        expect(r, "completed", "count == 6");
        expect(r, "preemptions", "count > 0");
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let outputs = Outputs::of(&folder, target, &[]);
        let preempted: u64 = outputs.requests.iter().filter_map(|row| row["preemptions"].as_u64()).sum();
        assert!(preempted > 0, "{target}");
    }
}

#[test]
fn requests_that_do_not_fit_are_rejected_before_they_are_sent() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{
            engine: engine(#{ num_gpu_blocks: 501, max_model_len: 1_000 }), latency: fixed(#{ step: "1ms" }),
        }) });
        let r = run(#{ cluster: c, workloads: [
            burst(#{ name: "long", count: 3, prompt_tokens: 2_000, output_tokens: 5 }),
            burst(#{ name: "short", count: 3, prompt_tokens: 20, output_tokens: 5 }),
        ] });
        expect(r, "rejected{workload:long}", "count == 3");
        expect(r, "completed{workload:short}", "count == 3");
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let outputs = Outputs::of(&folder, target, &[]);
        let reasons = &outputs.run()["metrics"]["rejections"];
        assert_eq!(reasons.as_object().map(|reasons| reasons.len()), Some(1), "{target}: {reasons}");
    }
}

/// A run that a time limit ends keeps its measurements.
#[test]
fn a_limit_of_time_cuts_a_run_off() {
    let folder = Folder::with(
        r#"
        let c = cluster(#{ engines: pool(#{ engine: engine(#{ num_gpu_blocks: 501 }), latency: fixed(#{ step: "50ms" }) }) });
        let r = run(#{ cluster: c, max_time: "400ms", workloads: [ burst(#{ count: 2, prompt_tokens: 32, output_tokens: 100 }) ] });
        expect(r, "completed", "count == 0");
        expect(r, "generated_tokens", "count > 0");
    "#,
    );
    for target in ["virtual", "live", "serve"] {
        let outputs = Outputs::of(&folder, target, &[]);
        assert_eq!(outputs.run()["unfinished_requests"], 2, "{target}");
    }
}

/// Series of engines are available wherever the engines are in this process.
#[test]
fn live_engines_are_series() {
    let scenario = r#"
        let c = cluster(#{ engines: pool(#{
            engines: 2, engine: engine(#{ num_gpu_blocks: 501, max_num_seqs: 2 }), latency: fixed(#{ step: "10ms" }),
        }) });
        let r = run(#{ cluster: c, workloads: [ burst(#{ count: 8, prompt_tokens: 64, output_tokens: 30 }) ] });
        let most = |name| series(r, name, #{ every: "100ms" }).reduce(|most, value| max(most, value), 0.0);
        check("two at a time on each engine", most.call("running") > 2.0 && most.call("running") <= 4.0);
        check("the others wait", most.call("waiting") > 1.0);
        check("blocks are in use", most.call("kv_usage") > 0.0 && most.call("kv_usage") < 1.0);
        check("tokens are decoded", most.call("decode_tokens_per_s") > 50.0);
        check("they arrive", most.call("arrived_per_s") > 0.0);
    "#;
    let folder = Folder::with(scenario);
    for target in ["virtual", "live", "serve"] {
        let _ = Outputs::of(&folder, target, &[]);
    }
}

/// Engines that are called directly compute a workload's images, drawn or from a trace, as in virtual time.
#[test]
fn images_reach_live_engines() {
    let folder = Folder::with(
        r#"
        let of = |workload| run(#{
            cluster: cluster(#{ engines: pool(#{
                engine: engine(#{ num_gpu_blocks: 501, max_num_encoder_input_tokens: 40 }), latency: fixed(#{ step: "5ms" }),
            }) }),
            workloads: [workload],
        });
        let one = #{ count: 1, prompt_tokens: 32, output_tokens: 1 };
        expect(of.call(burst(one)), "steps", "count == 1");
        one.images = #{ count: 4, tokens: 40 };
        // An image in each step, because the encoder has no time for more.
        expect(of.call(burst(one)), "steps", "count >= 4");
        expect(of.call(trace(#{ path: "t.jsonl" })), "steps", "count >= 3");
    "#,
    );
    let item = |offset: u32| {
        format!(r#"{{"hash":"{offset}","offset":{offset},"tokens":50,"embeds":[[5,25],[30,50]],"modality":"image"}}"#)
    };
    let items = [0, 50, 100].map(item).join(",");
    folder.write(
        "t.jsonl",
        format!(r#"{{"timestamp":0,"input_length":200,"output_length":1,"hash_ids":[1],"mm_items":[{items}]}}"#),
    );
    for target in ["virtual", "live"] {
        let _ = Outputs::of(&folder, target, &[]);
    }
}
