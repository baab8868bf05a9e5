//! Runs a whole cluster behind one server. Requests arrive over HTTP. A separate thread runs the engines, routers,
//! links and autoscalers of virtual time by the system's clock.
//!
//! To the server, the cluster is one engine. An event is handled, and its outputs are sent, when the clock has
//! passed its time. A late thread catches up: steps begin when their predecessors end, as in live engines.

pub(crate) mod register;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use vcr_cluster::observe::StepSink;
use vcr_cluster::record::{Outcome, RequestRecord};
use vcr_cluster::{
    AdapterNames, Cluster, ClusterError, ClusterOutput, Report, RunConfig, ServedRequest, TargetError, TokenRange,
};
use vcr_frontend::EngineClient;
use vcr_frontend::engine::EngineObserver;
use vcr_wire::{
    EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, EngineInputs, EngineLink, EngineOutputs, FinishReason,
    LinkError, LocalLink, PrefillStats, Protocol, ReadyResponse, Received, Request, RequestError, UtilityOutput,
    VllmMinor, Waiter, Waker, monotonic_ns,
};

use super::book::tag_of;
use crate::drive::Plan;
use crate::drive::clock::Clock;
use register::Register;

/// The rank under which the server knows the cluster.
const RANK: u16 = 0;

/// A cluster that serves requests until [`Gateway::end`].
pub(crate) struct Gateway {
    begun: Arc<OnceLock<Clock>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: JoinHandle<Result<Report, TargetError>>,
}

/// Starts the cluster's clock together with the run.
pub(crate) struct Begin {
    begun: Arc<OnceLock<Clock>>,
    waker: Waker,
}

impl Plan for Begin {
    fn begin(&mut self, clock: Clock) {
        // A run begins only once.
        _ = self.begun.set(clock);
        self.waker.wake();
    }

    fn next_ns(&self) -> Option<u64> {
        None
    }

    fn act(&mut self, _now_ns: u64) {}

    fn sample(&mut self, _now_ns: u64) {}
}

impl Gateway {
    /// Starts a cluster and a client for it. `tokens` are the model's tokens that replace drawn tokens. Each step
    /// is passed to `steps`.
    pub(crate) fn start(
        run: &RunConfig,
        tokens: TokenRange,
        (wants_series, steps): (bool, Option<Arc<dyn StepSink>>),
        register: &Register,
        observer: Box<dyn EngineObserver>,
    ) -> Result<(Self, EngineClient), TargetError> {
        let waiter = Waiter::new().map_err(failed_link)?;
        let (waker, begun, stop) = (waiter.waker(), Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(false)));
        let (run, register) = (run.clone(), register.clone());
        EngineClient::before(RANK..RANK + 1, Some(Arc::from(observer)), |sink| {
            let link = LocalLink::new(RANK, waker.clone(), 0, sink.clone());
            let (of_thread, of_begin, of_stop) = (link.clone(), Arc::clone(&begun), Arc::clone(&stop));
            let serve = move || {
                let cluster = Cluster::behind_server(run, tokens, wants_series, steps).map_err(failed_cluster);
                let served = cluster.and_then(|cluster| {
                    let EngineLink { inputs, outputs, .. } = EngineLink::local(&of_thread, &ready());
                    Serving::new(cluster, outputs, register, of_begin).run(inputs, &waiter, &of_stop)
                });
                // When the link is closed, waiting clients learn that no answer will come.
                of_thread.close();
                served
            };
            let thread = std::thread::Builder::new().name("cluster".to_owned()).spawn(serve);
            let thread = thread.map_err(|error| TargetError::Failed(format!("cannot start the cluster: {error}")))?;
            Ok((Self { begun, stop, waker, thread }, vec![link]))
        })
    }

    /// Returns a plan that starts the cluster's clock together with the run.
    pub(crate) fn plan(&self) -> Begin {
        Begin { begun: Arc::clone(&self.begun), waker: self.waker.clone() }
    }

    /// Whether the cluster has stopped by itself.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    pub(crate) fn end(self) -> Result<Report, TargetError> {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        self.thread.join().unwrap_or_else(|_| Err(TargetError::Failed("the cluster's thread panicked".to_owned())))
    }
}

/// The ready message of a cluster, without settings of its engines.
fn ready() -> ReadyResponse {
    ReadyResponse { vllm_version: format!("{}.0", VllmMinor::V0_33), supports_lora: true, ..ReadyResponse::default() }
}

fn failed_cluster(error: ClusterError) -> TargetError {
    TargetError::Failed(error.to_string())
}

fn failed_link(error: LinkError) -> TargetError {
    TargetError::Failed(crate::client::pool::with_causes(&error))
}

