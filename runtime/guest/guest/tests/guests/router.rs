//! The inputs of routers, and how the host handles their answers.

use vcr_core::policy::Slo;
use vcr_core::route::{Choice, EndedRequest, RoutePhase, RouteRequest, Router, WorkerLoad};

use crate::components::built::built;
use crate::components::wat::{ANSWER_REFUSAL, answer_error, answer_worker, open, router};

fn guest(route: &str) -> Box<dyn Router> {
    open(&router(route)).router("{}", 7).expect("it configures")
}

fn query() -> RouteRequest<'static> {
    RouteRequest {
        now_ns: 5_000,
        id: 9,
        prompt_tokens: 40,
        max_tokens: 20,
        priority: -2,
        adapter: None,
        tenant: 3,
        session: 77,
        slo: Slo { ttft_ns: Some(8), ..Slo::default() },
        block_size_tokens: 16,
        phase: RoutePhase::Decode,
        may_refuse: true,
        block_hashes: &[1 << 63, 12],
    }
}

/// The engines 1, 4 and 6. The other engines of the pool are down.
fn workers() -> [WorkerLoad; 3] {
    let load = |worker| WorkerLoad {
        worker,
        running_requests: 10,
        waiting_requests: 11,
        max_running_requests: 12,
        active_blocks: 13,
        total_blocks: 14,
        outstanding_prefill_tokens: 15,
        cached_prompt_blocks: 16,
        host_prompt_blocks: 18,
        disk_prompt_blocks: 19,
        loading_requests: 20,
        last_step_ns: 21,
        preemption_count: 17,
    };
    [load(1), load(4), load(6)]
}

/// Returns the choice or the error text.
fn route(router: &mut dyn Router, query: &RouteRequest<'_>) -> Result<Choice, String> {
    router.route(query, &workers()).map_err(|error| error.to_string())
}

/// Asserts that a condition on the guest's input holds: the guest chooses engine 4 if it does, otherwise engine 1.
#[track_caller]
fn assert_passed(condition: &str, ended: &[EndedRequest]) {
    let body = answer_worker(&format!("(select (i32.const 4) (i32.const 1) {condition})"));
    let mut router = guest(&body);
    for request in ended {
        router.ended(request);
    }
    assert_eq!(route(router.as_mut(), &query()), Ok(Choice::Worker(4)), "{condition}");
}

/// A condition: the 32 bits at an offset of the call equal `value`.
fn field_is(offset: usize, value: u32) -> String {
    format!("(i32.eq (i32.load offset={offset} (local.get $call)) (i32.const {}))", value.cast_signed())
}

/// Offset of the workers' columns in a call.
const WORKERS: usize = 128;

/// Columns that are omitted if all entries are 0.
const OPTIONAL: [usize; 5] = [8, 9, 10, 11, 12];

/// A condition: the tag of the option at an offset of the call equals `value`.
fn is_there(offset: usize, value: u32) -> String {
    format!("(i32.eq (i32.load8_u offset={offset} (local.get $call)) (i32.const {value}))")
}

#[test]
fn columns_of_zeros_are_left_out() {
    for (index, column) in OPTIONAL.into_iter().enumerate() {
        let offset = WORKERS + 8 * OPTIONAL[0] + 12 * index;
        let body = answer_worker(&format!("(select (i32.const 4) (i32.const 1) {})", is_there(offset, 0)));
        let mut workers = workers();
        for load in &mut workers {
            match index {
                0 => load.host_prompt_blocks = 0,
                1 => load.disk_prompt_blocks = 0,
                2 => load.loading_requests = 0,
                3 => load.last_step_ns = 0,
                _ => load.preemption_count = 0,
            }
        }
        let chosen = guest(&body).route(&query(), &workers).map_err(|error| error.to_string());
        assert_eq!(chosen, Ok(Choice::Worker(4)), "column {column}");
    }
}

