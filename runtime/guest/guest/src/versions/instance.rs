//! Shared by the adapters of all API versions: makes a module from a component, and instances from a module.

use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Store, Trap};

use crate::error::CallFault;
use crate::latest::{Metered, Setup};
use crate::limits::{Budget, Limits};
use crate::sandbox::{self, HostState, InstanceInputs};
use crate::versions::OpenError;
use crate::wasi;

/// Common interface of the generated types of all worlds.
pub(super) trait Bindings: Sized {
    /// A component whose imports and exports are type-checked.
    type Prepared: Send + Sync;

    /// Buffers for the columns of a call; reused, so that most calls allocate nothing.
    type Columns: Default + Send;

    fn prepare(component: InstancePre<HostState>) -> wasmtime::Result<Self::Prepared>;
    fn instantiate(prepared: &Self::Prepared, store: &mut Store<HostState>) -> wasmtime::Result<Self>;
    fn call_configure(&self, store: &mut Store<HostState>, setup: &Setup<'_>) -> wasmtime::Result<Result<(), Failure>>;
}

/// An error returned by a guest.
pub(super) struct Failure {
    pub(super) message: String,
    pub(super) traceback: Option<String>,
}

impl From<Failure> for CallFault {
    fn from(Failure { message, traceback }: Failure) -> Self {
        let traceback = traceback.filter(|traceback| !traceback.trim().is_empty());
        let reason = match traceback {
            Some(traceback) => format!("{message}\n{}", traceback.trim_end()),
            None => message,
        };
        Self::Rejected { reason }
    }
}

/// Implements [`Bindings`] for a world, which is configured by the interface's `configure` or by the given call.
macro_rules! impl_bindings {
    ($world:ty, $prepared:ty, $columns:ty, $interface:ident) => {
        impl_bindings!($world, $prepared, $columns, |guest, store, setup| guest.$interface().call_configure(
            store,
            setup.config_json,
            setup.seed
        ));
    };
    ($world:ty, $prepared:ty, $columns:ty, |$guest:ident, $store:ident, $setup:ident| $call:expr) => {
        impl $crate::versions::instance::Bindings for $world {
            type Prepared = $prepared;
            type Columns = $columns;

            fn prepare(component: ::wasmtime::component::InstancePre<HostState>) -> ::wasmtime::Result<Self::Prepared> {
                <$prepared>::new(component)
            }

            fn instantiate(prepared: &$prepared, store: &mut ::wasmtime::Store<HostState>) -> ::wasmtime::Result<Self> {
                prepared.instantiate(store)
            }

            fn call_configure(
                &self,
                $store: &mut ::wasmtime::Store<HostState>,
                $setup: &$crate::latest::Setup<'_>,
            ) -> ::wasmtime::Result<Result<(), $crate::versions::instance::Failure>> {
                let $guest = self;
                let answer = $call?;
                Ok(answer.map_err(Into::into))
            }
        }
    };
}
pub(super) use impl_bindings;

/// A compiled guest of the world `B`.
pub(super) struct Module<B: Bindings> {
    component: Component,
    prepared: B::Prepared,
}

impl<B: Bindings> Module<B> {
    /// Makes a module. `link` adds the imports of the API version; WASI grants are the same for all versions.
    pub(super) fn new(component: &Component, limits: &Limits, link: Link) -> Result<Self, OpenError> {
        let mut linker = Linker::new(component.engine());
        let prepared = link(&mut linker)
            .and_then(|()| wasi::link(&mut linker, limits.wasi))
            .and_then(|()| linker.instantiate_pre(component))
            .and_then(B::prepare)
            .map_err(|error| OpenError::Unfit(format!("{error:#}")))?;
        let module = Self { component: component.clone(), prepared };
        // Function types are only checked on instantiation.
        let budget = limits.configure_budget(0);
        let trial = InstanceInputs { seed: 0, sink: None };
        module.instantiate(limits, budget, trial).map_err(|error| match sandbox::fault(&error, budget) {
            CallFault::Trapped { reason } if !error.is::<Trap>() => OpenError::Unfit(reason),
            fault => OpenError::Fault(fault),
        })?;
        Ok(module)
    }

    /// Whether the component imports an interface whose name starts with `interface`.
    pub(super) fn imports(&self, interface: &str) -> bool {
        let ty = self.component.component_type();
        ty.imports(self.component.engine()).any(|(name, _)| name.starts_with(interface))
    }

    fn instantiate(&self, limits: &Limits, budget: Budget, inputs: InstanceInputs) -> wasmtime::Result<Instance<B>> {
        let mut store = sandbox::store(self.component.engine(), limits, inputs);
        sandbox::allot(&mut store, budget)?;
        let guest = B::instantiate(&self.prepared, &mut store)?;
        Ok(Instance { store, guest, columns: B::Columns::default() })
    }

    /// Makes and configures a fresh instance.
    pub(super) fn configured(&self, setup: Setup<'_>) -> Result<Instance<B>, CallFault> {
        let limits = setup.limits;
        let budget = limits.configure_budget(setup.config_json.len());
        let mut instance = self
            .instantiate(limits, budget, InstanceInputs { seed: setup.seed, sink: setup.sink.clone() })
            .map_err(|error| sandbox::fault(&error, budget))?;
        instance
            .guest
            .call_configure(&mut instance.store, &setup)
            .map_err(|error| sandbox::fault_in(&instance.store, &error, budget))?
            .map_err(CallFault::from)?;
        Ok(instance)
    }
}

/// Adds the imports of an API version.
pub(super) type Link = fn(&mut Linker<HostState>) -> wasmtime::Result<()>;

impl<B: Bindings> Metered for Instance<B> {
    fn fuel_left(&self) -> u64 {
        // Fuel is always enabled in these stores.
        self.store.get_fuel().unwrap_or(0)
    }

    fn memory_bytes(&self) -> usize {
        self.store.data().memory_bytes()
    }
}

/// An instance of a guest of the world `B`.
pub(super) struct Instance<B: Bindings> {
    store: Store<HostState>,
    guest: B,
    columns: B::Columns,
}

impl<B: Bindings> Instance<B> {
    pub(super) fn columns(&mut self) -> &mut B::Columns {
        &mut self.columns
    }

    pub(super) fn host(&self) -> &HostState {
        self.store.data()
    }

    pub(super) fn host_mut(&mut self) -> &mut HostState {
        self.store.data_mut()
    }

    /// Sets the WASI clock to the time of the next call.
    pub(super) fn at(&mut self, now_ns: u64) -> &mut Self {
        if let Some(wasi) = &self.store.data().wasi {
            wasi.set_now(now_ns);
        }
        self
    }

    pub(super) fn call<R, F: Into<Failure>>(
        &mut self,
        budget: Budget,
        call: impl FnOnce(&B, &mut Store<HostState>, &B::Columns) -> wasmtime::Result<Result<R, F>>,
    ) -> Result<R, CallFault> {
        let answer = sandbox::allot(&mut self.store, budget)
            .and_then(|()| call(&self.guest, &mut self.store, &self.columns))
            .map_err(|error| sandbox::fault_in(&self.store, &error, budget))?;
        answer.map_err(|failure| CallFault::from(failure.into()))
    }
}
