//! Loads files that are guests, and files that are not.

use vcr_guest::{GuestError, GuestModule, Limits, World};

use crate::components::wat::{
    Bodies, answer, component, core_text, failure_injector, latency_wit, price, token_source,
};

#[track_caller]
fn load_error(bytes: &[u8]) -> GuestError {
    GuestModule::from_bytes("odd", bytes, Limits::default()).expect_err("it must not load")
}

#[track_caller]
fn assert_refused(bytes: &[u8], message: &str, hint: &str) {
    let error = load_error(bytes);
    assert_eq!(error.to_string(), format!("cannot load guest `odd`: {message}"));
    let expected = error.hint().expect("there is something to do");
    assert!(expected.contains(hint), "{expected}");
}

fn of_version(version: &str) -> Vec<u8> {
    let text = core_text(version, &Bodies::of_price(&answer(&["4"])));
    component(&text, &latency_wit().replace("vcr:guest@0.1.0", &format!("vcr:guest@{version}")))
}

#[test]
fn a_guest_of_this_version_loads_and_is_described() {
    let module = GuestModule::from_bytes("plain", &of_version("0.1.0"), Limits::default()).expect("it loads");
    assert_eq!(module.name(), "plain");
    assert_eq!(module.api_version().to_string(), "0.1.0");
    assert_eq!(module.digest().len(), 64);
    assert!(module.digest().bytes().all(|byte| byte.is_ascii_hexdigit()));
}

#[test]
fn another_patch_of_a_supported_version_runs() {
    let module = GuestModule::from_bytes("patched", &of_version("0.1.3"), Limits::default()).expect("it loads");
    assert_eq!(module.api_version().to_string(), "0.1.3");
    let mut model = module.latency_model("{}", 1).expect("it configures");
    assert_eq!(price(model.as_mut(), 1, u64::MAX), Ok(vec![4]));
}

#[test]
fn an_unknown_version_is_named() {
    assert_refused(
        &of_version("0.9.0"),
        "it declares guest API 0.9.0, but this build supports 0.1",
        "rebuild the guest with the interface of this build (`vcr guest wit`)",
    );
}

#[test]
fn a_component_of_another_world_is_refused() {
    let wit = "package other:thing@1.0.0; world latency-model { export run: func() -> u32; }";
    let text = r#"(module (func (export "run") (result i32) (i32.const 1)))"#;
    assert_refused(
        &component(text, wit),
        "it is not a guest: expected an export among `vcr:guest/latency`, `vcr:guest/scheduling`, `vcr:guest/routing`, \
         `vcr:guest/scaling`, `vcr:guest/faults`, `vcr:guest/tokens`, got `run`",
        "export one world of `vcr guest wit`; with the SDK: `export_latency_model!`, `export_scheduler_policy!`, \
         `export_router!`, `export_autoscaler!`, `export_failure_injector!` or `export_token_source!`",
    );
}

#[test]
fn a_guest_knows_its_world_and_serves_no_other() {
    let latency = Bodies::of_price(&answer(&["1"])).component();
    let guests = [
        (World::LatencyModel, latency),
        (World::TokenSource, token_source("(unreachable)")),
        (World::FailureInjector, failure_injector("(unreachable)")),
    ];
    for (world, bytes) in &guests {
        let module = GuestModule::from_bytes("odd", bytes, Limits::default()).expect("it loads");
        assert_eq!(module.world(), *world);
        let outcomes = [
            (World::LatencyModel, module.latency_model("{}", 1).err()),
            (World::TokenSource, module.token_source("{}", 1).err()),
            (World::FailureInjector, module.failure_injector("{}", 1).err()),
        ];
        for (wanted, error) in outcomes {
            assert_eq!(error.is_none(), wanted == *world, "{world} as {wanted}");
            let Some(error) = error else { continue };
            let (found_name, wanted_name) = (world.name(), wanted.name());
            let expected =
                format!("it is a {world} (world `{found_name}`), but a {wanted} (world `{wanted_name}`) is needed");
            assert_eq!(error.to_string(), format!("cannot load guest `odd`: {expected}"));
            assert!(error.hint().is_some_and(|hint| hint.contains(wanted_name)), "{:?}", error.hint());
        }
    }
}

