//! Telemetry of guests, and its limits.

use std::sync::{Arc, Mutex};

use vcr_guest::{GuestModule, GuestStats, Limits, Note, NoteSink};

use crate::components::wat::{Bodies, answer, price};

/// Stores all notes, as text and as statistics.
#[derive(Default)]
struct Kept(Mutex<(Vec<String>, GuestStats)>);

impl NoteSink for Kept {
    fn note(&self, note: Note<'_>) {
        let mut kept = self.0.lock().expect("no holder panicked");
        kept.0.push(format!("{note:?}"));
        kept.1.add(&note);
    }
}

impl Kept {
    fn stats(&self) -> GuestStats {
        self.0.lock().expect("no holder panicked").1.clone()
    }
}

/// Prices one step with a guest that first runs `body`, and returns the telemetry and the result.
fn tell(body: &str, limits: Limits) -> (Arc<Kept>, Result<Vec<u64>, String>) {
    let text = format!("{body} {}", answer(&["5"]));
    let module =
        GuestModule::from_bytes("teller", &Bodies::of_price(&text).telling_component(), limits).expect("it loads");
    let kept = Arc::new(Kept::default());
    let sink = Arc::clone(&kept);
    let mut model = module.observed_by(sink).latency_model("{}", 1).expect("it configures");
    let priced = price(model.as_mut(), 1, u64::MAX);
    (kept, priced)
}

/// The data segment of these guests begins with "`factor`", so a name of six letters begins at its second byte.
const NAME: &str = "(i32.const 513) (i32.const 6)";

#[test]
fn notes_come_in_the_order_in_which_they_were_reported() {
    let body = format!(
        "(call $count {NAME} (i64.const 2))
         (call $count {NAME} (i64.const 3))
         (call $gauge (i32.const 514) (i32.const 2) (i64.const 7) (f64.const 1.5))
         (call $annotate (i64.const 9) {NAME})
         (call $log {NAME})"
    );
    let (kept, priced) = tell(&body, Limits::default());
    assert_eq!(priced, Ok(vec![5]));
    let (notes, stats) = kept.0.lock().expect("no holder panicked").clone();
    assert_eq!(
        notes,
        [
            r#"Count { name: "factor", by: 2 }"#,
            r#"Count { name: "factor", by: 3 }"#,
            r#"Gauge { name: "ac", at_ns: 7, value: 1.5, in_course: true }"#,
            r#"Annotation { at_ns: 9, text: "factor" }"#,
            r#"Line { text: "factor" }"#,
        ]
    );
    assert_eq!((stats.counters["factor"], stats.gauges["ac"].last, stats.dropped), (5, 1.5, 0));
}

#[test]
fn a_guest_that_nobody_hears_answers_the_same() {
    let body = format!("(call $log {NAME}) {}", answer(&["5"]));
    let module = GuestModule::from_bytes("teller", &Bodies::of_price(&body).telling_component(), Limits::default());
    let mut model = module.expect("it loads").latency_model("{}", 1).expect("it configures");
    assert_eq!(price(model.as_mut(), 1, u64::MAX), Ok(vec![5]));
}

#[test]
fn a_flood_ends_the_instance_at_a_number_of_calls() {
    let flood = |calls: u32| {
        format!(
            "(loop $again
               (call $count {NAME} (i64.const 1))
               (local.set $index (i32.add (local.get $index) (i32.const 1)))
               (br_if $again (i32.lt_u (local.get $index) (i32.const {calls}))))"
        )
    };
    let (kept, priced) = tell(&flood(1024), Limits::default());
    assert_eq!((priced, kept.stats().counters["factor"]), (Ok(vec![5]), 1024));
    let (kept, priced) = tell(&flood(1_000_000), Limits::default());
    let text = priced.expect_err("it floods");
    assert!(text.contains("it called functions of `observe` more than 1024 times in one call; sum up"), "{text}");
    assert_eq!(kept.stats().counters["factor"], 1024);
}

#[test]
fn too_much_text_is_dropped_and_counted() {
    let body = format!("(call $log {NAME}) (call $log {NAME}) (call $annotate (i64.const 1) {NAME})");
    let (kept, priced) = tell(&body, Limits { observe_bytes: 30, ..Limits::default() });
    assert_eq!((priced, kept.stats().dropped), (Ok(vec![5]), 2));
}

#[test]
fn texts_that_are_none_or_too_long_to_copy_end_the_instance() {
    let grow = "(drop (memory.grow (i32.const 16)))";
    let (_, priced) = tell(&format!("{grow} (call $log (i32.const 0) (i32.const 1000000))"), Limits::default());
    let text = priced.expect_err("a megabyte in one call");
    assert!(text.contains("larger than the 65536 bytes"), "{text}");
    let (_, priced) = tell("(call $log (i32.const -8) (i32.const 100))", Limits::default());
    assert!(priced.expect_err("it is outside of the memory").contains("it trapped"), "outside");
    // 0xff is not valid UTF-8.
    let (_, priced) = tell(
        "(i32.store8 (i32.const 600) (i32.const 255)) (call $log (i32.const 600) (i32.const 1))",
        Limits::default(),
    );
    assert!(priced.expect_err("it is not text").contains("it trapped"), "no text");
}
