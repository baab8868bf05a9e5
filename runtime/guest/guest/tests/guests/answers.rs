//! Answers of latency models: rounding, batches, invalid values and error texts.

use vcr_core::latency::{EngineInfo, KvGroup, KvGroupKind, StepBatch, StepShape};
use vcr_guest::{GuestModule, Limits};

use crate::components::wat::{Bodies, answer, answer_error, answer_list, answer_step, model, open, price};
use crate::hostile::{configure_error, list_error, step_error};

#[test]
fn honest_answers_are_rounded_halves_upwards() {
    let mut model = model(&answer(&["0.5", "2.4"]));
    assert_eq!(price(model.as_mut(), 2, u64::MAX), Ok(vec![1, 2]));
    assert_eq!(price(model.as_mut(), 3, u64::MAX), Ok(vec![1, 2]), "fewer than asked is fine");
}

#[test]
fn the_seed_and_config_reach_the_guest() {
    // Returns the seed plus the length of the config.
    let configure = "
        (i64.store (i32.const 64)
          (i64.add (local.get $seed) (i64.extend_i32_u (local.get $config_len))))
        (i32.store8 (i32.const 16) (i32.const 0))
        (i32.const 16)";
    let body =
        format!("(f64.store (i32.const 1024) (f64.convert_i64_u (i64.load (i32.const 64)))) {}", answer_list(1024, 1));
    let module = open(&Bodies { configure, ..Bodies::of_price(&body) }.component());
    let mut model = module.latency_model(r#"{"a":1}"#, 100).expect("it configures");
    assert_eq!(price(model.as_mut(), 1, u64::MAX), Ok(vec![107]));
}

#[test]
fn models_of_one_module_share_nothing() {
    // Returns the number of calls of the instance.
    let body = format!("(f64.store (i32.const 1024) (f64.convert_i32_u (global.get $calls))) {}", answer_list(1024, 1));
    let module = open(&Bodies::of_price(&body).component());
    let mut first = module.latency_model("{}", 1).expect("it configures");
    assert_eq!(price(first.as_mut(), 1, u64::MAX), Ok(vec![1]));
    assert_eq!(price(first.as_mut(), 1, u64::MAX), Ok(vec![2]));

    let handle = std::thread::spawn(move || {
        let mut second = module.latency_model("{}", 1).expect("it configures");
        price(second.as_mut(), 1, u64::MAX)
    });
    assert_eq!(handle.join().expect("the thread ends well"), Ok(vec![1]));
}

#[test]
fn long_batches_are_split_over_calls() {
    // Returns for each step the number of calls so far.
    let body = "
        (loop $each
          (f64.store
            (i32.add (i32.const 1024) (i32.mul (local.get $index) (i32.const 8)))
            (f64.convert_i32_u (global.get $calls)))
          (local.set $index (i32.add (local.get $index) (i32.const 1)))
          (br_if $each
            (i32.lt_u (local.get $index) (local.get $steps))))
        (i32.store8 (i32.const 32) (i32.const 0))
        (i32.store (i32.const 36) (i32.const 1024))
        (i32.store (i32.const 40) (local.get $index))
        (i32.const 32)";
    let bytes = Bodies::of_price(body).component();
    let limits = Limits { steps_per_call: 4, ..Limits::default() };
    let module = GuestModule::from_bytes("split", &bytes, limits).expect("it loads");
    let mut split = module.latency_model("{}", 1).expect("it configures");
    assert_eq!(price(split.as_mut(), 10, u64::MAX), Ok(vec![1, 1, 1, 1, 2, 2, 2, 2, 3, 3]));
    // The first call ends after the horizon, so the second call is not made.
    let mut split = module.latency_model("{}", 1).expect("it configures");
    assert_eq!(price(split.as_mut(), 10, 1_004), Ok(vec![1, 1, 1, 1]));
}

#[test]
fn impossible_durations_are_named() {
    for (value, expected) in [
        ("nan", "starting at 1005 ns at NaN ns, which is not a number"),
        ("inf", "starting at 1005 ns at inf ns, which is infinite"),
        ("-inf", "starting at 1005 ns at -inf ns, which is infinite"),
        ("-1", "starting at 1005 ns at -1 ns, which is negative"),
        ("2e18", "starting at 1005 ns at 2000000000000000000 ns, which is longer than 1e18 ns"),
    ] {
        let text = list_error(&answer(&["5", value]));
        assert!(text.contains(expected), "{text}");
        assert!(text.ends_with("a finite number of nanoseconds from 0 to 1e18"), "{text}");
        let text = step_error(&answer_step(&format!("(f64.const {value})")));
        assert!(text.contains(&expected.replace("1005", "1000")), "{text}");
        assert!(text.ends_with("a finite number of nanoseconds from 0 to 1e18"), "{text}");
    }
    let mut zero = model(&answer(&["-0", "1e18"]));
    assert_eq!(price(zero.as_mut(), 2, u64::MAX), Ok(vec![0, 1_000_000_000_000_000_000]));
}

#[test]
fn the_number_of_durations_must_fit() {
    let text = list_error(&answer(&[]));
    assert!(text.contains("it answered no duration for 2 steps"), "{text}");
    let text = list_error(&answer(&["1", "2", "3"]));
    assert!(text.contains("it answered 3 durations for 2 steps"), "{text}");
}

#[test]
fn steps_beyond_the_horizon_must_not_be_priced() {
    let mut greedy = model(&answer(&["10", "10"]));
    assert_eq!(price(greedy.as_mut(), 2, 1_011), Ok(vec![10, 10]));
    let text = price(greedy.as_mut(), 2, 1_010).expect_err("the second starts at the horizon");
    assert!(text.contains("priced a step starting at 1010 ns, at or after the horizon 1010 ns"), "{text}");
}

#[test]
fn huge_answers_are_not_copied() {
    // A list longer than the memory, then one that fits the memory.
    let text = list_error(&answer_list(1024, 100_000_000));
    assert!(text.contains("it trapped: "), "{text}");
    let grow = "(drop (memory.grow (i32.const 16)))";
    let text = list_error(&format!("{grow} {}", answer_list(1024, 100_000)));
    assert!(text.contains("larger than the 65536 bytes that an answer may have"), "{text}");
}

#[test]
fn an_error_in_words_is_passed_on() {
    let expected = "latency model `hostile` failed: in `price`: `factor` is 0, but must be above 0";
    assert_eq!(list_error(&answer_error(32)), expected);
    let mut single = model(&answer_error(32));
    assert_eq!(price(single.as_mut(), 1, u64::MAX), Err(expected.to_owned()), "by either call");
    let error = configure_error(&answer_error(16));
    assert_eq!(error.to_string(), "guest `hostile` failed in `configure`: `factor` is 0, but must be above 0");
    assert_eq!(error.hint(), None, "the guest has said it all");
}

#[test]
fn a_traceback_stands_below_the_message() {
    // The message is the first word of the data segment, the traceback the next two words.
    let body = "(i32.store8 (i32.const 64) (i32.const 1))
        (i32.store (i32.const 72) (i32.const 512)) (i32.store (i32.const 76) (i32.const 8))
        (i32.store8 (i32.const 80) (i32.const 1))
        (i32.store (i32.const 84) (i32.const 521)) (i32.store (i32.const 88) (i32.const 4)) (i32.const 64)";
    let mut model = Bodies::of_step(body).model();
    let text = price(model.as_mut(), 1, u64::MAX).expect_err("it fails");
    assert_eq!(text, "latency model `hostile` failed: in `price`: `factor`\nis 0");
}

#[test]
fn a_run_is_priced_in_one_call_and_other_steps_each_in_its_own() {
    // A run of decodes costs its first context plus a thousand for each step. A single step costs 7.
    let run = "
        (loop $each
          (f64.store
            (i32.add (i32.const 1024) (i32.mul (local.get $index) (i32.const 8)))
            (f64.convert_i64_u (i64.add (local.get $context)
              (i64.load (i32.add (local.get $blocks) (i32.mul (local.get $index) (i32.const 8)))))))
          (local.set $index (i32.add (local.get $index) (i32.const 1)))
          (br_if $each (i32.lt_u (local.get $index) (local.get $steps))))
        (i32.store8 (i32.const 32) (i32.const 0))
        (i32.store (i32.const 36) (i32.const 1024))
        (i32.store (i32.const 40) (local.get $index))
        (i32.const 32)";
    let step = answer_step("(f64.const 7)");
    let mut model = Bodies { price_step: &step, ..Bodies::of_price(run) }.model();
    let decode =
        StepShape { decode_requests: 2, decode_context_tokens: 100, kv_active_blocks: 5, ..StepShape::default() };
    let prompt = StepShape { prefill_requests: 1, prefill_tokens: 9, ..StepShape::default() };
    let shapes = [prompt, decode, decode.decode_step(1, 6), decode.decode_step(2, 7), decode];
    let mut durations_ns = Vec::new();
    model
        .price(&StepBatch { start_ns: 0, horizon_ns: u64::MAX, shapes: &shapes }, &mut durations_ns)
        .expect("it prices");
    assert_eq!(durations_ns, [7, 105, 106, 107, 7]);
    durations_ns.clear();
    model
        .price(&StepBatch { start_ns: 0, horizon_ns: 112, shapes: &shapes[..2] }, &mut durations_ns)
        .expect("it prices");
    assert_eq!(durations_ns, [7, 7], "one decode alone");
}

#[test]
fn the_fields_of_a_step_arrive_in_order() {
    // The start, then the first field and some of the last fields, as decimal digits.
    let digit = |value: &str, rest: &str| format!("(i64.add (i64.mul {rest} (i64.const 10)) (local.get ${value}))");
    let start = "(local.get $start)".to_owned();
    let fields = ["field0", "waiting", "adapters", "adapter_tokens"];
    let number = fields.into_iter().fold(start, |number, field| digit(field, &number));
    let step = answer_step(&format!("(f64.convert_i64_u {number})"));
    let mut model = Bodies::of_step(&step).model();
    let shape = StepShape {
        prefill_requests: 3,
        waiting_requests: 7,
        adapter_count: 2,
        adapter_tokens: 4,
        ..StepShape::default()
    };
    let batch = StepBatch { start_ns: 5, horizon_ns: 0, shapes: &[shape] };
    let mut durations_ns = Vec::new();
    model.price(&batch, &mut durations_ns).expect("it prices");
    assert_eq!(durations_ns, [53_724]);
}

#[test]
fn a_model_knows_its_engine_and_without_one_that_of_checks() {
    let window = KvGroup { kind: KvGroupKind::SlidingWindow, block_size_tokens: 32, window_tokens: Some(128) };
    let engine = EngineInfo {
        tensor_parallel_size: 2,
        pipeline_parallel_size: 3,
        kv_total_blocks: 1 << 40,
        block_size_tokens: 32,
        kv_groups: vec![KvGroup::default(), window],
    };
    let takes = |condition: &str, engine: &EngineInfo| {
        let configure = format!(
            "(i32.store8 (i32.const 16) (i32.eqz {condition})) (i64.store (i32.const 20) (i64.const 0))
            (i64.store (i32.const 28) (i64.const 0)) (i32.const 16)"
        );
        let bodies = Bodies { configure: &configure, ..Bodies::of_step("(unreachable)") };
        let module = open(&bodies.component());
        (module.clone().serving(Some(engine)).latency_model("{}", 7).is_ok(), module.latency_model("{}", 7).is_ok())
    };
    let last_group = |offset: u32, load: &str| format!("(i32.{load} offset={offset} (local.get $groups))");
    for condition in [
        "(i32.eq (local.get $tensor) (i32.const 2))".to_owned(),
        "(i32.eq (local.get $pipeline) (i32.const 3))".to_owned(),
        "(i64.eq (local.get $total_blocks) (i64.const 1099511627776))".to_owned(),
        "(i64.eq (local.get $block_size) (i64.const 32))".to_owned(),
        "(i32.eq (local.get $groups_len) (i32.const 2))".to_owned(),
        // A group has 16 bytes: the kind, the block size, and an optional window.
        format!("(i32.eq {} (i32.const 2))", last_group(16, "load8_u")),
        format!("(i32.eq {} (i32.const 32))", last_group(20, "load")),
        format!("(i32.eq {} (i32.const 1))", last_group(24, "load8_u")),
        format!("(i32.eq {} (i32.const 128))", last_group(28, "load")),
    ] {
        assert_eq!(takes(&condition, &engine), (true, false), "{condition}");
    }
    for condition in [
        "(i32.eq (local.get $tensor) (i32.const 1))",
        "(i32.eq (local.get $pipeline) (i32.const 1))",
        "(i64.eq (local.get $block_size) (i64.const 16))",
        "(i32.eqz (local.get $groups_len))",
    ] {
        assert_eq!(takes(condition, &engine), (false, true), "{condition}");
    }
}
