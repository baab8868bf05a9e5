//! Engines and a frontend of this repository, connected by real sockets.

mod faults;
mod kv_event_names;
mod kv_events;
mod limits;
mod overheads;
mod pauses;
mod planes;
mod playback;
mod requests;
mod routers;
mod streaming_inputs;
mod transfer;
mod waves;
mod writing;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vcr_core::host::Overheads;
use vcr_core::latency::{LatencyError, LatencyModel, StepBatch, price_until_horizon};
use vcr_core::tokens::{BatchTokenSource, TokenAnswer, TokenError, TokenRefusal, TokenRequest, TokenWant};
use vcr_core::{EngineConfig, EngineConfigInput};
use vcr_live::*;
use vcr_wire::Protocol as _;
use vcr_wire::*;

/// Far longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Long enough to see that no message comes.
const MOMENT: Duration = Duration::from_millis(100);

/// A latency model whose steps all take this number of nanoseconds.
struct Constant(u64);

impl LatencyModel for Constant {
    fn price(&mut self, batch: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        price_until_horizon(batch, durations_ns, |_| Ok(self.0))
    }
}

fn constant(step_ns: u64) -> LatencyFactory {
    Arc::new(move |_| Ok(Box::new(Constant(step_ns))))
}

/// The default configuration of the tests: an engine without delays.
fn config() -> LiveConfig {
    let engine = EngineConfigInput { max_model_len: Some(4096), ..EngineConfigInput::default() };
    LiveConfig {
        sglang: None,
        identity: Identity {
            handshake_address: String::new(),
            connect_timeout: None,
            first_rank: 0,
            num_ranks: 1,
            version: None,
            vllm_version: None,
            instance_id: "test".to_owned(),
            dtype: Dtype::Bfloat16,
            tensor_parallel_size: 2,
            is_local: false,
            is_headless: true,
            parallel_config_hash: None,
            is_moe: None,
        },
        engine: engine_config(engine),
        latency: constant(0),
        latency_name: "constant".to_owned(),
        overheads: Overheads::default(),
        grammar_compile_ns: 0,
        time_scale: 1.0,
        tokens: TokenSettings {
            choice: TokenChoice::Random,
            vocab_size: 1000,
            output_tokens: None,
            acceptance_rates: Vec::new(),
            embedding_dimensions: None,
        },
        playback: None,
        seed: 7,
        stats: StatsSettings { log_stats: true, iteration_details: false, connector: false, log_requests: false },
        kv_events: None,
        transfer: TransferSettings { lease_ns: 60_000_000_000, ..TransferSettings::new("test") },
        faults: Vec::new(),
        injector: None,
        placements: None,
        steps: None,
        policy: None,
        router: None,
        limits: Limits::default(),
        shutdown_timeout_ns: 0,
    }
}

fn engine_config(input: EngineConfigInput) -> EngineConfig {
    EngineConfig::new(input).expect("the settings are valid")
}

/// Engines and their frontend.
struct Bench {
    frontend: FrontendLink,
    engines: Option<LiveEngines>,
    rules: &'static ProtocolRules,
    _folder: TempDir,
}

impl Bench {
    fn new(config: LiveConfig) -> Self {
        Self::with(config, 1, false)
    }

    fn with(mut config: LiveConfig, clients: usize, coordinator: bool) -> Self {
        let folder = tempfile::tempdir().expect("there is room");
        let frontend = FrontendConfig {
            handshake_address: ipc(folder.path(), "handshake"),
            data: DataAddress::Ipc { folder: folder.path().to_owned() },
            clients,
            engines: config.identity.num_ranks,
            coordinator,
        };
        let listener = FrontendListener::bind(&Transport::new(), frontend).expect("the address is free");
        config.identity.handshake_address = listener.handshake_address().to_owned();
        let engines = Some(LiveEngines::start(config).expect("threads start"));
        let frontend = listener.accept(PATIENCE).expect("the engines come");
        Self { frontend, engines, rules: VllmMinor::V0_33.rules(), _folder: folder }
    }

    fn handle(&self) -> EnginesHandle {
        self.engines.as_ref().expect("they run until the end").handle()
    }

    fn send(&self, request: Request) {
        self.send_to(0, request);
    }

    fn send_to(&self, rank: u16, request: Request) {
        let client = match &request {
            Request::Add(request) => request.client_index,
            Request::Utility(call) => call.client_index,
            _ => 0,
        };
        self.frontend.send(client as usize, rank, &request, &[], self.rules).expect("it is sent");
    }

    fn add(&self, id: &str, prompt: &[u32], max_tokens: u32) {
        self.send(add(id, prompt, max_tokens));
    }

