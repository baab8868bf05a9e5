//! Stand-in for WASI in builds without the feature `wasi`: refuses grants with an error that names the feature.

use std::sync::Arc;

use wasmtime::component::Linker;

use crate::observe::NoteSink;
use crate::sandbox::HostState;
use crate::wasi::WasiGrants;

/// Never constructed.
pub(crate) enum WasiState {}

impl WasiState {
    pub(crate) fn new(
        _grants: WasiGrants,
        _seed: u64,
        _output_bytes: u64,
        _sink: Option<Arc<dyn NoteSink>>,
    ) -> Option<Box<Self>> {
        None
    }

    pub(crate) fn set_now(&self, _now_ns: u64) {
        match *self {}
    }
}

pub(crate) fn link(_linker: &mut Linker<HostState>, grants: WasiGrants) -> wasmtime::Result<()> {
    if grants.is_nothing() {
        return Ok(());
    }
    wasmtime::bail!("this build of vcr lacks the feature `wasi`, which its imports need; build it with --features full")
}
