//! Tests support of older API versions with a made-up one. It has its own WIT file, bindings and adapter, and one
//! world: its autoscalers see only running and waiting requests, and return how many engines to add.

use vcr_core::scale::{Autoscaler, PoolView};
use wasmtime::component::{Component, Linker};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use crate::error::CallFault;
use crate::latest::{Maker, OpenGuest, ScalerInstance, Setup};
use crate::limits::{Budget, Limits};
use crate::module::GuestModule;
use crate::sandbox::HostState;
use crate::versions::OpenError;
use crate::versions::instance::{Failure, Instance, Module, impl_bindings};
use crate::world::World;

use bindings::Autoscaler as Bindings;

const WIT: &str = "
    package vcr:guest@0.0.1;

    interface scaling {
      configure: func(config: string, seed: u64) -> result<_, string>;
      grow: func(running-requests: u64, waiting-requests: u64) -> result<s32, string>;
    }

    world autoscaler { export scaling; }";

#[allow(unreachable_pub, clippy::all, reason = "generated code follows the rules of its generator")]
mod bindings {
    wasmtime::component::bindgen!({
        inline: "
            package vcr:guest@0.0.1;

            interface scaling {
              configure: func(config: string, seed: u64) -> result<_, string>;
              grow: func(running-requests: u64, waiting-requests: u64) -> result<s32, string>;
            }

            world autoscaler { export scaling; }",
    });
}

impl_bindings!(Bindings, bindings::AutoscalerPre<HostState>, (), vcr_guest_scaling);

/// In this version a failure is only a string.
impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { message, traceback: None }
    }
}

impl Maker<dyn ScalerInstance> for Module<Bindings> {
    fn configure(&self, setup: Setup<'_>) -> Result<Box<dyn ScalerInstance>, CallFault> {
        Ok(Box::new(self.configured(setup)?))
    }
}

impl ScalerInstance for Instance<Bindings> {
    fn decide(&mut self, view: &PoolView, budget: Budget) -> Result<u32, CallFault> {
        let growth = self.call(budget, |guest, store, ()| {
            guest.vcr_guest_scaling().call_grow(store, view.running_requests, view.waiting_requests)
        })?;
        Ok((view.up_engines + view.starting_engines).saturating_add_signed(growth))
    }
}

pub(super) fn open(world: World, component: &Component, limits: &Limits) -> Result<OpenGuest, OpenError> {
    match world {
        World::Autoscaler => {
            Ok(OpenGuest::Scaler(Box::new(Module::<Bindings>::new(component, limits, offer_nothing)?)))
        }
        other => Err(OpenError::Unfit(format!("version 0.0 has no world `{}`", other.name()))),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "later versions offer something, which can fail")]
fn offer_nothing(_linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    Ok(())
}

/// A component of the made-up version that adds as many engines as there are waiting requests.
fn component() -> Vec<u8> {
    let text = r#"(module
        (memory (export "memory") 1)
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
        (func (export "vcr:guest/scaling@0.0.1#configure") (param i32 i32 i64) (result i32)
            (i32.store8 (i32.const 16) (i32.const 0)) (i32.const 16))
        (func (export "vcr:guest/scaling@0.0.1#grow") (param $running i64) (param $waiting i64) (result i32)
            (i32.store8 (i32.const 32) (i32.const 0))
            (i32.store (i32.const 36) (i32.wrap_i64 (local.get $waiting)))
            (i32.const 32)))"#;
    let mut module = wat::parse_str(text).expect("the text is WebAssembly");
    let mut resolve = Resolve::default();
    let package = resolve.push_str("old.wit", WIT).expect("the WIT parses");
    let world = resolve.select_world(&[package], None).expect("it has one world");
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("the world can be embedded");
    let encoder = ComponentEncoder::default().validate(true).module(&module);
    encoder.and_then(|mut encoder| encoder.encode()).expect("the module fits the world")
}

#[test]
fn a_guest_of_an_older_version_is_served_beside_those_of_this_one() {
    let module = GuestModule::from_bytes("old", &component(), Limits::default()).expect("it loads");
    assert_eq!((module.api_version().to_string(), module.world()), ("0.0.1".to_owned(), World::Autoscaler));
    let mut scaler: Box<dyn Autoscaler> = module.make("{}", 1).expect("it configures");
    let view = PoolView { up_engines: 2, starting_engines: 1, waiting_requests: 4, ..PoolView::default() };
    assert_eq!(scaler.desired(&view).expect("it decides"), 7);
}
