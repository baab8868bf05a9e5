//! Builds the guest and calls it thousands of times in the real host.
//!
//! Needs the program `vcr` on the `PATH`, or its path in the variable `VCR`.

use vcr_guest_harness::Host;

const CONFIG: &str = include_str!("../config.json");

#[test]
fn the_guest_passes_every_check() {
    let Some(host) = Host::find() else { return };
    let guest = host.build(env!("CARGO_MANIFEST_DIR")).expect("it builds");
    let report = guest.check(CONFIG, 7).expect("it can be checked");
    report.assert_passed();
    assert_eq!(report.world, "{{world}}");
    // The guest is called for every step, so its cost matters.
    for call in &report.calls {
        assert!(call.fuel_most.share < 0.5, "`{}` nears its limit: {:?}", call.function, call.fuel_most);
    }
}

#[test]
fn a_misspelt_key_is_named() {
    let Some(host) = Host::find() else { return };
    let guest = host.build(env!("CARGO_MANIFEST_DIR")).expect("it builds");
    let error = guest.check(r#"{"no_such_key": 1}"#, 7).expect_err("there is no such key");
    assert!(error.to_string().contains("no_such_key"), "{error}");
}
