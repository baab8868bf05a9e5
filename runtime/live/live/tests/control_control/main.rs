//! The control plane as its clients see it: real engines, real HTTP.

mod changing;
mod hostile;
mod reporting;
mod serving;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::Agent;
use ureq::http::Response;
use vcr_core::host::Overheads;
use vcr_core::latency::{LatencyError, LatencyModel, StepBatch};
use vcr_core::{EngineConfig, EngineConfigInput};
use vcr_live::control::{Addresses, ControlPlane, LatencyReader, Listeners, UnusableModel};
use vcr_live::{
    Identity, LatencyFactory, Limits, LiveConfig, LiveEngines, Snapshot, StatsSettings, TokenChoice, TokenSettings,
    TransferSettings,
};
use vcr_wire::Dtype;

/// Long enough even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Nothing listens at this address, so engines wait.
const UNUSED_ADDRESS: &str = "tcp://127.0.0.1:1";

/// A latency model whose steps all take this number of nanoseconds.
struct Fixed(u64);

impl LatencyModel for Fixed {
    fn price(&mut self, _: &StepBatch<'_>, durations_ns: &mut Vec<u64>) -> Result<(), LatencyError> {
        durations_ns.push(self.0);
        Ok(())
    }
}

fn fixed(step_ns: u64) -> LatencyFactory {
    Arc::new(move |_| Ok(Box::new(Fixed(step_ns))))
}

/// Reads numbers of milliseconds, one model that cannot be made, and guests.
fn reader() -> LatencyReader {
    Arc::new(|text, config| {
        if let Some(config) = config {
            return Ok((fixed(0), format!("guest {config}")));
        }
        match (text, text.parse::<u64>()) {
            ("broken", _) => {
                let error = || LatencyError { model: "broken".to_owned(), reason: "it is broken".to_owned() };
                let make: LatencyFactory = Arc::new(move |_| Err(error()));
                Ok((make, text.to_owned()))
            }
            (_, Ok(milliseconds)) => Ok((fixed(milliseconds * 1_000_000), format!("{milliseconds} ms"))),
            _ => Err(UnusableModel {
                message: format!("`{text}` is not a model"),
                hint: Some("write a number of milliseconds".to_owned()),
            }),
        }
    })
}

fn config(handshake_address: &str, num_ranks: u16) -> LiveConfig {
    let engine = EngineConfigInput { max_model_len: Some(4096), ..EngineConfigInput::default() };
    LiveConfig {
        sglang: None,
        identity: Identity {
            handshake_address: handshake_address.to_owned(),
            connect_timeout: None,
            first_rank: 0,
            num_ranks,
            version: None,
            vllm_version: None,
            instance_id: "test".to_owned(),
            dtype: Dtype::Bfloat16,
            tensor_parallel_size: 1,
            is_local: false,
            is_headless: true,
            parallel_config_hash: None,
            is_moe: None,
        },
        engine: EngineConfig::new(engine).expect("the settings are right"),
        latency: fixed(1_000_000),
        latency_name: "1 ms".to_owned(),
        overheads: Overheads::default(),
        grammar_compile_ns: 0,
        time_scale: 1.0,
        tokens: TokenSettings {
            choice: TokenChoice::Random,
            vocab_size: 32_000,
            output_tokens: None,
            acceptance_rates: Vec::new(),
            embedding_dimensions: None,
        },
        playback: None,
        seed: 0,
        stats: StatsSettings { log_stats: true, iteration_details: false, connector: false, log_requests: false },
        kv_events: None,
        transfer: TransferSettings::new("test"),
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

/// Engines and both parts of their control plane.
struct Site {
    engines: LiveEngines,
    control: ControlPlane,
    metrics: SocketAddr,
    admin: SocketAddr,
    agent: Agent,
}

impl Site {
    /// Engines that wait for a frontend.
    fn waiting(num_ranks: u16) -> Self {
        Self::behind(UNUSED_ADDRESS, num_ranks)
    }

    fn behind(handshake_address: &str, num_ranks: u16) -> Self {
        let both = Addresses { metrics: Some("127.0.0.1:0"), admin: Some("127.0.0.1:0"), gpus: None };
        let listeners = Listeners::bind(&both).expect("there are free ports");
        let metrics = listeners.metrics_address().expect("it is served");
        let admin = listeners.admin_address().expect("it is served");
        let engines = LiveEngines::start(config(handshake_address, num_ranks)).expect("engines start");
        let control = listeners.serve(engines.handle(), reader()).expect("there are threads");
        let agent = Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).build();
        Self { engines, control, metrics, admin, agent: agent.into() }
    }

    fn get(&self, path: &str) -> Answer {
        self.get_at(self.admin, path)
    }

    fn get_at(&self, address: SocketAddr, path: &str) -> Answer {
        Answer::of(self.agent.get(format!("http://{address}{path}")).call().expect("an answer comes"))
    }

    fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        let request = self.agent.post(format!("http://{}{path}", self.admin));
        Answer::of(request.send(body.as_ref()).expect("an answer comes"))
    }

    fn delete(&self, path: &str, body: &str) -> Answer {
        let request = self.agent.delete(format!("http://{}{path}", self.admin)).force_send_body();
        Answer::of(request.send(body).expect("an answer comes"))
    }

    #[track_caller]
    fn wait_until(&self, holds: impl Fn(&Snapshot) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !self.engines.handle().snapshots().iter().all(&holds) {
            assert!(Instant::now() < end, "it does not come to that: {:?}", self.engines.handle().snapshots());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn end(self) {
        self.engines.handle().shut_down();
        self.engines.wait().expect("engines end well");
        drop(self.control);
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    content_type: String,
    text: String,
}

impl Answer {
    fn of(mut response: Response<ureq::Body>) -> Self {
        let content_type = response.headers().get("content-type").and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        let text = response.body_mut().read_to_string().expect("it is text");
        Self { status: response.status().as_u16(), content_type, text }
    }

    #[track_caller]
    fn json(&self) -> Value {
        assert_eq!(self.content_type, "application/json", "{self:?}");
        serde_json::from_str(&self.text).expect("it is JSON")
    }

    /// Checks the status of the answer.
    #[track_caller]
    fn of_status(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// Checks that the answer is an error with this status, and returns its `error` and `hint`.
    #[track_caller]
    fn error(self, status: u16) -> (String, String) {
        let json = self.of_status(status).json();
        let keys: Vec<_> = json.as_object().expect("it is an object").keys().collect();
        assert_eq!(keys, ["error", "hint"]);
        let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
        (text("error"), text("hint"))
    }
}
