//! Loads guests of live engines, with telemetry and fallbacks.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Args;
use vcr_core::fault::FailureInjector;
use vcr_core::latency::LatencyModel;
use vcr_core::route::Router;
use vcr_core::tokens::BatchTokenSource;
use vcr_guest::{
    FailureSink, GuestModule, GuestStats, Limits, NoFaults, Note, NoteSink, PolicyWithFallback, SeededTokens,
    WithFallback,
};
use vcr_guest_tools::registry::{GuestReference, Store};
use vcr_live::control::{GuestReader, GuestSample, GuestValue};
use vcr_live::{InjectorFactory, LatencyFactory, PluginContext, PolicyFactory, RouterFactory, TokenFactory};

use super::unusable::Unusable;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Guests")]
pub(crate) struct GuestArgs {
    /// Maximum real time of one call of a guest.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = crate::values::duration)]
    pub(crate) guest_timeout: u64,

    /// Latency model that replaces a failed guest of --latency [default: the engine fails].
    #[arg(long, value_name = "MODEL", requires = "latency")]
    pub(crate) latency_fallback: Option<String>,

    /// Policy that replaces a failed guest of --scheduling-policy [default: the engine fails].
    #[arg(long, value_name = "POLICY")]
    pub(crate) scheduling_policy_fallback: Option<String>,

    /// Router that replaces a failed guest of --router [default: all engines fail].
    #[arg(long, value_name = "ROUTER", requires = "router")]
    pub(crate) router_fallback: Option<String>,

    /// Use random tokens after a failure of the guest of --tokens [default: the engine fails].
    #[arg(long)]
    pub(crate) tokens_fallback: bool,

    /// Inject nothing after a failure of the guest of --failure-injector [default: the engine fails].
    #[arg(long, requires = "failure_injector")]
    pub(crate) failure_injector_fallback: bool,
}

/// All guests of this process and their telemetry.
#[derive(Clone)]
pub(crate) struct LiveGuests {
    limits: Limits,
    wall_time: Duration,
    instances: Arc<Mutex<PluginTable>>,
}

/// Telemetry by guest name and engine number. The number is none for a guest that serves all engines.
type PluginTable = BTreeMap<(String, Option<u32>), Arc<PluginNotes>>;

/// Telemetry of a guest for one engine, or for all engines.
struct PluginNotes {
    guest: String,
    engine: Option<u32>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    stats: GuestStats,
    failures: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The sums stay consistent even if another thread panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NoteSink for PluginNotes {
    fn note(&self, note: Note<'_>) {
        lock(&self.kept).stats.add(&note);
        match note {
            Note::Line { text } => tracing::info!("{}: {text}", self.name()),
            Note::Annotation { text, .. } => tracing::debug!("{}: {text}", self.name()),
            _ => {}
        }
    }
}

impl PluginNotes {
    /// Name of the guest in logs.
    fn name(&self) -> String {
        match self.engine {
            Some(engine) => format!("guest {} of engine {engine}", self.guest),
            None => format!("guest {} of all engines", self.guest),
        }
    }
}

impl LiveGuests {
    pub(crate) fn new(args: &GuestArgs) -> Self {
        let wall_time = Duration::from_nanos(args.guest_timeout);
        let limits = Limits { wall_time_per_call: Some(wall_time), ..Limits::default() };
        Self { limits, wall_time, instances: Arc::default() }
    }

    pub(crate) fn wall_time(&self) -> Duration {
        self.wall_time
    }

    /// Loads a guest and logs its identity.
    fn load(&self, reference: &str) -> Result<GuestModule, Unusable> {
        let module = match GuestReference::parse(reference)? {
            GuestReference::Path(path) => GuestModule::load(path, self.limits)?,
            GuestReference::Oci(reference) => {
                let found = Store::from_env()?.find(&reference)?;
                GuestModule::load_as(&found.name, &found.path, self.limits)?
            }
        };
        tracing::info!("guest {}: a {}, sha256 {}", module.name(), module.world(), module.digest());
        Ok(module)
    }

    fn plugin_context(&self, module: &GuestModule, plugin_context: &PluginContext<'_>) -> Arc<PluginNotes> {
        let (guest, engine) = (module.name().to_owned(), plugin_context.engine);
        let fresh = || Arc::new(PluginNotes { guest: guest.clone(), engine, kept: Mutex::default() });
        Arc::clone(lock(&self.instances).entry((guest.clone(), engine)).or_insert_with(fresh))
    }

    /// The guest for one engine, with its telemetry.
    fn at(&self, module: &GuestModule, plugin_context: &PluginContext<'_>) -> GuestModule {
        // An instance for validation belongs to no engine.
        if plugin_context.engine.is_none() {
            module.clone()
        } else {
            module.observed_by(self.plugin_context(module, plugin_context))
        }
    }

    fn failure_sink(&self, module: &GuestModule, plugin_context: &PluginContext<'_>) -> FailureSink {
        let notes = self.plugin_context(module, plugin_context);
        Arc::new(move |reason| {
            lock(&notes.kept).failures += 1;
            tracing::error!("{} failed, its fallback continues: {reason}", notes.name());
        })
    }

