//! Pauses, sleep, resets and the other utility calls.

use super::*;

fn paced() -> LiveConfig {
    LiveConfig { latency: constant(2_000_000), ..config() }
}

#[test]
fn keep_freezes_what_is_under_way() {
    let bench = Bench::new(paced());
    bench.add("a", &prompt(20), 100);
    bench.next();
    assert_eq!(bench.call_past_outputs("pause_generation", vec!["keep".into(), false.into()]), Ok(Value::Nil));
    assert_eq!(bench.call("is_scheduler_paused", vec![]), Ok(true.into()));
    assert_eq!(bench.call("is_sleeping", vec![]), Ok(true.into()), "vLLM counts a pause as sleep");
    bench.nothing_comes();
    bench.send(Request::Utility(utility("resume_scheduler", vec![])));
    let rest = bench.collect(&["a"]).remove(0);
    assert_eq!(rest.finish, Some(FinishReason::Length));
}

#[test]
fn wait_answers_when_all_have_ended() {
    let bench = Bench::new(paced());
    bench.add("a", &prompt(20), 20);
    bench.next();
    bench.send(Request::Utility(utility("pause_scheduler", vec!["wait".into(), true.into()])));
    let mut finished = false;
    loop {
        let outputs = bench.next();
        if outputs.utility_output.is_some() {
            break;
        }
        finished |= outputs.outputs.iter().any(|output| output.finish_reason.is_some());
    }
    assert!(finished, "the request under way was waited for");
    // The request is queued. Only pauses by users refuse requests.
    bench.add("b", &prompt(20), 2);
    bench.nothing_comes();
    bench.send(Request::Utility(utility("resume_scheduler", vec![])));
    assert_eq!(bench.collect(&["b"]).remove(0).tokens.len(), 2);
}

#[test]
fn abort_ends_all_and_a_users_pause_refuses_new_ones() {
    let bench = Bench::new(paced());
    bench.add("a", &prompt(20), 1000);
    bench.next();
    bench.send(Request::Utility(utility("pause_generation", vec!["abort".into(), true.into()])));
    let aborted = bench.collect(&["a"]).remove(0);
    assert_eq!(aborted.finish, Some(FinishReason::Abort));
    assert_eq!(bench.answer(), Ok(Value::Nil));
    bench.add("b", &prompt(20), 2);
    let refused = bench.collect(&["b"]).remove(0);
    let error = refused.outputs[0].error.clone().expect("it says why");
    assert_eq!((error.code.as_str(), error.retryable), ("engine_paused", true));
    assert_eq!(bench.call("resume_scheduler", vec![]), Ok(Value::Nil));
    assert_eq!(bench.run("c", &prompt(20), 2).len(), 2);
}

#[test]
fn sleep_and_wake_up() {
    let bench = Bench::new(config());
    bench.run("a", &prompt(40), 2);
    assert_eq!(bench.call("sleep", vec![1u64.into(), "abort".into()]), Ok(Value::Nil));
    assert_eq!(bench.call("is_sleeping", vec![]), Ok(true.into()));
    assert_eq!(bench.call("wake_up", vec![Value::Array(vec!["weights".into()])]), Ok(false.into()));
    assert_eq!(bench.call("is_sleeping", vec![]), Ok(true.into()), "the cache is still away");
    assert_eq!(bench.call("wake_up", vec![Value::Nil]), Ok(true.into()));
    assert_eq!(bench.call("is_sleeping", vec![]), Ok(false.into()));
    bench.add("b", &prompt(40), 1);
    let stats = bench.collect(&["b"]).remove(0).outputs[0].prefill_stats.clone().expect("it is the first");
    assert_eq!(stats.num_cached_tokens, 0, "sleep dropped the cache");
    assert!(bench.call("sleep", vec![1u64.into(), "deep".into()]).unwrap_err().contains("Invalid pause mode: deep"));
}

