//! The one interface that guests of this version may import, whatever their
//! world.

use wasmtime::component::{HasSelf, Linker};

use crate::error::CallFault;
use crate::sandbox::{HostState, Refused};
use crate::versions::worlds::generated;

use bindings::vcr::guest::observe as interface;

generated! {
    path: "../../wit/v0_2",
    inline: "
        package vcr:host;

        world observer {
            import vcr:guest/observe@0.2.0;
        }
    ",
    imports: { default: trappable },
}

/// Offers the interface.
///
/// # Errors
/// When it is offered already.
pub(super) fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    interface::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state)
}

impl interface::Host for HostState {
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

fn refused(fault: CallFault) -> wasmtime::Error {
    wasmtime::Error::new(Refused(fault))
}
