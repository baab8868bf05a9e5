//! Measures the calls of a guest, and the same calls of its native twin.

use vcr_core::latency::{LatencyModel, StepBatch, StepShape};
use vcr_core::policy::{EngineView, Preference, SchedulingPolicy};
use vcr_core::route::{Choice, Router};
use vcr_core::scale::{Autoscaler, PoolView};

use crate::check::meter::Meter;
use crate::check::report::{CallCost, Outcome, Used};
use crate::check::{Driver, Player, Split, Subject, faults, latency, policy, router, scaler, tokens};
use crate::error::{CallFault, GuestError};
use crate::latest::{
    Chosen, DecodeRun, LatencyInstance, Maker, Metered, OpenGuest, PolicyInstance, RouteCall, RouterInstance,
    ScalerInstance,
};
use crate::limits::{Budget, Limits};
use crate::module::GuestModule;
use crate::world::World;

/// Number of times that the workload runs; costs are totals over all rounds.
const ROUNDS: usize = 5;

/// The guest's computation, compiled natively.
pub enum NativeTwin {
    Latency(Box<dyn LatencyModel>),
    /// A scheduler policy.
    Policy(Box<dyn SchedulingPolicy>),
    Router(Box<dyn Router>),
    Scaler(Box<dyn Autoscaler>),
}

/// The costs of a guest's calls.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchReport {
    /// Name of the guest.
    pub guest: String,
    pub world: World,
    /// SHA-256 of the component, in lower-case hexadecimal digits.
    pub digest: String,
    /// Largest memory of an instance in bytes, and its limit.
    pub memory_bytes: Used,
    /// Cost of each function, by name.
    pub calls: Vec<CallCost>,
    /// Cost of each function of the native twin, if there is a twin. Native code uses no fuel.
    pub native_calls: Vec<CallCost>,
}

/// Measures the calls that [`check`](crate::check) makes. `native` makes a new twin for each round.
///
/// # Errors
/// When the guest refuses the config, or one of its calls fails.
pub fn bench(
    module: &GuestModule,
    config_json: &str,
    seed: u64,
    clock_ns: &dyn Fn() -> u64,
    native: &dyn Fn() -> Option<NativeTwin>,
) -> Result<BenchReport, GuestError> {
    module.try_config_with(config_json, seed)?;
    let limits = *module.limits();
    let subject = Subject { limits, config_json, seed };
    let mut guest = Meter::new(clock_ns);
    let mut twin = Meter::new(clock_ns);
    for _ in 0..ROUNDS {
        let played = match module.open_guest() {
            OpenGuest::Latency(maker) => subject.play_once::<latency::Pricing>(maker.as_ref(), &mut guest),
            OpenGuest::Tokens(maker) => subject.play_once::<tokens::Emitting>(maker.as_ref(), &mut guest),
            OpenGuest::Faults(maker) => subject.play_once::<faults::FaultWorkload>(maker.as_ref(), &mut guest),
            OpenGuest::Policy(maker) => subject.play_once::<policy::Scheduling>(maker.as_ref(), &mut guest),
            OpenGuest::Router(maker) => subject.play_once::<router::Routing>(maker.as_ref(), &mut guest),
            OpenGuest::Scaler(maker) => subject.play_once::<scaler::Scaling>(maker.as_ref(), &mut guest),
        };
        let played = played.and_then(|()| match native() {
            Some(NativeTwin::Latency(model)) => play::<latency::Pricing>(Box::new(model), &limits, seed, &mut twin),
            Some(NativeTwin::Policy(policy)) => play::<policy::Scheduling>(Box::new(policy), &limits, seed, &mut twin),
            Some(NativeTwin::Router(router)) => play::<router::Routing>(Box::new(router), &limits, seed, &mut twin),
            Some(NativeTwin::Scaler(scaler)) => play::<scaler::Scaling>(Box::new(scaler), &limits, seed, &mut twin),
            None => Ok(()),
        });
        let call = guest.failed_call.as_ref().or(twin.failed_call.as_ref());
        let function = call.map_or("configure", |call| call.function);
        played.map_err(|outcome| failed(module, function, outcome))?;
    }
    Ok(BenchReport {
        guest: module.name().to_owned(),
        world: module.world(),
        digest: module.digest().to_owned(),
        memory_bytes: Used { used: guest.memory_bytes as u64, limit: limits.memory_bytes as u64 },
        calls: guest.costs(),
        native_calls: twin.costs(),
    })
}

