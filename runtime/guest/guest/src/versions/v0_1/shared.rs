//! Interfaces shared by all worlds: types, and the imports of guests.

use vcr_core::policy::Slo;
use wasmtime::component::{HasSelf, Linker};

use crate::error::CallFault;
use crate::sandbox::{HostState, Refused};
use crate::versions::instance::Failure;

use bindings::vcr::guest::{details, drafts, groups, observe, requests, types};

#[allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    reason = "generated code follows the rules of its generator"
)]
pub(super) mod bindings {
    wasmtime::component::bindgen!({
        path: "../../../wit",
        inline: "
            package vcr:host;

            world shared {
                import vcr:guest/types@0.1.0;
                import vcr:guest/observe@0.1.0;
                import vcr:guest/requests@0.1.0;
                import vcr:guest/drafts@0.1.0;
                import vcr:guest/groups@0.1.0;
                import vcr:guest/details@0.1.0;
            }
        ",
        imports: { default: trappable },
    });
}

/// Adds the imports available to every guest.
pub(super) fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    observe::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state)
}

/// Adds the imports available to a latency model.
///
/// # Errors
/// When they were added already.
pub(super) fn link_latency(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    link(linker)?;
    groups::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state)
}

/// Adds the imports available to a router.
///
/// # Errors
/// When they were added already.
pub(super) fn link_router(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    link(linker)?;
    details::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state)
}

/// Adds the imports of all worlds.
///
/// # Errors
/// When they were added already.
pub(crate) fn link_all(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    link_source(linker)?;
    groups::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state)?;
    details::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state)
}

/// Adds the imports available to a token source.
///
/// # Errors
/// When they were added already.
pub(super) fn link_source(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    link(linker)?;
    requests::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state)?;
    drafts::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state)
}

impl From<types::Failure> for Failure {
    fn from(types::Failure { message, traceback }: types::Failure) -> Self {
        Self { message, traceback }
    }
}

impl From<Slo> for types::Slo {
    fn from(Slo { ttft_ns, tpot_ns, e2e_ns }: Slo) -> Self {
        Self { ttft_ns, tpot_ns, e2e_ns }
    }
}

impl types::Host for HostState {}

impl observe::Host for HostState {
    fn count(&mut self, name: String, by: u64) -> wasmtime::Result<()> {
        self.telemetry.count(&name, by).map_err(refused)
    }

    fn gauge(&mut self, name: String, at_ns: u64, value: f64) -> wasmtime::Result<()> {
        self.telemetry.gauge(&name, at_ns, value).map_err(refused)
    }

    fn annotate(&mut self, at_ns: u64, text: String) -> wasmtime::Result<()> {
        self.telemetry.annotate(at_ns, &text).map_err(refused)
    }

    fn log(&mut self, text: String) -> wasmtime::Result<()> {
        self.telemetry.log(&text).map_err(refused)
    }
}

impl requests::Host for HostState {
    fn refuse(&mut self, slot: u32, reason: String) -> wasmtime::Result<()> {
        self.remarks.refuse(slot, reason).map_err(refused)
    }
}

impl drafts::Host for HostState {
    fn accept(&mut self, slot: u32, count: u32) -> wasmtime::Result<()> {
        self.remarks.accept(slot, count).map_err(refused)
    }
}

impl groups::Host for HostState {
    fn shapes(&mut self) -> wasmtime::Result<groups::KvGroupShapes> {
        let shapes = self.kv_groups.as_deref().unwrap_or_default();
        Ok(groups::KvGroupShapes {
            prefill_attention_pairs: shapes.iter().map(|shape| shape.prefill_attention_pairs).collect(),
            decode_context_tokens: shapes.iter().map(|shape| shape.decode_context_tokens).collect(),
        })
    }
}

impl details::Host for HostState {
    fn omit(&mut self) -> wasmtime::Result<()> {
        self.omits_details = true;
        Ok(())
    }
}

fn refused(fault: CallFault) -> wasmtime::Error {
    wasmtime::Error::new(Refused(fault))
}
