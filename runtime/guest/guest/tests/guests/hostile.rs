//! Guests that loop, exhaust memory, crash or give invalid answers, next to correct guests.

use std::time::Duration;

use proptest::prelude::*;
use vcr_guest::{CallFault, GuestError, GuestModule, Limits};

use crate::components::built::built_path;
use crate::components::wat::{Bodies, answer, answer_list, component, core_text, latency_wit, model, open, price};

pub(crate) const LOOP: &str = "(loop $again (br $again)) (unreachable)";

/// The error text of pricing two steps with this body of `price`.
#[track_caller]
pub(crate) fn list_error(body: &str) -> String {
    error_of_all(&Bodies::of_price(body), 2)
}

/// The error text of pricing this many steps; it must not depend on the component's imports.
#[track_caller]
fn error_of_all(bodies: &Bodies<'_>, steps: usize) -> String {
    let [first, second] = bodies.components().map(|bytes| {
        let mut model = open(&bytes).latency_model("{}", 7).expect("it configures");
        price(model.as_mut(), steps, u64::MAX).expect_err("it must fail")
    });
    assert_eq!(first, second, "what it imports does not matter");
    first
}

/// The error text of pricing one step with this body of `price-step`.
#[track_caller]
pub(crate) fn step_error(body: &str) -> String {
    error_of_all(&Bodies::of_step(body), 1)
}

/// The error text of a guest that has `body` in both pricing functions. The texts may differ only in the fuel.
#[track_caller]
fn price_error(body: &str) -> String {
    let text = list_error(body);
    assert_eq!(step_error(body), text.replace("52000000 fuel", "51000000 fuel"));
    text
}

#[track_caller]
pub(crate) fn configure_error(body: &str) -> GuestError {
    let answer = answer(&["1"]);
    let bodies = Bodies { configure: body, ..Bodies::of_price(&answer) };
    let module = open(&bodies.component());
    module.latency_model("{}", 7).err().expect("it must fail")
}

#[test]
fn an_endless_loop_uses_up_its_fuel() {
    assert_eq!(
        price_error(LOOP),
        "latency model `hostile` failed: in `price`: it looped forever or worked too long: it used its 52000000 fuel; look for a loop that does not end; if the work is honest, raise its \
         `fuel`"
    );
}

#[test]
fn eight_gigabytes_are_refused() {
    let grow = "(drop (memory.grow (i32.const 131072))) (unreachable)";
    assert_eq!(
        price_error(grow),
        "latency model `hostile` failed: in `price`: it asked for 8590000128 bytes of memory, but \
         may have 67108864; keep less state, or raise its `memory`"
    );
}

#[test]
fn more_memory_than_the_limit_is_refused() {
    let grow = "(drop (memory.grow (i32.const 1024))) (unreachable)";
    assert_eq!(
        price_error(grow),
        "latency model `hostile` failed: in `price`: it asked for 67174400 bytes of memory, but \
         may have 67108864; keep less state, or raise its `memory`"
    );
}