    /// Makes a latency model from a guest, and its name. `fallback` replaces it if it fails.
    pub(crate) fn latency(
        &self,
        reference: &str,
        config: &str,
        fallback: Option<LatencyFactory>,
    ) -> Result<(LatencyFactory, String), Unusable> {
        let module = self.load(reference)?;
        // Created once now, so that an invalid config is reported before anything starts.
        module.latency_model(config, 0)?;
        let (guests, name, config) = (self.clone(), module.name().to_owned(), config.to_owned());
        let factory: LatencyFactory = Arc::new(move |plugin_context| {
            let made = guests
                .at(&module, plugin_context)
                .serving(plugin_context.engine_info)
                .plug_in(&config, plugin_context.seed);
            let Some(fallback) = &fallback else { return made };
            let failed = guests.failure_sink(&module, plugin_context);
            Ok(Box::new(WithFallback::<dyn LatencyModel>::new(made, fallback(plugin_context)?, failed)))
        });
        Ok((factory, name))
    }

    /// Makes a scheduler policy from a guest. `fallback` replaces it if it fails.
    pub(crate) fn policy(
        &self,
        reference: &str,
        config: &str,
        fallback: Option<PolicyFactory>,
    ) -> Result<PolicyFactory, Unusable> {
        let module = self.load(reference)?;
        module.scheduler_policy(config, 0)?;
        let (guests, config) = (self.clone(), config.to_owned());
        Ok(Arc::new(move |plugin_context| {
            let made = guests.at(&module, plugin_context).plug_in(&config, plugin_context.seed);
            let Some(fallback) = &fallback else { return made };
            let failed = guests.failure_sink(&module, plugin_context);
            Ok(Box::new(PolicyWithFallback::new(made, fallback(plugin_context)?, failed)))
        }))
    }

    /// Makes a router from a guest. `fallback` replaces it if it fails.
    pub(crate) fn router(
        &self,
        reference: &str,
        config: &str,
        fallback: Option<RouterFactory>,
    ) -> Result<RouterFactory, Unusable> {
        let module = self.load(reference)?;
        module.router(config, 0)?;
        let (guests, config) = (self.clone(), config.to_owned());
        Ok(Arc::new(move |plugin_context| {
            // A router serves all engines and is always observed.
            let made = module
                .observed_by(guests.plugin_context(&module, plugin_context))
                .plug_in(&config, plugin_context.seed);
            let Some(fallback) = &fallback else { return made };
            let failed = guests.failure_sink(&module, plugin_context);
            Ok(Box::new(WithFallback::<dyn Router>::new(made, fallback(plugin_context)?, failed)))
        }))
    }

    /// Makes a token source from a guest. With `fallback`, the vocabulary size, random tokens replace it if it fails.
    pub(crate) fn tokens(
        &self,
        reference: &str,
        config: &str,
        fallback: Option<NonZeroU32>,
    ) -> Result<TokenFactory, Unusable> {
        let module = self.load(reference)?;
        module.token_source(config, 0)?;
        let (guests, config) = (self.clone(), config.to_owned());
        Ok(Arc::new(move |plugin_context| {
            let made = guests.at(&module, plugin_context).plug_in(&config, plugin_context.seed);
            let Some(vocab_size) = fallback else { return made };
            let failed = guests.failure_sink(&module, plugin_context);
            let fallback = Box::new(SeededTokens::new(vocab_size));
            Ok(Box::new(WithFallback::<dyn BatchTokenSource>::new(made, fallback, failed)))
        }))
    }

    /// Makes a failure injector from a guest. With a fallback, nothing is injected after it fails.
    pub(crate) fn injector(
        &self,
        reference: &str,
        config: &str,
        has_fallback: bool,
    ) -> Result<InjectorFactory, Unusable> {
        let module = self.load(reference)?;
        module.failure_injector(config, 0)?;
        let (guests, config) = (self.clone(), config.to_owned());
        Ok(Arc::new(move |plugin_context| {
            let made = guests.at(&module, plugin_context).plug_in(&config, plugin_context.seed);
            if !has_fallback {
                return made;
            }
            let failed = guests.failure_sink(&module, plugin_context);
            Ok(Box::new(WithFallback::<dyn FailureInjector>::new(made, Box::new(NoFaults), failed)))
        }))
    }

    /// Reads the metrics of guests, by name and engine.
    pub(crate) fn reader(&self) -> GuestReader {
        let instances = Arc::clone(&self.instances);
        Arc::new(move || {
            let instances: Vec<_> = lock(&instances).values().cloned().collect();
            instances.iter().flat_map(|instance| samples(instance)).collect()
        })
    }
}

fn samples(plugin_context: &PluginNotes) -> Vec<GuestSample> {
    let kept = lock(&plugin_context.kept);
    let counters = kept.stats.counters.iter().map(|(name, total)| GuestValue::Counter(name.clone(), *total));
    let gauges = kept.stats.gauges.iter().map(|(name, gauge)| GuestValue::Gauge(name.clone(), gauge.last));
    let known = [GuestValue::Dropped(kept.stats.dropped), GuestValue::Failures(kept.failures)];
    let sample = |value| GuestSample { guest: plugin_context.guest.clone(), engine: plugin_context.engine, value };
    counters.chain(gauges).chain(known).map(sample).collect()
}
