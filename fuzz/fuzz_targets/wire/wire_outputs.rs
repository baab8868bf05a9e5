//! No bytes may panic the reader of outputs, and accepted ones must survive being written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcr_wire::{EngineCoreOutputs, EngineMessage, Protocol, VllmMinor};

fuzz_target!(|bytes: &[u8]| {
    let Ok(EngineMessage::Outputs(outputs)) = EngineMessage::decode(&[bytes]) else { return };
    for output in &outputs.outputs {
        for logprobs in output.new_logprobs.iter().chain(&output.new_prompt_logprobs_tensors) {
            // The frame of the message stands in for a frame of tensor bytes.
            _ = logprobs.rows(&[bytes.to_vec()]);
        }
    }
    for version in VllmMinor::ALL {
        let written = encoded(&outputs, version);
        let again = EngineCoreOutputs::decode(&written).expect("it was written by us");
        // As bytes: a float that is not a number equals nothing, not even itself.
        assert_eq!(encoded(&again, version), written);
    }
});

fn encoded(outputs: &EngineCoreOutputs, version: VllmMinor) -> Vec<u8> {
    let mut out = Vec::new();
    outputs.encode(&mut out, version.rules());
    out
}