struct UnderWay {
    /// The request id on the server.
    id: String,
    /// The tag from the client's request id.
    tag: Option<u64>,
    is_played: bool,
    output_tokens: u32,
    /// No further output is sent before this time.
    last_ns: u64,
}

/// An output. The last output of a request also has the request's tag and record.
type Outgoing = (EngineCoreOutput, Option<(u64, Box<RequestRecord>)>);

struct Serving {
    cluster: Cluster,
    link: EngineOutputs,
    register: Register,
    begun: Arc<OnceLock<Clock>>,
    /// Requests in progress, by their number in the cluster.
    under_way: HashMap<u64, UnderWay>,
    numbers: HashMap<String, u64>,
    /// Outputs on their way to clients, by arrival time.
    outgoing: BTreeMap<u64, Vec<Outgoing>>,
    frame: Vec<u8>,
}

impl Serving {
    fn new(cluster: Cluster, link: EngineOutputs, register: Register, begun: Arc<OnceLock<Clock>>) -> Self {
        Self {
            cluster,
            link,
            register,
            begun,
            under_way: HashMap::new(),
            numbers: HashMap::new(),
            outgoing: BTreeMap::new(),
            frame: Vec::new(),
        }
    }

    /// Serves requests until `stop` is set.
    fn run(mut self, mut inputs: EngineInputs, waiter: &Waiter, stop: &AtomicBool) -> Result<Report, TargetError> {
        while !stop.load(Ordering::Acquire) {
            let clock = self.begun.get().copied();
            let now_ns = clock.map_or(0, Clock::now_ns).max(self.cluster.now_ns());
            let mut outputs = Vec::new();
            self.cluster.step_until(now_ns, |output| outputs.push(output.clone())).map_err(failed_cluster)?;
            while let Some(received) = inputs.try_receive_message().map_err(failed_link)? {
                if let Received::Request { request, .. } = received {
                    self.take(request, now_ns)?;
                }
            }
            let next_ns = self.cluster.next_event_ns().map_err(failed_cluster)?;
            self.cluster.deliver_outputs(|output| outputs.push(output.clone())).map_err(failed_cluster)?;
            outputs.into_iter().for_each(|output| self.expect(output));
            self.send(now_ns)?;
            let leaves_ns = self.outgoing.first_key_value().map(|(at_ns, _)| *at_ns);
            let until_ns = next_ns.into_iter().chain(leaves_ns).min();
            let until_ns = clock.and_then(|clock| Some(clock.monotonic_ns(until_ns?)));
            waiter.wait(&mut inputs, true, None, None, until_ns).map_err(failed_link)?;
        }
        self.cluster.into_report().map_err(failed_cluster)
    }

    fn take(&mut self, request: Request, now_ns: u64) -> Result<(), TargetError> {
        match request {
            Request::Add(request) => self.submit(*request, now_ns),
            Request::Abort(ids) => {
                for number in ids.iter().filter_map(|id| self.numbers.remove(id)) {
                    self.under_way.remove(&number);
                    self.cluster.cancel(number).map_err(failed_cluster)?;
                    self.cluster.forget_tokens(number);
                }
                Ok(())
            }
            Request::Utility(call) => {
                let output = UtilityOutput::failed(call.call_id, &call.method, "a cluster has no such function");
                self.write(&EngineCoreOutputs { utility_output: Some(output), ..EngineCoreOutputs::default() })
            }
            _ => Ok(()),
        }
    }

    fn submit(&mut self, request: EngineCoreRequest, now_ns: u64) -> Result<(), TargetError> {
        let name = request.external_req_id.as_deref().unwrap_or(&request.request_id);
        let tag = tag_of(name);
        let origin = tag.and_then(|tag| self.register.origin(tag)).unwrap_or_default();
        let adapter = request.lora_request.as_ref().map(|lora| lora.name.as_str());
        // KV cannot be shared between adapters or tenants.
        let salt = match (request.cache_salt.as_deref(), adapter) {
            (None, None) => String::new(),
            (salt, adapter) => format!("{}/{}", salt.unwrap_or_default(), adapter.unwrap_or_default()),
        };
        let mut prompt = self.cluster.salted_prompt(&salt);
        prompt.push_tokens(request.prompt_token_ids.into_iter().flatten());
        let served = ServedRequest {
            number: tag,
            origin,
            prompt,
            max_tokens: request.sampling_params.and_then(|params| params.max_tokens).unwrap_or(1),
            priority: i32::try_from(request.priority).unwrap_or(0),
            adapter: adapter.and_then(|name| AdapterNames::default().number(name)),
        };
        let number = self.cluster.serve(served).map_err(failed_cluster)?;
        let id = request.request_id;
        self.numbers.insert(id.clone(), number);
        let is_played = origin.is_played();
        self.under_way.insert(number, UnderWay { id, tag, is_played, output_tokens: 0, last_ns: now_ns });
        Ok(())
    }