fn failed(module: &GuestModule, function: &'static str, outcome: Outcome) -> GuestError {
    let reason = match outcome {
        Outcome::Passed => String::new(),
        Outcome::Broken { reason } | Outcome::GuestFailed { reason } | Outcome::HostFailed { reason } => reason,
    };
    GuestError::of_call(module.name(), function, CallFault::Rejected { reason }, None)
}

impl Subject<'_> {
    /// Runs the whole workload with a fresh instance.
    fn play_once<D: Driver>(&self, maker: &dyn Maker<D::Instance>, meter: &mut Meter<'_>) -> Result<(), Outcome> {
        let player = self.player::<D>(maker, self.seed, Split::AsItComes)?;
        play::<D>(player.instance, &self.limits, self.seed, meter)
    }
}

fn play<D: Driver>(
    instance: Box<D::Instance>,
    limits: &Limits,
    seed: u64,
    meter: &mut Meter<'_>,
) -> Result<(), Outcome> {
    let mut player = Player::<D> { driver: D::new(seed, Split::AsItComes), instance, steps: 0 };
    while player.step(limits, meter)?.is_some() {}
    Ok(())
}

/// Implements [`Metered`] for native twins, which have neither fuel nor a memory of their own.
macro_rules! unmetered {
    ($($role:ty),*) => {
        $(impl Metered for Box<$role> {
            fn fuel_left(&self) -> u64 {
                u64::MAX
            }

            fn memory_bytes(&self) -> usize {
                0
            }
        })*
    };
}

unmetered!(dyn LatencyModel, dyn SchedulingPolicy, dyn Router, dyn Autoscaler);

/// An error of a native twin. It does not occur, because the guest has accepted the same config.
fn rejected(error: &dyn std::error::Error) -> CallFault {
    CallFault::Rejected { reason: error.to_string() }
}

impl LatencyInstance for Box<dyn LatencyModel> {
    fn price_step(&mut self, start_ns: u64, step: &StepShape, _budget: Budget) -> Result<f64, CallFault> {
        let mut durations_ns = Vec::with_capacity(1);
        let batch = StepBatch { start_ns, horizon_ns: start_ns, shapes: std::slice::from_ref(step) };
        self.price(&batch, &mut durations_ns).map_err(|error| rejected(&error))?;
        Ok(durations_ns.first().map_or(0.0, |ns| *ns as f64))
    }

    fn price_decodes(&mut self, run: DecodeRun<'_>, _budget: Budget) -> Result<Vec<f64>, CallFault> {
        let DecodeRun { start_ns, horizon_ns, first, kv_active_blocks } = run;
        let rows = kv_active_blocks.iter().zip(0..);
        let shapes: Vec<StepShape> = rows.map(|(blocks, index)| first.decode_step(index, *blocks)).collect();
        let mut durations_ns = Vec::with_capacity(shapes.len());
        let batch = StepBatch { start_ns, horizon_ns, shapes: &shapes };
        self.price(&batch, &mut durations_ns).map_err(|error| rejected(&error))?;
        Ok(durations_ns.into_iter().map(|ns| ns as f64).collect())
    }
}

impl PolicyInstance for Box<dyn SchedulingPolicy> {
    fn decide(
        &mut self,
        batch: &EngineView<'_>,
        preferences: &mut Vec<Preference>,
        _budget: Budget,
    ) -> Result<(), CallFault> {
        SchedulingPolicy::decide(self.as_mut(), batch, preferences).map_err(|error| rejected(&error))
    }
}

impl RouterInstance for Box<dyn Router> {
    fn route(&mut self, call: RouteCall<'_>, _budget: Budget) -> Result<Chosen, CallFault> {
        call.ended.iter().for_each(|ended| self.ended(ended));
        let choice = Router::route(self.as_mut(), call.query, call.workers).map_err(|error| rejected(&error))?;
        Ok(match choice {
            Choice::Worker(worker) => Chosen::Worker(worker),
            Choice::Refuse => Chosen::Refused,
        })
    }
}

impl ScalerInstance for Box<dyn Autoscaler> {
    fn decide(&mut self, view: &PoolView, _budget: Budget) -> Result<u32, CallFault> {
        self.desired(view).map_err(|error| rejected(&error))
    }
}