#[test]
fn all_fields_arrive_in_order() {
    // Time, number of ended requests, request.
    for (offset, value) in [(0, 5_000), (12, 0), (16, 9), (24, 40), (28, 20), (32, (-2_i32).cast_unsigned())] {
        assert_passed(&field_is(offset, value), &[]);
    }
    for (offset, value) in [(48, 3), (56, 77), (72, 8), (112, 16), (124, 2)] {
        assert_passed(&field_is(offset, value), &[]);
    }
    for (offset, value) in [(36, 0), (64, 1), (80, 0), (96, 0), (116, 2), (117, 1)] {
        let byte = format!("(i32.eq (i32.load8_u offset={offset} (local.get $call)) (i32.const {value}))");
        assert_passed(&byte, &[]);
    }
    let first_hash = format!("(i64.eq (i64.load (i32.load offset=120 (local.get $call))) (i64.const {}))", i64::MIN);
    assert_passed(&first_hash, &[]);
    let mut at = WORKERS;
    for (column, value) in [4, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 17].into_iter().enumerate() {
        // An optional column is present.
        if OPTIONAL.contains(&column) {
            assert_passed(&is_there(at, 1), &[]);
            at += 4;
        }
        // The second engine; three columns have 64-bit entries.
        let width = if [6, 11, 12].contains(&column) { 8 } else { 4 };
        let list = format!("(i32.load offset={at} (local.get $call))");
        assert_passed(&format!("(i32.eq (i32.load offset={width} {list}) (i32.const {value}))"), &[]);
        assert_passed(&field_is(at + 4, 3), &[]);
        at += 8;
    }
    let ended = [
        EndedRequest { id: 1 << 40, worker: 4, output_tokens: 8, failed: false, ttft_ns: Some(6) },
        EndedRequest { id: 2, worker: 1, output_tokens: 0, failed: true, ttft_ns: None },
    ];
    assert_passed(&field_is(12, 2), &ended);
    for (offset, value) in
        [(5, 1), (8, 4), (12, 8), (16, 0), (24, 1), (32, 6), (40, 2), (48, 1), (52, 0), (56, 1), (64, 0)]
    {
        let list = "(i32.load offset=8 (local.get $call))";
        assert_passed(&format!("(i32.eq (i32.load8_u offset={offset} {list}) (i32.const {value}))"), &ended);
    }
}

#[test]
fn what_has_ended_is_reported_once() {
    let mut router =
        guest(&answer_worker("(select (i32.const 6) (i32.const 1) (i32.load offset=12 (local.get $call)))"));
    router.ended(&EndedRequest { id: 1, worker: 4, output_tokens: 8, failed: false, ttft_ns: None });
    assert_eq!(route(router.as_mut(), &query()), Ok(Choice::Worker(6)));
    assert_eq!(route(router.as_mut(), &query()), Ok(Choice::Worker(1)));
}

#[test]
fn an_engine_that_is_not_up_or_not_there_is_named_with_those_that_are() {
    for chosen in [0_u32, 5, 7, u32::MAX] {
        let text = route(guest(&answer_worker(&format!("(i32.const {})", chosen.cast_signed()))).as_mut(), &query());
        let expected = format!(
            "router `hostile` failed: in `route`: it chose the engine {chosen} for request 9: expected one of \
             1, 4, 6; answer the index of one of `workers`, or `refuse`"
        );
        assert_eq!(text, Err(expected));
    }
}

#[test]
fn only_a_request_that_no_engine_had_may_be_refused() {
    let mut refusing = guest(ANSWER_REFUSAL);
    assert_eq!(route(refusing.as_mut(), &query()), Ok(Choice::Refuse));
    let served = RouteRequest { may_refuse: false, ..query() };
    let text = route(refusing.as_mut(), &served).expect_err("it was with an engine");
    assert_eq!(
        text,
        "router `hostile` failed: in `route`: it refused request 9, which has been with an engine before; refuse a \
         request only where its `may-refuse` is true"
    );
}

#[test]
fn hostile_routers_are_stopped() {
    let huge_text = "(i32.store8 (i32.const 32) (i32.const 1))
        (drop (memory.grow (i32.const 100)))
        (i32.store (i32.const 36) (i32.const 0))
        (i32.store (i32.const 40) (i32.const 4000000))
        (i32.const 32)";
    for (body, expected) in [
        ("(loop $again (br $again)) (unreachable)", "used its 54000000 fuel"),
        ("(unreachable)", "it panicked"),
        ("(drop (memory.grow (i32.const 1024))) (unreachable)", "bytes of memory, but may have 67108864"),
        (huge_text, "its answer is larger than the 65536 bytes that an answer may have"),
    ] {
        let text = route(guest(body).as_mut(), &query()).expect_err(expected);
        assert!(text.contains(expected), "{text}");
    }
    let mut router = guest(&answer_error(32));
    let text = route(router.as_mut(), &query()).expect_err("it answers an error");
    assert_eq!(text, "router `hostile` failed: in `route`: `factor` is 0, but must be above 0");
    let text = route(router.as_mut(), &query()).expect_err("it is gone");
    assert!(text.contains("in `route`: it had failed before: `factor` is 0"), "{text}");
}

#[test]
fn details_of_engines_are_sent_unless_the_guest_omits_them() {
    assert!(guest(ANSWER_REFUSAL).needs_tiers(), "it did not omit them");
    let Some(module) = built("prefix-affinity") else { return };
    assert!(!module.router("{}", 1).expect("it configures").needs_tiers());
}

#[test]
fn a_router_is_no_latency_model() {
    let module = open(&router(&answer_worker("(i32.const 1)")));
    let text = module.latency_model("{}", 7).err().expect("it is a router").to_string();
    assert!(text.contains("it is a router (world `router`), but a latency model"), "{text}");
}
