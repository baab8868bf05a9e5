//! The interface by which token sources refuse requests.

use wasmtime::component::{HasSelf, Linker};

use crate::sandbox::{HostState, Refused};
use crate::versions::v0_2::observe;
use crate::versions::worlds::generated;

use bindings::vcr::guest::requests as interface;

generated! {
    path: "../../wit/v0_2",
    inline: "
        package vcr:host;

        world refusing {
            import vcr:guest/requests@0.2.0;
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
    interface::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state)
}

impl interface::Host for HostState {
    fn refuse(&mut self, slot: u32, reason: String) -> wasmtime::Result<()> {
        self.refusals.add(slot, reason).map_err(|fault| wasmtime::Error::new(Refused(fault)))
    }
}
