//! Shared by the adapters of all versions: a component becomes a module of a world, and a module an instance.

use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Store, Trap};

use crate::error::CallFault;
use crate::latest::{Metered, Setup};
use crate::limits::{Budget, Limits};
use crate::sandbox::{self, HostState, InstanceInputs};
use crate::versions::OpenError;
use crate::wasi;

/// The common interface of the generated types of each world.
pub(super) trait Bindings: Sized {
    /// A component, type-checked against the world.
    type Prepared: Send + Sync;

    fn prepare(component: InstancePre<HostState>) -> wasmtime::Result<Self::Prepared>;
    fn instantiate(prepared: &Self::Prepared, store: &mut Store<HostState>) -> wasmtime::Result<Self>;
    fn call_configure(
        &self,
        store: &mut Store<HostState>,
        config_json: &str,
        seed: u64,
    ) -> wasmtime::Result<Result<(), String>>;
}

/// Implements [`Bindings`] for the generated types of a world.
macro_rules! impl_bindings {
    ($world:ty, $prepared:ty, $interface:ident) => {
        impl $crate::versions::instance::Bindings for $world {
            type Prepared = $prepared;

            fn prepare(component: ::wasmtime::component::InstancePre<HostState>) -> ::wasmtime::Result<Self::Prepared> {
                <$prepared>::new(component)
            }

            fn instantiate(prepared: &$prepared, store: &mut ::wasmtime::Store<HostState>) -> ::wasmtime::Result<Self> {
                prepared.instantiate(store)
            }

            fn call_configure(
                &self,
                store: &mut ::wasmtime::Store<HostState>,
                config_json: &str,
                seed: u64,
            ) -> ::wasmtime::Result<Result<(), String>> {
                self.$interface().call_configure(store, config_json, seed)
            }
        }
    };
}
pub(super) use impl_bindings;

/// A compiled guest of the world of `B`.
pub(super) struct Module<B: Bindings> {
    engine: wasmtime::Engine,
    prepared: B::Prepared,
}

impl<B: Bindings> Module<B> {
    /// `link` adds what the version of the interface offers to guests; what of
    /// WASI is granted is the same for all.
    pub(super) fn new(component: &Component, limits: &Limits, link: Link) -> Result<Self, OpenError> {
        let engine = component.engine().clone();
        let mut linker = Linker::new(&engine);
        let prepared = link(&mut linker)
            .and_then(|()| wasi::link(&mut linker, limits.wasi))
            .and_then(|()| linker.instantiate_pre(component))
            .and_then(B::prepare)
            .map_err(|error| OpenError::Unfit(format!("{error:#}")))?;
        let module = Self { engine, prepared };
        // The types of functions are only checked in an instance.
        let budget = limits.configure_budget(0);
        let trial = InstanceInputs { seed: 0, sink: None };
        module.instantiate(limits, budget, trial).map_err(|error| match sandbox::fault(&error, budget) {
            CallFault::Trapped { reason } if !error.is::<Trap>() => OpenError::Unfit(reason),
            fault => OpenError::Fault(fault),
        })?;
        Ok(module)
    }

    fn instantiate(&self, limits: &Limits, budget: Budget, inputs: InstanceInputs) -> wasmtime::Result<Instance<B>> {
        let mut store = sandbox::store(&self.engine, limits, inputs);
        sandbox::allot(&mut store, budget)?;
        let guest = B::instantiate(&self.prepared, &mut store)?;
        Ok(Instance { store, guest })
    }

    /// Makes a fresh instance and configures it.
    pub(super) fn configured(&self, setup: Setup<'_>) -> Result<Instance<B>, CallFault> {
        let Setup { limits, config_json, seed, sink } = setup;
        let budget = limits.configure_budget(config_json.len());
        let fault = |error: wasmtime::Error| sandbox::fault(&error, budget);
        let mut instance = self.instantiate(limits, budget, InstanceInputs { seed, sink }).map_err(fault)?;
        instance
            .guest
            .call_configure(&mut instance.store, config_json, seed)
            .map_err(fault)?
            .map_err(|reason| CallFault::Rejected { reason })?;
        Ok(instance)
    }
}

/// Adds what a version offers to guests.
pub(super) type Link = fn(&mut Linker<HostState>) -> wasmtime::Result<()>;

impl<B> Metered for Instance<B> {
    fn fuel_left(&self) -> u64 {
        // A store without fuel is none of ours.
        self.store.get_fuel().unwrap_or(0)
    }

    fn memory_bytes(&self) -> usize {
        self.store.data().memory_bytes()
    }
}

/// One instance of a guest of the world of `B`.
pub(super) struct Instance<B> {
    store: Store<HostState>,
    guest: B,
}

impl<B> Instance<B> {
    /// Tells the time of the call that comes.
    pub(super) fn at(&mut self, now_ns: u64) -> &mut Self {
        if let Some(wasi) = &self.store.data().wasi {
            wasi.set_now(now_ns);
        }
        self
    }

    /// Makes a call that may use so much.
    pub(super) fn call<R>(
        &mut self,
        budget: Budget,
        call: impl FnOnce(&B, &mut Store<HostState>) -> wasmtime::Result<R>,
    ) -> Result<R, CallFault> {
        sandbox::allot(&mut self.store, budget)
            .and_then(|()| call(&self.guest, &mut self.store))
            .map_err(|error| sandbox::fault(&error, budget))
    }

    /// The same for a function that may answer an error in words.
    pub(super) fn call_fallible<R>(
        &mut self,
        budget: Budget,
        call: impl FnOnce(&B, &mut Store<HostState>) -> wasmtime::Result<Result<R, String>>,
    ) -> Result<R, CallFault> {
        self.call(budget, call)?.map_err(|reason| CallFault::Rejected { reason })
    }
}