/// vllm-rs up to 0.30 expects nil, later versions a boolean.
#[test]
fn wake_up_answers_as_its_line_does() {
    let mut config = config();
    config.identity.version = Some(VllmMinor::V0_30);
    let bench = Bench::new(config);
    assert_eq!(bench.call("wake_up", vec![Value::Nil]), Ok(Value::Nil));
    assert_eq!(bench.frontend.engines[0].vllm_version, "0.30.0");
}

#[test]
fn the_cache_is_reset_only_when_nobody_uses_it() {
    let bench = Bench::new(paced());
    bench.add("a", &prompt(40), 100);
    bench.next();
    let reset = |force: bool| bench.call_past_outputs("reset_prefix_cache", vec![force.into(), false.into()]);
    assert_eq!(reset(false), Ok(false.into()));
    assert_eq!(reset(true), Ok(true.into()), "running requests are computed again");
    assert_eq!(bench.collect(&["a"]).remove(0).finish, Some(FinishReason::Length));
    assert_eq!(reset(false), Ok(true.into()));
}

#[test]
fn every_call_of_the_protocol_is_answered() {
    let mut config = config();
    config.identity.version = Some(VllmMinor::V0_33);
    let bench = Bench::new(config);
    for (method, args, wanted) in [
        ("get_supported_tasks", vec![], Value::Array(vec!["generate".into()])),
        ("reset_mm_cache", vec![], Value::Nil),
        ("reset_encoder_cache", vec![], Value::Nil),
        ("profile", vec![true.into(), Value::Nil], Value::Nil),
        ("execute_dummy_batch", vec![], Value::Nil),
        ("save_sharded_state", vec!["/x".into(), Value::Nil, Value::Nil], Value::Nil),
        ("collective_rpc", vec!["echo".into(), Value::Nil, Value::Array(vec![])], Value::Array(vec![Value::Nil; 2])),
        ("set_weight_version", vec!["v2".into()], Value::Nil),
        ("get_weight_version", vec![], "v2".into()),
        ("compute_weight_checksums", vec![], Value::Array(vec![Value::Map(vec![]); 2])),
        ("pause_scheduler", vec!["abort".into(), true.into()], Value::Nil),
        ("release_kv_cache_memory", vec![], Value::Nil),
        ("wake_up", vec![Value::Nil], true.into()),
    ] {
        assert_eq!(bench.call(method, args), Ok(wanted), "{method}");
    }
    let error = bench.call("dance", vec![]).unwrap_err();
    assert_eq!(error, "Call to dance method failed: 'EngineCoreProc' object has no attribute 'dance'");
    assert!(bench.call("release_kv_cache_memory", vec![]).unwrap_err().contains("requires a completed pause"));
    assert!(bench.call("add_lora", vec![]).is_err());
    // Messages of this version state the version of the weights. Messages to a frontend that may be 0.31 omit it,
    // because 0.31 would drop them.
    bench.add("a", &prompt(20), 1);
    assert_eq!(bench.next().weight_version.as_deref(), Some("v2"));
    let bench = Bench::new(self::config());
    bench.call("set_weight_version", vec!["v2".into()]).expect("it is taken");
    bench.add("a", &prompt(20), 1);
    assert_eq!(bench.next().weight_version, None);
}

fn utility(method: &str, args: Vec<Value>) -> UtilityCall {
    UtilityCall { client_index: 0, call_id: Integer::from(7u64), method: method.to_owned(), args }
}

impl Bench {
    /// Like `call`, but skips the outputs of requests.
    fn call_past_outputs(&self, method: &str, args: Vec<Value>) -> Result<Value, String> {
        self.send(Request::Utility(utility(method, args)));
        loop {
            let Some(answer) = self.next().utility_output else { continue };
            return match answer.failure_message {
                Some(message) => Err(message),
                None => Ok(answer.result.expect("it is one of both").value),
            };
        }
    }
}
