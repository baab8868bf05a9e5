//! Small guests written as WebAssembly text, so that tests need no compiler for wasm32. Their components are made
//! from `wit/` like those of other guests.

use vcr_core::latency::{LatencyModel, StepBatch, StepShape};
use vcr_guest::{GuestModule, Limits};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

pub(crate) const LATENCY_WIT: &str = include_str!("../../../../../../wit/latency-model.wit");
const TYPES_WIT: &str = include_str!("../../../../../../wit/types.wit");
const OBSERVE_WIT: &str = include_str!("../../../../../../wit/observe.wit");
const TOKENS_WIT: &str = include_str!("../../../../../../wit/token-source.wit");
const FAULTS_WIT: &str = include_str!("../../../../../../wit/failure-injector.wit");
const SCHEDULING_WIT: &str = include_str!("../../../../../../wit/scheduler-policy.wit");
const ROUTER_WIT: &str = include_str!("../../../../../../wit/router.wit");
const AUTOSCALER_WIT: &str = include_str!("../../../../../../wit/autoscaler.wit");

/// Joins interface files into one package: a world and the files that it uses.
pub(crate) fn package(files: &[&str]) -> String {
    let rest = |text: &&str| {
        text[text.find("package vcr:guest@").expect("a file names its package")..].replacen(
            "package vcr:guest@0.1.0;",
            "",
            1,
        )
    };
    format!("package vcr:guest@0.1.0;\n{}", files.iter().map(rest).collect::<Vec<_>>().join("\n"))
}

/// The package of a world without telemetry.
fn silent(world: &str) -> String {
    package(&[&world.replace("import observe;", ""), TYPES_WIT])
}

/// The package of latency models without telemetry.
pub(crate) fn latency_wit() -> String {
    silent(LATENCY_WIT)
}

pub(crate) const CONFIGURE_OK: &str = "(i32.store8 (i32.const 16) (i32.const 0)) (i32.const 16)";

/// `price-step` returns the result of `price-decodes` for one step, as the interface demands.
pub(crate) const STEP_AS_RUN: &str = "
    (local.set $result
      (call $price (local.get $start) (local.get $start) (i64.const 0) (i64.const 0) (i64.const 0) (i64.const 0)
        (i32.const 4096) (i32.const 1) (i64.const 0) (i64.const 0) (i64.const 0)))
    (if (result i32) (i32.load8_u (local.get $result))
      (then
        (i32.store8 (i32.const 64) (i32.const 1))
        (i32.store (i32.const 72) (i32.load offset=4 (local.get $result)))
        (i32.store (i32.const 76) (i32.load offset=8 (local.get $result)))
        (i32.const 64))
      (else
        (i32.store8 (i32.const 64) (i32.const 0))
        (f64.store (i32.const 72) (f64.load (i32.load offset=4 (local.get $result))))
        (i32.const 64)))";

/// Returns `Ok` from `price-step` with the duration of this expression.
pub(crate) fn answer_step(duration: &str) -> String {
    format!("(i32.store8 (i32.const 64) (i32.const 0)) (f64.store (i32.const 72) {duration}) (i32.const 64)")
}

/// Bodies of a guest's functions.
#[derive(Clone, Copy)]
pub(crate) struct Bodies<'a> {
    pub(crate) configure: &'a str,
    pub(crate) price: &'a str,
    pub(crate) price_step: &'a str,
}

impl<'a> Bodies<'a> {
    /// A guest whose `configure` succeeds, and whose two pricing functions return the same price.
    pub(crate) fn of_price(price: &'a str) -> Self {
        Self { configure: CONFIGURE_OK, price, price_step: STEP_AS_RUN }
    }

    /// A guest whose `price-decodes` traps.
    pub(crate) fn of_step(price_step: &'a str) -> Self {
        Self { price_step, ..Self::of_price("(unreachable)") }
    }

    pub(crate) fn component(&self) -> Vec<u8> {
        component(&core_text("0.1.0", self), &latency_wit())
    }

