//! WASI grants: an error names an interface that was not granted; a granted one behaves identically in every run.

use std::sync::{Arc, Mutex};

use vcr_core::latency::{StepBatch, StepShape};
use vcr_guest::{GuestModule, Limits, Note, NoteSink, WasiGrants};

use crate::components::wat::{Bodies, answer_list, component, core_text, latency_wit, with_imports};

/// The WASI interfaces, reduced to what these guests need.
const PACKAGES: &str = "
package wasi:io@0.2.3 {
  interface poll { resource pollable { block: func(); } }
  interface error { resource error; }
  interface streams {
    use error.{error};
    variant stream-error { last-operation-failed(error), closed }
    resource output-stream {
      blocking-write-and-flush: func(contents: list<u8>) -> result<_, stream-error>;
    }
  }
}
package wasi:clocks@0.2.3 {
  interface monotonic-clock {
    use wasi:io/poll@0.2.3.{pollable};
    now: func() -> u64;
    subscribe-duration: func(when: u64) -> pollable;
  }
}
package wasi:random@0.2.3 { interface random { get-random-u64: func() -> u64; } }
package wasi:cli@0.2.3 {
  interface stdout { use wasi:io/streams@0.2.3.{output-stream}; get-stdout: func() -> output-stream; }
}
package wasi:sockets@0.2.3 { interface network { resource network; dial: func() -> network; } }
";

/// A latency model with this body of `price`. The core module declares the imported interfaces in `imports`.
fn guest(names: &[&str], imports: &str, body: &str) -> Vec<u8> {
    let lines: String = names.iter().map(|name| format!("import wasi:{name}@0.2.3; ")).collect();
    let wit = latency_wit().replace("export latency;", &format!("{lines} export latency;")) + PACKAGES;
    component(&with_imports(&core_text("0.1.0", &Bodies::of_price(body)), imports), &wit)
}

const CLOCK: &str = r#" (import "wasi:clocks/monotonic-clock@0.2.3" "now" (func $now (result i64)))"#;
const RANDOM: &str = r#" (import "wasi:random/random@0.2.3" "get-random-u64" (func $random (result i64)))"#;

/// Returns the lower 20 bits of the i64 expression `value`.
fn answered(value: &str) -> String {
    let store = format!("(f64.store (i32.const 1024) (f64.convert_i64_u (i64.and (i64.const 0xfffff) {value})))");
    format!("{store} {}", answer_list(1024, 1))
}

fn granted(names: &[&str]) -> Limits {
    let mut wasi = WasiGrants::default();
    assert!(names.iter().all(|name| wasi.grant(name)));
    Limits { wasi, ..Limits::default() }
}

/// Prices single steps that start at these times.
fn prices(bytes: &[u8], limits: Limits, seed: u64, starts_ns: &[u64]) -> Vec<u64> {
    let module = GuestModule::from_bytes("curious", bytes, limits).expect("it loads");
    let mut model = module.latency_model("{}", seed).expect("it configures");
    let mut durations_ns = Vec::new();
    for start_ns in starts_ns {
        let batch = StepBatch { start_ns: *start_ns, horizon_ns: 0, shapes: &[StepShape::default()] };
        model.price(&batch, &mut durations_ns).expect("it prices");
    }
    durations_ns
}

