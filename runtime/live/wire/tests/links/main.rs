//! The sockets, with both ends of this crate.

mod kv_events;
mod pair;
mod refused;
mod side_channel;
mod waits;

use std::path::Path;
use std::thread;
use std::time::Duration;

use vcr_wire::Protocol as _;
use vcr_wire::*;

/// Long enough even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough to see that nothing comes.
const MOMENT: Duration = Duration::from_millis(200);

fn ready_response(rank: u16) -> ReadyResponse {
    ReadyResponse {
        max_model_len: 4096,
        num_gpu_blocks: 1000,
        block_size: 16,
        vllm_version: "0.33.0".to_owned(),
        data_parallel_rank: rank.into(),
        max_num_seqs: 64,
        max_num_batched_tokens: 2048,
        instance_id: format!("vcr-{rank}"),
        ..ReadyResponse::default()
    }
}

fn engine(transport: &Transport, address: &str, rank: u16) -> Result<EngineLink, LinkError> {
    let config = EngineLinkConfig { timeout: PATIENCE, ..EngineLinkConfig::new(address, rank) };
    EngineGreeting::hello(transport, config)?.ready(&ready_response(rank))
}

fn over_tcp(clients: usize, engines: u16) -> FrontendConfig {
    FrontendConfig {
        handshake_address: "tcp://127.0.0.1:*".to_owned(),
        data: DataAddress::Tcp { host: "127.0.0.1".to_owned() },
        clients,
        engines,
        coordinator: false,
    }
}

fn over_ipc(folder: &Path, clients: usize, engines: u16) -> FrontendConfig {
    FrontendConfig {
        handshake_address: format!("ipc://{}/handshake", folder.display()),
        data: DataAddress::Ipc { folder: folder.to_owned() },
        clients,
        engines,
        coordinator: false,
    }
}

fn linked(config: FrontendConfig) -> (FrontendLink, Vec<EngineLink>) {
    let transport = Transport::new();
    let engines = config.engines;
    let listener = FrontendListener::bind(&transport, config).expect("the addresses are free");
    let address = listener.handshake_address().to_owned();
    let start = |rank| {
        let (transport, address) = (transport.clone(), address.clone());
        thread::spawn(move || engine(&transport, &address, rank).expect("the frontend is there"))
    };
    let threads: Vec<_> = (0..engines).map(start).collect();
    let frontend = listener.accept(PATIENCE).expect("the engines come");
    (frontend, threads.into_iter().map(|thread| thread.join().expect("no panic")).collect())
}

fn add(request_id: &str, client_index: u32) -> Request {
    Request::Add(Box::new(EngineCoreRequest {
        request_id: request_id.to_owned(),
        prompt_token_ids: Some(vec![1, 2, 3]),
        sampling_params: Some(SamplingParams::default()),
        client_index,
        ..EngineCoreRequest::default()
    }))
}

/// The next request to an engine, and its source.
fn next_request(engine: &mut EngineLink) -> (Source, Request) {
    match engine.inputs.receive(PATIENCE).expect("the library works") {
        Some(Received::Request { source, request, .. }) => (source, request),
        other => panic!("a request was expected, but this is {other:?}"),
    }
}

fn next_outputs(frontend: &FrontendLink) -> (usize, EngineCoreOutputs) {
    let message = frontend.receive(PATIENCE).expect("the library works").expect("an engine answers");
    match message.decode().expect("it is a message") {
        EngineMessage::Outputs(outputs) => (message.client, *outputs),
        EngineMessage::Dead => panic!("the engine lives"),
    }
}

/// A message with one token for one request.
fn token(engine_index: u32, request_id: &str, token: u32, finish: Option<FinishReason>) -> Vec<u8> {
    let mut step = StepEncoder::new(VllmMinor::V0_33.rules());
    step.tokens(request_id, &[token], finish.map(|reason| (reason, None)));
    let mut frame = Vec::new();
    step.finish(StepEnd { engine_index, timestamp: 1.0, ..StepEnd::default() }, &mut frame);
    frame
}
