//! No bytes may panic the readers of observations, and accepted ones are written and read again
//! without a change. The first byte chooses the format.
#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use vcr_gate::{Format, MirrorOptions, Observation, ObservationReader, Side};

/// Without fractions, whose last bit a decoder of JSON may change.
fn whole(observation: &Observation<'_>) -> String {
    let plain = Observation { vector: None, kv_usage: None, ..observation.clone() };
    serde_json::to_string(&plain).expect("it is JSON")
}

fuzz_target!(|bytes: &[u8]| {
    let [which, file @ ..] = bytes else { return };
    let format = Format::ALL[usize::from(*which) % Format::ALL.len()];
    let options = MirrorOptions { lengths: which & 128 != 0, ..MirrorOptions::default() };
    let mut side = Side::new();
    side.begin("file");
    let _ = vcr_gate::mirror::read_stream(file, "file", format, None, &options, &mut |observation, place| {
        let mut written = Vec::new();
        observation.write(&mut written).expect("a vector takes everything");
        let mut reader = ObservationReader::new(&written[..], "written");
        let (_, again) = reader.next_observation().expect("what was written can be read").expect("it is there");
        assert_eq!(whole(&again), whole(observation));
        side.add(observation, place)?;
        Ok(ControlFlow::Continue(()))
    });
    let _ = side.finish();
});