    /// A component that imports the functions of `observe` as `$count`, `$gauge`, `$annotate` and `$log`.
    pub(crate) fn telling_component(&self) -> Vec<u8> {
        let text = with_imports(&core_text("0.1.0", self), OBSERVE_IMPORTS);
        component(&text, &package(&[LATENCY_WIT, TYPES_WIT, OBSERVE_WIT]))
    }

    pub(crate) fn components(&self) -> [Vec<u8>; 2] {
        [self.component(), self.telling_component()]
    }

    pub(crate) fn model(&self) -> Box<dyn LatencyModel> {
        open(&self.component()).latency_model("{}", 7).expect("it configures")
    }
}

/// Imports of `observe` in a core module.
const OBSERVE_IMPORTS: &str = r#"
  (import "vcr:guest/observe@0.1.0" "count" (func $count (param i32 i32 i64)))
  (import "vcr:guest/observe@0.1.0" "gauge" (func $gauge (param i32 i32 i64 f64)))
  (import "vcr:guest/observe@0.1.0" "annotate" (func $annotate (param i64 i32 i32)))
  (import "vcr:guest/observe@0.1.0" "log" (func $log (param i32 i32)))"#;

/// Imports of `requests` in a core module.
pub(crate) const REQUESTS_IMPORTS: &str = r#"
  (import "vcr:guest/requests@0.1.0" "refuse" (func $refuse (param i32 i32 i32)))"#;

/// Imports of `drafts` in a core module.
pub(crate) const DRAFTS_IMPORTS: &str = r#"
  (import "vcr:guest/drafts@0.1.0" "accept" (func $accept (param i32 i32)))"#;

/// Adds imports to the text of a core module; they must come first.
pub(crate) fn with_imports(core_text: &str, imports: &str) -> String {
    core_text.replacen("(module", &format!("(module{imports}"), 1)
}

/// The text of a latency model with these bodies.
pub(crate) fn core_text(api: &str, bodies: &Bodies<'_>) -> String {
    let Bodies { configure, price, price_step } = bodies;
    let configure = configure_text(&format!("vcr:guest/latency@{api}"), configure).replace(
        "(param $seed i64)",
        "(param $seed i64) (param $tensor i32) (param $pipeline i32) (param $total_blocks i64) (param $block_size i64)
    (param $groups i32) (param $groups_len i32)",
    );
    module_text(&format!(
        r#"{configure}
  (func $price (export "vcr:guest/latency@{api}#price-decodes")
    (param $start i64) (param $horizon i64) (param $requests i64) (param i64) (param $context i64) (param i64)
    (param $blocks i32) (param $steps i32) (param $waiting i64) (param i64 i64) (result i32)
    (local $index i32)
    {BEGIN_CALL}
    {price})
  (func (export "vcr:guest/latency@{api}#price-step")
    (param $start i64) (param $field0 i64)
    (param i64 i64 i64 i64 i64 i64 i64 i64 i64 i64) (param $waiting i64) (param i64) (param $adapters i64)
    (param $adapter_tokens i64) (result i32)
    (local $result i32)
    {price_step})"#
    ))
}

pub(crate) fn token_source(step: &str) -> Vec<u8> {
    component(&token_source_text(step), &tokens_wit())
}

/// A token source that imports `$refuse`.
pub(crate) fn refusing_source(step: &str) -> Vec<u8> {
    component(&with_imports(&token_source_text(step), REQUESTS_IMPORTS), &tokens_wit())
}

/// A token source that imports `$accept`.
pub(crate) fn accepting_source(step: &str) -> Vec<u8> {
    component(&with_imports(&token_source_text(step), DRAFTS_IMPORTS), &tokens_wit())
}

fn tokens_wit() -> String {
    silent(TOKENS_WIT)
}

fn token_source_text(step: &str) -> String {
    let configure = configure_text("vcr:guest/tokens@0.1.0", CONFIGURE_OK);
    module_text(&format!(
        r#"{configure}
  (func (export "vcr:guest/tokens@0.1.0#step")
    (param $started i32) (param $started_len i32) (param $ended i32) (param $ended_len i32)
    (param $slots i32) (param $wants_len i32) (param $first i32) (param i32) (param $counts i32) (param i32)
    (result i32)
    {BEGIN_CALL}
    {step})"#
    ))
}