    /// Schedules the delivery of an output to its client.
    fn expect(&mut self, output: ClusterOutput) {
        match output {
            ClusterOutput::Tokens { request, num_tokens, at_ns } => {
                let Some(under_way) = self.under_way.get_mut(&request) else { return };
                let first = under_way.output_tokens;
                let [first_ns, later_ns] = self.cluster.way_ns();
                let way_ns = match (under_way.is_played, first) {
                    (true, _) => 0,
                    (false, 0) => first_ns,
                    (false, _) => later_ns,
                };
                under_way.output_tokens += num_tokens;
                under_way.last_ns = under_way.last_ns.max(at_ns.saturating_add(way_ns));
                let prefill_stats = self.cluster.request(request).filter(|_| first == 0).map(prefill_stats);
                let output = EngineCoreOutput {
                    request_id: under_way.id.clone(),
                    new_token_ids: self.cluster.take_tokens(request, first, num_tokens),
                    prefill_stats,
                    ..EngineCoreOutput::default()
                };
                self.outgoing.entry(under_way.last_ns).or_default().push((output, None));
            }
            ClusterOutput::Ended { request, record } => {
                self.cluster.forget_tokens(request);
                // A client that cancelled its request gets no more outputs.
                let Some(under_way) = self.under_way.remove(&request) else { return };
                self.numbers.remove(&under_way.id);
                let at_ns = under_way.last_ns.max(record.end_ns.unwrap_or(0));
                let error = error_of(&record.outcome);
                let output = EngineCoreOutput {
                    request_id: under_way.id,
                    finish_reason: Some(if error.is_some() { FinishReason::Error } else { FinishReason::Length }),
                    error,
                    ..EngineCoreOutput::default()
                };
                let record = under_way.tag.map(|tag| (tag, record));
                self.outgoing.entry(at_ns).or_default().push((output, record));
            }
        }
    }

    /// Sends the due outputs, merged per request.
    fn send(&mut self, now_ns: u64) -> Result<(), TargetError> {
        let later = self.outgoing.split_off(&now_ns.saturating_add(1));
        let due = std::mem::replace(&mut self.outgoing, later);
        let mut outputs: Vec<EngineCoreOutput> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for (output, record) in due.into_values().flatten() {
            if let Some((tag, record)) = record {
                // The register must have the record before the client sees the end.
                self.register.ended(tag, *record);
            }
            match places.get(&output.request_id) {
                None => {
                    places.insert(output.request_id.clone(), outputs.len());
                    outputs.push(output);
                }
                Some(&place) => {
                    let before = &mut outputs[place];
                    before.new_token_ids.extend(output.new_token_ids);
                    before.finish_reason = output.finish_reason;
                    before.error = output.error;
                }
            }
        }
        if outputs.is_empty() {
            return Ok(());
        }
        let timestamp = monotonic_ns() as f64 / 1e9;
        self.write(&EngineCoreOutputs { outputs, timestamp, ..EngineCoreOutputs::default() })
    }

    fn write(&mut self, message: &EngineCoreOutputs) -> Result<(), TargetError> {
        self.frame.clear();
        message.encode(&mut self.frame, VllmMinor::V0_33.rules());
        self.link.send(0, &self.frame).map_err(failed_link)
    }
}

fn prefill_stats(record: &RequestRecord) -> PrefillStats {
    let (prompt, cached) = (u64::from(record.prompt_tokens), u64::from(record.cached_tokens));
    PrefillStats {
        num_prompt_tokens: prompt,
        num_computed_tokens: prompt.saturating_sub(cached),
        num_cached_tokens: cached,
        num_local_cached_tokens: cached,
        ..PrefillStats::default()
    }
}

/// The error of a request that did not complete.
fn error_of(outcome: &Outcome) -> Option<RequestError> {
    let (code, retryable) = match outcome {
        Outcome::Completed => return None,
        Outcome::Rejected(_) => ("validation_error", false),
        Outcome::Shed => ("overloaded", true),
        Outcome::Failed(_) => ("engine_lost", true),
        Outcome::Unfinished | Outcome::GivenUp(_) => ("aborted", false),
    };
    let message = outcome.reason().unwrap_or_else(|| outcome.status().to_owned());
    Some(RequestError { code: code.to_owned(), message, retryable })
}