#[test]
fn what_is_not_granted_is_refused_with_the_grant_that_would_do() {
    let both = guest(
        &["clocks/monotonic-clock", "random/random"],
        &format!("{CLOCK}{RANDOM}"),
        &answered("(i64.add (call $now) (call $random))"),
    );
    let refused = |limits| GuestModule::from_bytes("curious", &both, limits).expect_err("it is not granted");
    let error = refused(Limits::default());
    assert!(error.to_string().contains("`wasi:clocks/monotonic-clock@0.2.3`, `wasi:random/random@0.2.3`"), "{error}");
    assert!(error.hint().expect("there is a way out").ends_with(r#"`wasi: ["clocks", "random"]`"#), "{error:?}");
    let error = refused(granted(&["clocks"]));
    assert!(error.to_string().contains("imports `wasi:random/random@0.2.3`, which"), "{error}");
    assert!(error.hint().expect("there is a way out").ends_with(r#"`wasi: ["random"]`"#), "{error:?}");
    assert!(GuestModule::from_bytes("curious", &both, granted(&["clocks", "random"])).is_ok());
}

#[test]
fn sockets_are_never_granted() {
    let dial = r#" (import "wasi:sockets/network@0.2.3" "dial" (func $dial (result i32)))"#;
    let bytes = guest(&["sockets/network"], dial, &answered("(i64.extend_i32_u (call $dial))"));
    let limits = granted(&WasiGrants::names());
    let error = GuestModule::from_bytes("curious", &bytes, limits).expect_err("nothing grants sockets");
    assert!(error.to_string().contains("it imports `wasi:sockets/network@0.2.3`"), "{error}");
    assert!(error.hint().expect("there is a way out").contains("no files and no sockets"), "{error:?}");
}

#[test]
fn the_clock_shows_the_time_of_the_call() {
    let bytes = guest(&["clocks/monotonic-clock"], CLOCK, &answered("(call $now)"));
    assert_eq!(prices(&bytes, granted(&["clocks"]), 1, &[7, 7, 500_000]), [7, 7, 500_000]);
}

/// Waiting for an hour returns immediately, because time does not pass within a call.
#[test]
fn waiting_is_over_at_once() {
    let imports = format!(
        r#"{CLOCK}
        (import "wasi:clocks/monotonic-clock@0.2.3" "subscribe-duration" (func $in (param i64) (result i32)))
        (import "wasi:io/poll@0.2.3" "[method]pollable.block" (func $block (param i32)))"#
    );
    let body = format!("(call $block (call $in (i64.const 3600000000000))) {}", answered("(call $now)"));
    let bytes = guest(&["io/poll", "clocks/monotonic-clock"], &imports, &body);
    assert_eq!(prices(&bytes, granted(&["clocks"]), 1, &[5]), [5]);
}

#[test]
fn randomness_is_that_of_the_seed() {
    let bytes = guest(&["random/random"], RANDOM, &answered("(call $random)"));
    let drawn = |seed| prices(&bytes, granted(&["random"]), seed, &[0; 8]);
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
    assert_ne!(drawn(1)[0], drawn(1)[1]);
}

#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

impl NoteSink for Lines {
    fn note(&self, note: Note<'_>) {
        self.0.lock().expect("no holder panicked").push(format!("{note:?}"));
    }
}

/// Writes the text of the data segment, and a newline after its tenth byte.
#[test]
fn what_is_written_to_stdout_is_lines_of_the_log() {
    let imports = r#"
        (import "wasi:cli/stdout@0.2.3" "get-stdout" (func $stdout (result i32)))
        (import "wasi:io/streams@0.2.3" "[method]output-stream.blocking-write-and-flush"
          (func $write (param i32 i32 i32 i32)))"#;
    let body = format!(
        "(i32.store8 (i32.const 522) (i32.const 10))
         (call $write (call $stdout) (i32.const 512) (i32.const 16) (i32.const 700))
         {}",
        answered("(i64.load8_u (i32.const 700))")
    );
    let bytes = guest(&["io/error", "io/streams", "cli/stdout"], imports, &body);
    let heard = |observe_bytes| {
        let limits = Limits { observe_bytes, ..granted(&["stdio"]) };
        let module = GuestModule::from_bytes("curious", &bytes, limits).expect("it loads");
        let lines = Arc::new(Lines::default());
        let mut model = module.observed_by(lines.clone()).latency_model("{}", 1).expect("it configures");
        let batch = StepBatch { start_ns: 0, horizon_ns: 0, shapes: &[StepShape::default()] };
        let mut durations_ns = Vec::new();
        model.price(&batch, &mut durations_ns).expect("it prices");
        assert_eq!(durations_ns, [0], "the write went well");
        drop(model);
        lines.0.lock().expect("no holder panicked").clone()
    };
    assert_eq!(heard(1000), [r#"Line { text: "`factor` i" }"#, r#"Line { text: " 0, b" }"#]);
    assert_eq!(heard(10), ["Dropped"]);
}