pub(crate) fn failure_injector(decide: &str) -> Vec<u8> {
    let configure = configure_text("vcr:guest/faults@0.1.0", CONFIGURE_OK);
    let text = module_text(&format!(
        r#"{configure}
  (func (export "vcr:guest/faults@0.1.0#decide")
    (param $now i64) (param $step i64) (param $events i32) (param $events_len i32) (result i32)
    (local $index i32)
    {BEGIN_CALL}
    {decide})"#
    ));
    component(&text, &silent(FAULTS_WIT))
}

pub(crate) fn scheduler_policy(decide: &str) -> Vec<u8> {
    let configure = configure_text("vcr:guest/scheduling@0.1.0", CONFIGURE_OK);
    let text = module_text(&format!(
        r#"{configure}
  (func (export "vcr:guest/scheduling@0.1.0#decide")
    (param $now i64) (param $budget i32) (param $running_slots i32) (param $free_blocks i32) (param $total_blocks i32)
    (param $block_size i32) (param $events i32) (param $events_len i32) (param $slots i32) (param $progress_len i32)
    (param $computed i32) (param i32) (param $outputs i32) (param i32) (result i32)
    (local $index i32)
    {BEGIN_CALL}
    {decide})"#
    ));
    component(&text, &silent(SCHEDULING_WIT))
}

/// A router with the given body of `route`. Its arguments are at the address `$call`.
pub(crate) fn router(route: &str) -> Vec<u8> {
    let configure = configure_text("vcr:guest/routing@0.1.0", CONFIGURE_OK);
    let text = module_text(&format!(
        r#"{configure}
  (func (export "vcr:guest/routing@0.1.0#route") (param $call i32) (result i32)
    {BEGIN_CALL}
    {route})"#
    ));
    component(&text, &silent(ROUTER_WIT))
}

/// Returns `Ok` from `route` with the engine of this expression.
pub(crate) fn answer_worker(worker: &str) -> String {
    format!(
        "(i32.store8 (i32.const 32) (i32.const 0)) (i32.store8 (i32.const 36) (i32.const 0))
        (i32.store (i32.const 40) {worker}) (i32.const 32)"
    )
}

/// Returns `Ok` from `route` with a refusal.
pub(crate) const ANSWER_REFUSAL: &str =
    "(i32.store8 (i32.const 32) (i32.const 0)) (i32.store8 (i32.const 36) (i32.const 1)) (i32.const 32)";

pub(crate) fn autoscaler(decide: &str) -> Vec<u8> {
    component(&autoscaler_text(decide), &silent(AUTOSCALER_WIT))
}

pub(crate) fn autoscaler_text(decide: &str) -> String {
    let configure = configure_text("vcr:guest/scaling@0.1.0", CONFIGURE_OK);
    module_text(&format!(
        r#"{configure}
  (func (export "vcr:guest/scaling@0.1.0#decide") (param $pool i32) (result i32)
    {BEGIN_CALL}
    {decide})"#
    ))
}

/// Returns `Ok` with the number of this expression.
pub(crate) fn answer_number(number: &str) -> String {
    format!("(i32.store8 (i32.const 32) (i32.const 0)) (i32.store (i32.const 36) {number}) (i32.const 32)")
}

/// Start of every call except `configure`: resets the allocator, because the memory of the previous call is free.
const BEGIN_CALL: &str = "(global.set $free (i32.const 8192))
    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))";

fn configure_text(interface: &str, configure: &str) -> String {
    format!(
        r#"(func (export "{interface}#configure")
    (param $config i32) (param $config_len i32) (param $seed i64) (result i32)
    {configure})"#
    )
}

