//! Recorders between our own frontend and our own engines.

mod capture;
mod relaying;
mod trouble;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vcr_record::{RecordConfig, RecordSummary, Recorder, Rotation};
use vcr_trace::capture::{CaptureLine, RequestRecord};
use vcr_wire::{
    DataAddress, EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, EngineGreeting, EngineLink, EngineLinkConfig,
    FinishReason, FrontendConfig, FrontendLink, FrontendListener, FrontendMessage, Protocol, ProtocolRules,
    ReadyResponse, Received, Request, SamplingParams, SchedulerStats, Transport, VllmMinor,
};

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const RULES: fn() -> &'static ProtocolRules = || VllmMinor::V0_33.rules();

/// Number of API servers and engines to create.
#[derive(Clone, Copy)]
struct Shape {
    clients: usize,
    engines: u16,
    coordinator: bool,
}

const ONE: Shape = Shape { clients: 1, engines: 1, coordinator: false };

/// A frontend, a recorder and engines, connected in this order.
struct Chain {
    frontend: FrontendLink,
    engines: Vec<EngineLink>,
    recorder: Recorder,
    folder: TempDir,
}

fn config(folder: &Path) -> RecordConfig {
    RecordConfig {
        connect_timeout: None,
        frontend_handshake: format!("ipc://{}/frontend", folder.display()),
        engine_handshake: format!("ipc://{}/engines", folder.display()),
        bind_host: None,
        kv_events: Vec::new(),
        out: folder.join("capture.jsonl"),
        replace: false,
        rotation: Rotation::default(),
        model: Some("sim".to_owned()),
        gpu: None,
        block_size_tokens: 2,
        output_tokens: false,
        prompt_tokens: false,
        queue_bytes: 64 << 20,
    }
}

fn chain(shape: Shape) -> Chain {
    chain_with(shape, |_| {})
}

fn chain_with(shape: Shape, change: impl FnOnce(&mut RecordConfig)) -> Chain {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut config = config(folder.path());
    change(&mut config);
    let recorder = Recorder::start(&config).expect("the addresses are free");
    let (frontend, engines) = meet(folder.path(), recorder.engine_handshake(), shape);
    Chain { frontend, engines, recorder, folder }
}

/// Starts a frontend with sockets in `folder`, and engines that connect to it through the recorder.
fn meet(folder: &Path, engine_handshake: &str, shape: Shape) -> (FrontendLink, Vec<EngineLink>) {
    let transport = Transport::new();
    let data = DataAddress::Ipc { folder: folder.to_owned() };
    let Shape { clients, engines, coordinator } = shape;
    let handshake_address = format!("ipc://{}/frontend", folder.display());
    let config = FrontendConfig { handshake_address, data, clients, engines, coordinator };
    let listener = FrontendListener::bind(&transport, config).expect("the addresses are free");
    let start = |rank| {
        let (transport, address) = (transport.clone(), engine_handshake.to_owned());
        thread::spawn(move || {
            let config = EngineLinkConfig { timeout: PATIENCE, ..EngineLinkConfig::new(address, rank) };
            let greeting = EngineGreeting::hello(&transport, config).expect("the recorder answers");
            greeting.ready(&ready_response(rank)).expect("the gate opens")
        })
    };
    let threads: Vec<_> = (0..engines).map(start).collect();
    let frontend = listener.accept(PATIENCE).expect("the engines come");
    (frontend, threads.into_iter().map(|thread| thread.join().expect("no panic")).collect())
}

fn ready_response(rank: u16) -> ReadyResponse {
    ReadyResponse {
        max_model_len: 4096,
        num_gpu_blocks: 1000,
        block_size: 16,
        vllm_version: "0.33.0".to_owned(),
        data_parallel_rank: rank.into(),
        instance_id: format!("engine-{rank}"),
        ..ReadyResponse::default()
    }
}

fn add(id: &str, client: usize) -> Request {
    Request::Add(Box::new(EngineCoreRequest {
        request_id: id.to_owned(),
        prompt_token_ids: Some(vec![1, 2, 3]),
        sampling_params: Some(SamplingParams { max_tokens: Some(5), ..SamplingParams::default() }),
        client_index: client as u32,
        ..EngineCoreRequest::default()
    }))
}

/// An output of one token for one request, in a step at `timestamp` seconds.
fn token(id: &str, timestamp: f64, finish_reason: Option<FinishReason>) -> EngineCoreOutputs {
    let output = EngineCoreOutput {
        request_id: id.to_owned(),
        new_token_ids: vec![7],
        finish_reason,
        ..EngineCoreOutput::default()
    };
    let stats = SchedulerStats { num_running_reqs: 1, ..SchedulerStats::of_version(RULES()) };
    EngineCoreOutputs { outputs: vec![output], timestamp, scheduler_stats: Some(stats), ..EngineCoreOutputs::default() }
}

fn frame(outputs: &EngineCoreOutputs) -> Vec<u8> {
    let mut frame = Vec::new();
    outputs.encode(&mut frame, RULES());
    frame
}

impl Chain {
    fn ask(&self, client: usize, rank: u16, request: &Request) {
        self.frontend.send(client, rank, request, &[], RULES()).expect("it is sent");
    }

    fn asked(&mut self, rank: usize) -> Received {
        self.engines[rank].inputs.receive(PATIENCE).expect("it works").expect("something comes")
    }

    fn answer(&self, rank: usize, client: usize, outputs: &EngineCoreOutputs) {
        self.engines[rank].outputs.send(client, &frame(outputs)).expect("it is sent");
    }

    fn answered(&self) -> FrontendMessage {
        self.frontend.receive(PATIENCE).expect("it works").expect("something comes")
    }

    fn capture(&self) -> PathBuf {
        self.folder.path().join("capture.jsonl")
    }

    #[track_caller]
    fn wait_until(&self, what: &str, is_true: impl Fn(&RecordSummary) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let handle = self.recorder.handle();
        while !is_true(&handle.summary()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", handle.summary());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(self) -> (RecordSummary, Vec<CaptureLine>) {
        let path = self.capture();
        self.recorder.handle().stop();
        let summary = self.recorder.wait().expect("all went well");
        (summary, lines(&path))
    }
}

fn lines(path: &Path) -> Vec<CaptureLine> {
    let text = fs::read_to_string(path).expect("a capture");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of a capture")).collect()
}

fn requests(lines: &[CaptureLine]) -> Vec<&RequestRecord> {
    let records =
        lines.iter().filter_map(|line| if let CaptureLine::Request(record) = line { Some(&**record) } else { None });
    records.collect()
}

fn breaks(lines: &[CaptureLine]) -> Vec<&str> {
    let breaks = lines
        .iter()
        .filter_map(|line| if let CaptureLine::Break(broken) = line { Some(&*broken.reason) } else { None });
    breaks.collect()
}