#[test]
fn a_guest_of_two_worlds_is_refused() {
    let wit = "package vcr:guest@0.1.0;
        interface latency { answer: func() -> u32; }
        interface faults { answer: func() -> u32; }
        world both { export latency; export faults; }";
    let text = r#"(module
        (func (export "vcr:guest/latency@0.1.0#answer") (result i32) (i32.const 1))
        (func (export "vcr:guest/faults@0.1.0#answer") (result i32) (i32.const 1)))"#;
    assert_refused(
        &component(text, wit),
        "it is both a latency model and a failure injector: expected one world",
        "export one world",
    );
}

#[test]
fn a_component_with_imports_is_refused() {
    let wit = latency_wit().replace("export latency;", "import clock: func() -> u64; export latency;");
    let text = core_text("0.1.0", &Bodies::of_price(&answer(&["1"]))).replacen(
        "(module",
        r#"(module (import "$root" "clock" (func $clock (result i64)))"#,
        1,
    );
    assert_refused(&component(&text, &wit), "it imports `clock`, which is not granted", "without WASI");
}

#[test]
fn a_core_module_is_refused() {
    let module = wat::parse_str("(module (memory 1))").expect("the text is WebAssembly");
    assert_refused(&module, "it is a core module, not a component", "vcr guest build");
}

#[test]
fn files_that_are_no_webassembly_are_refused() {
    assert_refused(b"", "the file is empty", "guests/dist");
    assert_refused(b"fn main() {}\n", "it is not a WebAssembly file", "guests/dist");
    assert_refused(b"\0as", "it is not a WebAssembly file", "guests/dist");
}

#[test]
fn a_truncated_component_is_refused_at_every_length() {
    let whole = Bodies::of_price(&answer(&["1"])).component();
    for length in (4..whole.len()).step_by(37) {
        let text = load_error(&whole[..length]).to_string();
        assert!(text.starts_with("cannot load guest `odd`: "), "{text}");
    }
    let text = load_error(&whole[..whole.len() / 2]).to_string();
    assert!(text.contains("the component is damaged: unexpected end"), "{text}");
}

/// A damaged file never crashes the host.
#[test]
fn flipped_bytes_never_panic_the_host() {
    let whole = Bodies::of_price(&answer(&["1"])).component();
    for position in (8..whole.len()).step_by(29) {
        let mut damaged = whole.clone();
        damaged[position] ^= 0x5a;
        if let Ok(module) = GuestModule::from_bytes("odd", &damaged, Limits::default())
            && let Ok(mut model) = module.latency_model("{}", 1)
        {
            let _ = price(model.as_mut(), 2, u64::MAX);
            let _ = price(model.as_mut(), 1, u64::MAX);
        }
    }
}

#[test]
fn a_function_of_another_type_does_not_fit() {
    let wit = latency_wit().replace("result<list<f64>, failure>", "result<list<s64>, failure>");
    let bytes = component(&core_text("0.1.0", &Bodies::of_price(&answer(&["1"]))), &wit);
    let text = load_error(&bytes).to_string();
    assert!(text.starts_with("cannot load guest `odd`: it does not fit the interface that it declares: "), "{text}");
    assert!(text.ends_with("expected `f64` found `s64`"), "{text}");
}

#[test]
fn a_missing_function_does_not_fit() {
    let wit = latency_wit();
    let step = wit.lines().find(|line| line.contains("price-step: func")).expect("there is such a function");
    let wit = wit.replace(step, "");
    let answer = answer(&["1"]);
    let text = core_text("0.1.0", &Bodies::of_price(&answer))
        .replace(r#"(func (export "vcr:guest/latency@0.1.0#price-step")"#, "(func");
    let text = load_error(&component(&text, &wit)).to_string();
    assert!(text.contains("it does not fit the interface that it declares: "), "{text}");
    assert!(text.contains("does not have export `price-step`"), "{text}");
}

#[test]
fn a_missing_file_is_named_with_the_way_out() {
    let error = GuestModule::load("no/such/guest.wasm", Limits::default()).expect_err("missing");
    assert!(error.to_string().starts_with("cannot read guest `no/such/guest.wasm`: "), "{error}");
    assert_eq!(error.hint().as_deref(), Some("build the guest first: `vcr guest build`"));
}

#[test]
fn a_component_over_the_size_limit_is_refused() {
    let limits = Limits { component_bytes: 100, ..Limits::default() };
    let bytes = Bodies::of_price(&answer(&["1"])).component();
    let error = GuestModule::from_bytes("odd", &bytes, limits).expect_err("too large");
    assert!(error.to_string().ends_with("bytes, but may have 100"), "{error}");
}