#[test]
fn memory_beyond_the_guests_own_maximum_is_refused() {
    let grow = "(drop (memory.grow (i32.const 2))) (unreachable)";
    let text = core_text("0.1.0", &Bodies::of_price(grow));
    let text = text.replace(r#"(memory (export "memory") 1)"#, r#"(memory (export "memory") 1 2)"#);
    let module = open(&component(&text, &latency_wit()));
    let mut model = module.latency_model("{}", 1).expect("it configures");
    let text = price(model.as_mut(), 1, u64::MAX).expect_err("it has a maximum of two pages");
    assert!(text.contains("it asked for more memory than it can address"), "{text}");
}

#[test]
fn too_much_memory_to_begin_with_is_refused_at_load() {
    let text = core_text("0.1.0", &Bodies::of_price(&answer(&["1"])));
    let text = text.replace(r#"(memory (export "memory") 1)"#, r#"(memory (export "memory") 2000)"#);
    let error = GuestModule::from_bytes("hoarder", &component(&text, &latency_wit()), Limits::default())
        .expect_err("125 MiB are over the limit");
    assert_eq!(
        error.to_string(),
        "guest `hoarder` failed in `instantiate`: it asked for 131072000 bytes of memory, but may \
         have 67108864"
    );
}

#[test]
fn memory_up_to_the_limit_is_given() {
    let grow = "(drop (memory.grow (i32.const 1023)))";
    let mut model = model(&format!("{grow} {}", answer(&["1"])));
    assert_eq!(price(model.as_mut(), 1, u64::MAX), Ok(vec![1]));
}

#[test]
fn a_huge_table_is_refused() {
    let grow = "(drop (table.grow $table (ref.null func) (i32.const 1000000))) (unreachable)";
    let text = price_error(grow);
    assert!(text.contains("asked for a table of 1000001 elements, but may have 100000"), "{text}");
}

#[test]
fn endless_recursion_overflows_only_its_own_stack() {
    let text = price_error("(drop (call $recurse (i64.const 0))) (unreachable)");
    assert!(text.contains("nested calls too deeply and overflowed its stack"), "{text}");
    assert!(text.ends_with("look for a recursion that does not end"), "{text}");
}

#[test]
fn a_panic_is_distinguished_from_other_traps() {
    let text = price_error("(unreachable)");
    assert!(text.contains("in `price`: it panicked"), "{text}");
    let text = price_error("(drop (i32.div_u (i32.const 1) (i32.const 0))) (unreachable)");
    assert!(text.contains("it trapped: wasm trap: integer divide by zero"), "{text}");
    let text = price_error("(drop (i32.load (i32.const -8))) (unreachable)");
    assert!(text.contains("it trapped: wasm trap: out of bounds memory access"), "{text}");
}

#[test]
fn configure_is_metered_too() {
    let error = configure_error(LOOP);
    assert_eq!(
        error.to_string(),
        "guest `hostile` failed in `configure`: it looped forever or worked too long: it used its \
         500000400 fuel"
    );
    let GuestError::Call { fault, .. } = configure_error("(unreachable)") else {
        panic!("a panic is a fault of the call");
    };
    assert_eq!(fault, CallFault::Panicked { last_line: None });
}

#[test]
fn a_failed_model_stays_failed_and_its_module_lives_on() {
    // Traps in the second call.
    let body = format!("(if (i32.gt_u (global.get $calls) (i32.const 1)) (then (unreachable))) {}", answer(&["3"]));
    let module = open(&Bodies::of_price(&body).component());
    let mut first = module.latency_model("{}", 1).expect("it configures");
    assert_eq!(price(first.as_mut(), 1, u64::MAX), Ok(vec![3]));
    let text = price(first.as_mut(), 1, u64::MAX).expect_err("it traps");
    assert!(text.contains("it panicked"), "{text}");
    let text = price(first.as_mut(), 1, u64::MAX).expect_err("it is gone");
    assert!(text.contains("in `price`: it had failed before: it panicked"), "{text}");

    let mut second = module.latency_model("{}", 1).expect("the module is unharmed");
    assert_eq!(price(second.as_mut(), 1, u64::MAX), Ok(vec![3]));
}

#[test]
fn a_bomb_of_many_small_growths_is_refused_at_the_same_limit() {
    let text = list_error("(loop $again (drop (memory.grow (i32.const 1))) (br $again)) (unreachable)");
    assert!(text.contains("asked for 67174400 bytes of memory, but may have 67108864"), "{text}");
}

#[test]
fn a_start_function_that_loops_is_found_when_the_guest_is_loaded() {
    let text = core_text("0.1.0", &Bodies::of_price(&answer(&["1"])));
    let text = text.replace("(func $recurse", "(start $spin) (func $spin (loop $on (br $on))) (func $recurse");
    let error = GuestModule::from_bytes("spinner", &component(&text, &latency_wit()), Limits::default());
    let error = error.expect_err("it never starts").to_string();
    assert!(error.starts_with("guest `spinner` failed in `instantiate`: it looped forever"), "{error}");
}

#[test]
fn more_memories_and_tables_than_a_component_may_have_are_refused() {
    for (item, kind) in [("(memory 1)", "memory"), ("(table 1 funcref)", "table")] {
        let text = core_text("0.1.0", &Bodies::of_price(&answer(&["1"])));
        let text = text.replace("(func $recurse", &format!("{} (func $recurse", item.repeat(70)));
        let error = GuestModule::from_bytes("hoarder", &component(&text, &latency_wit()), Limits::default());
        let error = error.expect_err("64 are enough").to_string();
        assert!(error.contains("`hoarder`") && error.contains(kind), "{error}");
    }
}

#[test]
fn a_hundred_megabytes_are_refused_before_anybody_looks_at_them() {
    let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
    bytes.resize(100 << 20, 0);
    let error = GuestModule::from_bytes("huge", &bytes, Limits::default()).expect_err("too large");
    assert!(error.to_string().ends_with("it has 104857600 bytes, but may have 67108864"), "{error}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 40).expect("a file may have holes");
    let error = GuestModule::load(file.path(), Limits::default()).expect_err("too large");
    assert!(error.to_string().contains("it has 1099511627776 bytes, but may have 67108864"), "{error}");
}

#[test]
fn huge_texts_are_not_copied() {
    let words = "(drop (memory.grow (i32.const 32)))
        (i32.store8 (i32.const 32) (i32.const 1))
        (i32.store (i32.const 36) (i32.const 512)) (i32.store (i32.const 40) (i32.const 1000000)) (i32.const 32)";
    let text = list_error(words);
    assert!(text.contains("larger than the 65536 bytes that an answer may have"), "{text}");
}

/// Each instance starts with the component's initial memory, globals and tables, whatever other instances changed.
#[test]
fn a_dirty_instance_leaves_nothing_to_the_next() {
    // Returns a sum of all state, changes all of it, and traps at the end.
    let body = format!(
        "(f64.store (i32.const 1024)
           (f64.convert_i64_u (i64.add (i64.load (i32.const 60000)) (i64.extend_i32_u (global.get $calls)))))
         (f64.store (i32.const 1024) (f64.add (f64.load (i32.const 1024))
           (f64.convert_i32_u (i32.add (memory.size) (table.size $table)))))
         (i64.store (i32.const 60000) (i64.const 77))
         (drop (table.grow $table (ref.null func) (i32.const 5)))
         (drop (memory.grow (i32.const 1)))
         (if (i32.gt_u (global.get $calls) (i32.const 3)) (then (unreachable)))
         {}",
        answer_list(1024, 1)
    );
    let module = open(&Bodies::of_price(&body).component());
    let life = || {
        let mut model = module.latency_model("{}", 1).expect("it configures");
        let calls: Vec<_> = (0..5).map(|_| price(model.as_mut(), 1, u64::MAX)).collect();
        calls
    };
    let first = life();
    assert_eq!(first[..2], [Ok(vec![3]), Ok(vec![87])]);
    assert!(first[3].is_err() && first[4].is_err());
    assert_eq!(life(), first);
}

/// The clock stops an endless guest of a live engine; in virtual time only fuel does.
#[test]
fn the_watchdog_of_live_engines_stops_what_fuel_does_not() {
    let limit = Duration::from_millis(300);
    let limits = Limits { fuel_per_call: u64::MAX / 2, wall_time_per_call: Some(limit), ..Limits::default() };
    for bytes in Bodies::of_price(LOOP).components() {
        let module = GuestModule::from_bytes("slow", &bytes, limits).expect("it loads");
        let mut model = module.latency_model("{}", 1).expect("it configures");
        let text = price(model.as_mut(), 1, u64::MAX).expect_err("it never answers");
        assert!(text.contains("it took longer than the 300ms that a call may take"), "{text}");
    }
    // A fast guest is never stopped, however long its instance lives.
    let bytes = Bodies::of_price(&answer(&["3"])).component();
    let module = GuestModule::from_bytes("quick", &bytes, limits).expect("it loads");
    let mut model = module.latency_model("{}", 1).expect("it configures");
    for _ in 0..3 {
        std::thread::sleep(limit);
        assert_eq!(price(model.as_mut(), 1, u64::MAX), Ok(vec![3]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A damaged component is refused, fails or answers, but never crashes the host.
    #[test]
    fn no_damage_of_a_real_component_reaches_the_host(
        length in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 0..4),
        is_cut in any::<bool>(),
    ) {
        let Some(path) = built_path("roofline") else { return Ok(()) };
        let whole = std::fs::read(path).expect("a built guest is readable");
        let kept = if is_cut { length.index(whole.len()) } else { whole.len() };
        let mut damaged = whole[..kept].to_vec();
        for (place, bits) in flips {
            if !damaged.is_empty() {
                let place = place.index(damaged.len());
                damaged[place] ^= bits;
            }
        }
        let limits = Limits { fuel_per_configure: 50_000_000, fuel_per_call: 5_000_000, ..Limits::default() };
        if let Ok(module) = GuestModule::from_bytes("odd", &damaged, limits)
            && let Ok(mut model) = module.latency_model(r#"{"model": "llama-3.1-8b", "gpu": "h100-sxm"}"#, 1)
        {
            let _ = price(model.as_mut(), 2, u64::MAX);
            let _ = price(model.as_mut(), 1, u64::MAX);
        }
    }
}