    /// The next message with outputs. Messages with only statistics are skipped.
    fn next(&self) -> EngineCoreOutputs {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let Some(message) = self.frontend.receive(PATIENCE).expect("it works") else { break };
            let EngineMessage::Outputs(outputs) = message.decode().expect("it is a message") else {
                panic!("the engine reports that it is dead");
            };
            if !outputs.outputs.is_empty() || outputs.utility_output.is_some() {
                return *outputs;
            }
        }
        panic!("nothing came");
    }

    /// Collects the outputs of the requests `ids` until all have ended.
    fn collect(&self, ids: &[&str]) -> Vec<Collected> {
        let mut all: Vec<_> = ids.iter().map(|id| Collected { id: (*id).to_owned(), ..Collected::default() }).collect();
        while all.iter().any(|one| one.finish.is_none()) {
            for output in self.next().outputs {
                let one = all.iter_mut().find(|one| one.id == output.request_id).expect("it was asked for");
                one.tokens.extend_from_slice(&output.new_token_ids);
                one.finish = output.finish_reason;
                one.outputs.push(output);
            }
        }
        all
    }

    /// Like [`Bench::collect`], but skips the outputs of other requests.
    fn collect_some(&self, ids: &[&str]) -> Vec<Collected> {
        let mut all: Vec<_> = ids.iter().map(|id| Collected { id: (*id).to_owned(), ..Collected::default() }).collect();
        while all.iter().any(|one| one.finish.is_none()) {
            for output in self.next().outputs {
                if let Some(one) = all.iter_mut().find(|one| one.id == output.request_id) {
                    one.finish = output.finish_reason;
                    one.outputs.push(output);
                }
            }
        }
        all
    }

    fn run(&self, id: &str, prompt: &[u32], max_tokens: u32) -> Vec<u32> {
        self.add(id, prompt, max_tokens);
        self.collect(&[id]).remove(0).tokens
    }

    fn call(&self, method: &str, args: Vec<Value>) -> Result<Value, String> {
        let call_id = Integer::from(7u64);
        self.send(Request::Utility(UtilityCall { client_index: 0, call_id, method: method.to_owned(), args }));
        self.answer()
    }

    fn answer(&self) -> Result<Value, String> {
        let answer = self.next().utility_output.expect("it is an answer");
        assert_eq!(answer.call_id, Integer::from(7u64));
        match (answer.result, answer.failure_message) {
            (Some(result), None) => Ok(result.value),
            (None, Some(message)) => Err(message),
            other => panic!("expected one of both: {other:?}"),
        }
    }

    /// Waits until `is_so` holds for a snapshot of engine 0, and returns the snapshot.
    fn wait_for(&self, what: &str, is_so: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let end = Instant::now() + PATIENCE;
        loop {
            let snapshot = self.handle().snapshots().remove(0);
            if is_so(&snapshot) {
                return snapshot;
            }
            assert!(Instant::now() < end, "{what}: {snapshot:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn nothing_comes(&self) {
        while let Some(message) = self.frontend.receive(MOMENT).expect("it works") {
            let message = message.decode().expect("it is a message");
            let is_empty = matches!(&message, EngineMessage::Outputs(outputs)
                if outputs.outputs.is_empty() && outputs.utility_output.is_none());
            assert!(is_empty, "{message:?}");
        }
    }

    fn stop(mut self) -> Result<(), LiveError> {
        self.handle().shut_down();
        self.engines.take().expect("they run until the end").wait()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(engines) = self.engines.take() {
            engines.handle().shut_down();
            let result = engines.wait();
            if !std::thread::panicking() {
                result.expect("the engines end well");
            }
        }
    }
}

#[derive(Default)]
struct Collected {
    id: String,
    tokens: Vec<u32>,
    finish: Option<FinishReason>,
    outputs: Vec<EngineCoreOutput>,
}

fn ipc(folder: &Path, name: &str) -> String {
    format!("ipc://{}/{name}", folder.display())
}

/// A frontend whose data sockets are in the subfolder `place`. The next frontend of the same engines uses another
/// subfolder.
fn listen(folder: &Path, place: &str, engines: u16) -> FrontendListener {
    let data = folder.join(place);
    std::fs::create_dir(&data).expect("there is room");
    let frontend = FrontendConfig {
        handshake_address: ipc(folder, "handshake"),
        data: DataAddress::Ipc { folder: data },
        clients: 1,
        engines,
        coordinator: false,
    };
    FrontendListener::bind(&Transport::new(), frontend).expect("the address is free")
}

fn request(id: &str, prompt: &[u32], params: SamplingParams) -> EngineCoreRequest {
    EngineCoreRequest {
        request_id: id.to_owned(),
        prompt_token_ids: Some(prompt.to_vec()),
        sampling_params: Some(params),
        arrival_time: 1.0,
        ..EngineCoreRequest::default()
    }
}

fn params(max_tokens: u32) -> SamplingParams {
    SamplingParams { max_tokens: Some(max_tokens), ..SamplingParams::default() }
}

fn add(id: &str, prompt: &[u32], max_tokens: u32) -> Request {
    Request::Add(Box::new(request(id, prompt, params(max_tokens))))
}

fn prompt(len: u32) -> Vec<u32> {
    (1..=len).collect()
}