/// A core module with these functions, and all that their bodies may use.
fn module_text(functions: &str) -> String {
    format!(
        r#"(module
  (memory (export "memory") 1)
  (table $table 1 funcref)
  (global $free (mut i32) (i32.const 8192))
  (global $calls (mut i32) (i32.const 0))
  (data (i32.const 512) "`factor` is 0, but must be above 0")
  ;; A bump allocator.
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (local $at i32)
    (local.set $at
      (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
    (global.set $free (i32.add (local.get $at) (local.get 3)))
    (if (i32.gt_u (global.get $free) (i32.mul (memory.size) (i32.const 65536)))
      (then (drop (memory.grow (i32.add (i32.shr_u (local.get 3) (i32.const 16)) (i32.const 1))))))
    (local.get $at))
  (func $recurse (param i64) (result i64)
    (i64.add (call $recurse (i64.add (local.get 0) (i64.const 1))) (local.get 0)))
  {functions}
)"#
    )
}

/// Returns `Ok` with `durations` from `price-decodes`.
pub(crate) fn answer(durations: &[&str]) -> String {
    let stores: String = durations
        .iter()
        .enumerate()
        .map(|(index, value)| format!("(f64.store (i32.const {}) (f64.const {value}))\n    ", 1024 + 8 * index))
        .collect();
    format!("{stores}{}", answer_list(1024, durations.len()))
}

/// Returns `Ok` with `words` as a list of the integer type `of`.
pub(crate) fn answer_words(of: &str, words: &[u64]) -> String {
    let bytes = if of == "i64" { 8 } else { 4 };
    let stores: String = words
        .iter()
        .enumerate()
        .map(|(index, word)| format!("({of}.store (i32.const {}) ({of}.const {word}))\n    ", 1024 + bytes * index))
        .collect();
    format!("{stores}{}", answer_list(1024, words.len()))
}

/// Returns `Ok` with the `length` numbers at `address`.
pub(crate) fn answer_list(address: usize, length: usize) -> String {
    answer_at(&format!("(i32.const {address})"), &format!("(i32.const {length})"))
}

/// Returns `Ok` with a list whose address and length are expressions.
pub(crate) fn answer_at(address: &str, length: &str) -> String {
    format!(
        "(i32.store8 (i32.const 32) (i32.const 0))
    (i32.store (i32.const 36) {address})
    (i32.store (i32.const 40) {length})
    (i32.const 32)"
    )
}

/// Returns `Err` with the text of the data segment. The result is stored at `at`.
pub(crate) fn answer_error(at: usize) -> String {
    format!(
        "(i32.store8 (i32.const {at}) (i32.const 1))
    (i32.store (i32.const {}) (i32.const 512))
    (i32.store (i32.const {}) (i32.const 34))
    (i32.const {at})",
        at + 4,
        at + 8
    )
}

/// Makes a component from a core module's text and the only world of the package `wit`.
pub(crate) fn component(core_text: &str, wit: &str) -> Vec<u8> {
    let mut module = wat::parse_str(core_text).expect("the text is WebAssembly");
    let mut resolve = Resolve::default();
    let package = resolve.push_str("test.wit", wit).expect("the WIT parses");
    let world = resolve.select_world(&[package], None).expect("it has one world");
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("the world can be embedded");
    ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .and_then(|mut encoder| encoder.encode())
        .expect("the module fits the world")
}

pub(crate) fn open(bytes: &[u8]) -> GuestModule {
    GuestModule::from_bytes("hostile", bytes, Limits::default()).expect("it loads")
}

/// A configured model of a guest with this body of `price`.
pub(crate) fn model(price: &str) -> Box<dyn LatencyModel> {
    Bodies::of_price(price).model()
}

/// Prices `steps` empty steps from 1000 ns on and returns the durations or the error text.
pub(crate) fn price(model: &mut dyn LatencyModel, steps: usize, horizon_ns: u64) -> Result<Vec<u64>, String> {
    let shapes = vec![StepShape::default(); steps];
    let batch = StepBatch { start_ns: 1_000, horizon_ns, shapes: &shapes };
    let mut durations_ns = vec![77];
    let result = model.price(&batch, &mut durations_ns);
    assert_eq!(durations_ns.remove(0), 77, "what was there stays");
    match result {
        Ok(()) => Ok(durations_ns),
        Err(error) => {
            assert!(durations_ns.is_empty(), "a failed call leaves nothing behind");
            Err(error.to_string())
        }
    }
}
