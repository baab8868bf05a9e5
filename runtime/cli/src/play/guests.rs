//! The guests of live engines: how they are loaded, what they tell, and what
//! goes on where one fails.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Args;
use vcr_control::{GuestReader, GuestSample, GuestValue};
use vcr_core::fault::{FailureInjector, FaultError};
use vcr_core::latency::{LatencyError, LatencyModel};
use vcr_core::policy::PolicyError;
use vcr_core::route::{RouteError, Router};
use vcr_core::tokens::{BatchTokenSource, TokenError};
use vcr_guest::{
    FailureSink, GuestModule, Limits, NoFaults, Note, NoteSink, PolicyWithFallback, SeededTokens, Told, WithFallback,
};
use vcr_live::{InjectorFactory, LatencyFactory, PolicyFactory, RouterFactory, Seat, TokenSourceFactory};
use vcr_registry::{GuestReference, Store};

use super::config::Unusable;

/// Whether a word names a guest rather than something that is built in.
pub(crate) fn is_guest(word: &str) -> bool {
    word.ends_with(".wasm") || GuestReference::is_oci(word)
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Guests")]
pub(crate) struct GuestArgs {
    /// Longest time that a call of a guest may take.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = super::args::duration)]
    pub(crate) guest_timeout: u64,

    /// The latency model that goes on where the guest of --latency fails [default: the engine fails].
    #[arg(long, value_name = "MODEL", requires = "latency")]
    pub(crate) latency_fallback: Option<String>,

    /// The policy that goes on where the guest of --scheduling-policy fails [default: the engine fails].
    #[arg(long, value_name = "POLICY")]
    pub(crate) scheduling_policy_fallback: Option<String>,

    /// The router that goes on where the guest of --router fails [default: all engines fail].
    #[arg(long, value_name = "ROUTER", requires = "router")]
    pub(crate) router_fallback: Option<String>,

    /// Go on with random tokens where the guest of --tokens fails [default: the engine fails].
    #[arg(long)]
    pub(crate) tokens_fallback: bool,

    /// Let nothing go wrong where the guest of --failure-injector fails [default: the engine fails].
    #[arg(long, requires = "failure_injector")]
    pub(crate) failure_injector_fallback: bool,
}

/// All guests of this process, and what they have told.
#[derive(Clone)]
pub(crate) struct LiveGuests {
    limits: Limits,
    wall_time: Duration,
    told: Arc<Mutex<Seats>>,
}

/// By the guest's name and the engine's number; none for a guest of all engines.
type Seats = BTreeMap<(String, Option<u32>), Arc<SeatNotes>>;

/// What a guest has told of one engine, or of all.
struct SeatNotes {
    guest: String,
    engine: Option<u32>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    told: Told,
    failures: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Sums are whole whoever panicked beside them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NoteSink for SeatNotes {
    fn note(&self, note: Note<'_>) {
        lock(&self.kept).told.add(&note);
        match note {
            Note::Line { text } => tracing::info!("{}: {text}", self.name()),
            Note::Annotation { text, .. } => tracing::debug!("{}: {text}", self.name()),
            _ => {}
        }
    }
}

impl SeatNotes {
    /// Who tells, in words.
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
        Self { limits, wall_time, told: Arc::default() }
    }

    /// The longest that a call of a guest may take.
    pub(crate) fn wall_time(&self) -> Duration {
        self.wall_time
    }

    /// Loads a guest and says which one it is.
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

    fn seat(&self, module: &GuestModule, seat: &Seat<'_>) -> Arc<SeatNotes> {
        let (guest, engine) = (module.name().to_owned(), seat.engine);
        let fresh = || Arc::new(SeatNotes { guest: guest.clone(), engine, kept: Mutex::default() });
        Arc::clone(lock(&self.told).entry((guest.clone(), engine)).or_insert_with(fresh))
    }

    /// The guest for an engine, whose instance tells what it tells of that one.
    fn at(&self, module: &GuestModule, seat: &Seat<'_>) -> GuestModule {
        // A trial is nobody's.
        if seat.engine.is_none() { module.clone() } else { module.observed_by(self.seat(module, seat)) }
    }

    fn failure_sink(&self, module: &GuestModule, seat: &Seat<'_>) -> FailureSink {
        let notes = self.seat(module, seat);
        Arc::new(move |reason| {
            lock(&notes.kept).failures += 1;
            tracing::error!("{} failed, its fallback goes on: {reason}", notes.name());
        })
    }

    /// The latency model that is a guest, and its name. `fallback` takes its
    /// place where it fails.
    pub(crate) fn latency(
        &self,
        reference: &str,
        config: &str,
        fallback: Option<LatencyFactory>,
    ) -> Result<(LatencyFactory, String), Unusable> {
        let module = self.load(reference)?;
        // Made once now, so that a bad configuration is told before anything starts.
        module.latency_model(config, 0)?;
        let (guests, name, config) = (self.clone(), module.name().to_owned(), config.to_owned());
        let factory: LatencyFactory = Arc::new(move |seat| {
            let made = guests.at(&module, seat).latency_model(&config, seat.seed);
            let made =
                made.map_err(|error| LatencyError { model: module.name().to_owned(), reason: error.to_string() });
            let Some(fallback) = &fallback else { return made };
            let failed = guests.failure_sink(&module, seat);
            Ok(Box::new(WithFallback::<dyn LatencyModel>::new(made, fallback(seat)?, failed)))
        });
        Ok((factory, name))
    }

    /// The scheduler policy that is a guest. `fallback` takes its place where it
    /// fails.
    pub(crate) fn policy(
        &self,
        reference: &str,
        config: &str,
        fallback: Option<PolicyFactory>,
    ) -> Result<PolicyFactory, Unusable> {
        let module = self.load(reference)?;
        module.scheduler_policy(config, 0)?;
        let (guests, config) = (self.clone(), config.to_owned());
        Ok(Arc::new(move |seat| {
            let made = guests.at(&module, seat).scheduler_policy(&config, seat.seed);
            let made =
                made.map_err(|error| PolicyError { policy: module.name().to_owned(), reason: error.to_string() });
            let Some(fallback) = &fallback else { return made };
            let failed = guests.failure_sink(&module, seat);
            Ok(Box::new(PolicyWithFallback::new(made, fallback(seat)?, failed)))
        }))
    }

    /// The router that is a guest. `fallback` takes its place where it fails.
    pub(crate) fn router(
        &self,
        reference: &str,
        config: &str,
        fallback: Option<RouterFactory>,
    ) -> Result<RouterFactory, Unusable> {
        let module = self.load(reference)?;
        module.router(config, 0)?;
        let (guests, config) = (self.clone(), config.to_owned());
        Ok(Arc::new(move |seat| {
            // It serves all engines, and is no trial.
            let made = module.observed_by(guests.seat(&module, seat)).router(&config, seat.seed);
            let made = made.map_err(|error| RouteError { router: module.name().to_owned(), reason: error.to_string() });
            let Some(fallback) = &fallback else { return made };
            let failed = guests.failure_sink(&module, seat);
            Ok(Box::new(WithFallback::<dyn Router>::new(made, fallback(seat)?, failed)))
        }))
    }

    /// The token source that is a guest. With a fallback, given as the size of
    /// the vocabulary, tokens are drawn at random where it fails.
    pub(crate) fn tokens(
        &self,
        reference: &str,
        config: &str,
        fallback: Option<NonZeroU32>,
    ) -> Result<TokenSourceFactory, Unusable> {
        let module = self.load(reference)?;
        module.token_source(config, 0)?;
        let (guests, config) = (self.clone(), config.to_owned());
        Ok(Arc::new(move |seat| {
            let made = guests.at(&module, seat).token_source(&config, seat.seed);
            let made =
                made.map_err(|error| TokenError { r#source: module.name().to_owned(), reason: error.to_string() });
            let Some(vocab_size) = fallback else { return made };
            let failed = guests.failure_sink(&module, seat);
            let fallback = Box::new(SeededTokens::new(vocab_size));
            Ok(Box::new(WithFallback::<dyn BatchTokenSource>::new(made, fallback, failed)))
        }))
    }

    /// The failure injector that is a guest; with a fallback, nothing goes wrong
    /// any more where it fails.
    pub(crate) fn injector(
        &self,
        reference: &str,
        config: &str,
        has_fallback: bool,
    ) -> Result<InjectorFactory, Unusable> {
        let module = self.load(reference)?;
        module.failure_injector(config, 0)?;
        let (guests, config) = (self.clone(), config.to_owned());
        Ok(Arc::new(move |seat| {
            let made = guests.at(&module, seat).failure_injector(&config, seat.seed);
            let made =
                made.map_err(|error| FaultError { injector: module.name().to_owned(), reason: error.to_string() });
            if !has_fallback {
                return made;
            }
            let failed = guests.failure_sink(&module, seat);
            Ok(Box::new(WithFallback::<dyn FailureInjector>::new(made, Box::new(NoFaults), failed)))
        }))
    }

    /// What the metrics say of guests, by name and engine.
    pub(crate) fn reader(&self) -> GuestReader {
        let told = Arc::clone(&self.told);
        Arc::new(move || {
            let seats: Vec<_> = lock(&told).values().cloned().collect();
            seats.iter().flat_map(|seat| samples(seat)).collect()
        })
    }
}

fn samples(seat: &SeatNotes) -> Vec<GuestSample> {
    let kept = lock(&seat.kept);
    let counters = kept.told.counters.iter().map(|(name, total)| GuestValue::Counter(name.clone(), *total));
    let gauges = kept.told.gauges.iter().map(|(name, gauge)| GuestValue::Gauge(name.clone(), gauge.last));
    let known = [GuestValue::Dropped(kept.told.dropped), GuestValue::Failures(kept.failures)];
    let sample = |value| GuestSample { guest: seat.guest.clone(), engine: seat.engine, value };
    counters.chain(gauges).chain(known).map(sample).collect()
}
