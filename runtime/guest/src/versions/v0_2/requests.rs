//! The interface by which token sources refuse requests.

use wasmtime::component::{HasSelf, Linker};

use crate::sandbox::{HostState, Refused};
use crate::versions::v0_2::observe;

use bindings::vcr::guest::requests as generated;

#[allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    reason = "generated code follows the rules of its generator"
)]
pub(super) mod bindings {
    wasmtime::component::bindgen!({
        path: "../../wit/v0_2",
        inline: "
            package vcr:host;

            world refusing {
                import vcr:guest/requests@0.2.0;
            }
        ",
        imports: { default: trappable },
    });
}

/// Offers everything that a token source may import.
///
/// # Errors
/// When it is offered already.
pub(super) fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    observe::link(linker)?;
    generated::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state)
}

impl generated::Host for HostState {
    fn refuse(&mut self, slot: u32, reason: String) -> wasmtime::Result<()> {
        self.refusals.add(slot, reason).map_err(|fault| wasmtime::Error::new(Refused(fault)))
    }
}
