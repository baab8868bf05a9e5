//! The interfaces by which token sources remark on requests: refuse them, or accept drafts of them.

use wasmtime::component::{HasSelf, Linker};

use crate::sandbox::{HostState, Refused};
use crate::versions::v0_2::observe;
use crate::versions::worlds::generated;

use bindings::vcr::guest::{drafts, requests};

generated! {
    path: "../../wit/v0_2",
    inline: "
        package vcr:host;

        world remarking {
            import vcr:guest/requests@0.2.0;
            import vcr:guest/drafts@0.2.0;
        }
    ",
    imports: { default: trappable },
}

/// Offers everything that a token source may import.
///
/// # Errors
/// When it is offered already.
pub(super) fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    observe::link(linker)?;
    requests::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state)?;
    drafts::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state)
}

impl requests::Host for HostState {
    fn refuse(&mut self, slot: u32, reason: String) -> wasmtime::Result<()> {
        self.remarks.refuse(slot, reason).map_err(|fault| wasmtime::Error::new(Refused(fault)))
    }
}

impl drafts::Host for HostState {
    fn accept(&mut self, slot: u32, count: u32) -> wasmtime::Result<()> {
        self.remarks.accept(slot, count).map_err(|fault| wasmtime::Error::new(Refused(fault)))
    }
}
