//! A frontend of this benchmark, with one engine behind it.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use vcr_core::seed::{derive, mix};
use vcr_wire::{
    DataAddress, EngineCoreOutputs, EngineCoreRequest, EngineMessage, FinishReason, FrontendConfig, FrontendLink,
    FrontendListener, Integer, OutputKind, Protocol, ProtocolRules, Request, SamplingParams, Transport, UtilityCall,
    Value, VllmMinor, monotonic_ns,
};

use crate::Failure;
use crate::process::{Cpu, Process, free_port, own_cpu};

/// Longer than an engine is silent while it has work.
const PATIENCE: Duration = Duration::from_secs(60);
/// Drawn token IDs are below this limit, as in most vocabularies.
const VOCAB_SIZE: u64 = 32_000;

/// Settings with which engines start.
#[derive(Clone)]
pub(crate) struct Setup {
    /// Words of the engine's command. `{address}` stands for the handshake address.
    pub(crate) engine: Vec<String>,
    /// Words of the relay's command; empty if there is no relay. `{frontend}` stands for the address to which the
    /// relay connects, and `{engines}` for its own address for engines.
    pub(crate) relay: Vec<String>,
    pub(crate) sockets: Sockets,
    pub(crate) seed: u64,
}

/// Transport of requests and outputs.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Sockets {
    /// Sockets of the file system.
    Ipc,
    /// The loopback interface.
    Tcp,
}

impl Setup {
    /// Words of the engine's command with the address and further options.
    pub(crate) fn command(&self, address: &str, options: &[String]) -> Vec<String> {
        let words = self.engine.iter().map(|word| word.replace("{address}", address));
        words.chain(options.iter().cloned()).collect()
    }

    /// Starts the relay, if any, and returns the address for the engine.
    pub(crate) fn start_relay(&self, frontend: &str, engines: &str) -> Result<(Option<Process>, String), Failure> {
        if self.relay.is_empty() {
            return Ok((None, frontend.to_owned()));
        }
        let words = self.relay.iter().map(|word| word.replace("{frontend}", frontend).replace("{engines}", engines));
        Ok((Some(Process::start(&words.collect::<Vec<_>>())?), engines.to_owned()))
    }
}

/// Requests of one shape, of which `at_once` run at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) requests: u64,
    pub(crate) at_once: u64,
    pub(crate) prompt_tokens: u32,
    pub(crate) output_tokens: u32,
}

/// Cost of a load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) requests: u64,
    pub(crate) tokens: u64,
    pub(crate) messages: u64,
    pub(crate) wall_s: f64,
    pub(crate) engine: Cpu,
    pub(crate) relay: Cpu,
    pub(crate) client: Cpu,
}

pub(crate) struct Arrival {
    pub(crate) at_ns: u64,
    pub(crate) outputs: Box<EngineCoreOutputs>,
}

/// A frontend and its engine, which ends with the frontend.
pub(crate) struct Client {
    pub(crate) engine: Process,
    pub(crate) relay: Option<Process>,
    link: FrontendLink,
    rules: &'static ProtocolRules,
    seed: u64,
    sent: u64,
    calls: u64,
    /// Remaining tokens of each request; 0 when it has ended.
    left: Vec<u32>,
    /// Folder of the sockets, if they are files.
    _folder: tempfile::TempDir,
}

impl Client {
    /// Starts an engine and waits until it is ready.
    pub(crate) fn start(setup: &Setup, options: &[String]) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let (handshake_address, engines, data) = match setup.sockets {
            Sockets::Ipc => (
                format!("ipc://{}/handshake", folder.path().display()),
                format!("ipc://{}/engines", folder.path().display()),
                DataAddress::Ipc { folder: folder.path().to_owned() },
            ),
            Sockets::Tcp => (
                "tcp://127.0.0.1:*".to_owned(),
                format!("tcp://127.0.0.1:{}", free_port()?),
                DataAddress::Tcp { host: "127.0.0.1".to_owned() },
            ),
        };
        let config = FrontendConfig { handshake_address, data, clients: 1, engines: 1, coordinator: false };
        let listener = FrontendListener::bind(&Transport::new(), config)?;
        let (relay, address) = setup.start_relay(listener.handshake_address(), &engines)?;
        let engine = Process::start(&setup.command(&address, options))?;
        let link = listener.accept(PATIENCE)?;
        Ok(Self {
            engine,
            relay,
            link,
            rules: VllmMinor::V0_33.rules(),
            seed: derive(setup.seed, "bench.prompts", 0),
            sent: 0,
            calls: 0,
            left: Vec::new(),
            _folder: folder,
        })
    }

    /// Sends a request with a unique prompt.
    pub(crate) fn send(&mut self, prompt_tokens: u32, output_tokens: u32) -> Result<String, Failure> {
        self.send_prompt(self.sent, prompt_tokens, output_tokens, None)
    }

    /// Sends a request whose prompt depends on `content`, with KV-transfer parameters if given. Returns the
    /// request's ID.
    pub(crate) fn send_prompt(
        &mut self,
        content: u64,
        prompt_tokens: u32,
        output_tokens: u32,
        kv_transfer_params: Option<Value>,
    ) -> Result<String, Failure> {
        let index = self.sent;
        let base = mix(self.seed ^ content);
        let extra_args =
            kv_transfer_params.map(|params| Value::Map(vec![(Value::Str("kv_transfer_params".to_owned()), params)]));
        let prompt = (0..u64::from(prompt_tokens)).map(|place| ((mix(base ^ place) >> 32) % VOCAB_SIZE) as u32);
        let request = EngineCoreRequest {
            request_id: name(index),
            prompt_token_ids: Some(prompt.collect()),
            sampling_params: Some(SamplingParams {
                temperature: 0.6,
                top_p: 0.95,
                top_k: 20,
                max_tokens: Some(output_tokens),
                output_kind: OutputKind::Delta,
                eos_token_id: Some(VOCAB_SIZE as u32),
                all_stop_token_ids: vec![VOCAB_SIZE as u32],
                extra_args,
                ..SamplingParams::default()
            }),
            ..EngineCoreRequest::default()
        };
        self.link.send(0, 0, &Request::Add(Box::new(request)), &[], self.rules)?;
        self.left.push(output_tokens);
        self.sent += 1;
        Ok(name(index))
    }

    /// Waits for the next message. Silence is an error.
    pub(crate) fn receive(&mut self) -> Result<Arrival, Failure> {
        let message = self.link.receive(PATIENCE)?;
        let at_ns = monotonic_ns();
        let Some(message) = message else {
            self.engine.check()?;
            return Err(format!("the engine was silent for {} s", PATIENCE.as_secs()).into());
        };
        match message.decode()? {
            EngineMessage::Outputs(outputs) => Ok(Arrival { at_ns, outputs }),
            EngineMessage::Dead => Err("the engine reports that it is dead".into()),
        }
    }

    /// Checks outputs against the requests. Returns the number of received tokens and of ended requests.
    pub(crate) fn note(&mut self, outputs: &EngineCoreOutputs) -> Result<(u64, u64), Failure> {
        let (mut tokens, mut ended) = (0, 0);
        for output in &outputs.outputs {
            let id = &output.request_id;
            let index = index(id).ok_or_else(|| format!("the engine speaks of {id}, which nobody sent"))?;
            let left = self.left.get_mut(index).ok_or_else(|| format!("{id} was not sent yet"))?;
            let new = output.new_token_ids.len() as u32;
            *left = left.checked_sub(new).ok_or_else(|| format!("{id} got more tokens than it wants"))?;
            tokens += u64::from(new);
            match output.finish_reason {
                None if *left > 0 => {}
                Some(FinishReason::Length) if *left == 0 => ended += 1,
                other => return Err(format!("{id} ended as {other:?} with {left} tokens to come").into()),
            }
        }
        Ok((tokens, ended))
    }

    /// Calls a function without effect in the engine and waits for the answer. The engine has then received
    /// everything sent before.
    pub(crate) fn wait_until_taken(&mut self) -> Result<(), Failure> {
        self.calls += 1;
        let call_id = Integer::from(self.calls);
        let call = UtilityCall { call_id, method: "is_sleeping".to_owned(), ..UtilityCall::default() };
        self.link.send(0, 0, &Request::Utility(call), &[], self.rules)?;
        loop {
            let arrival = self.receive()?;
            self.note(&arrival.outputs)?;
            if arrival.outputs.utility_output.is_some_and(|answer| answer.call_id == call_id) {
                return Ok(());
            }
        }
    }

    /// Aborts all requests, `in_a_message` per message.
    pub(crate) fn abort_all(&mut self, in_a_message: u64) -> Result<(), Failure> {
        for first in (0..self.sent).step_by(in_a_message as usize) {
            let ids = (first..self.sent.min(first + in_a_message)).map(name).collect();
            self.link.send(0, 0, &Request::Abort(ids), &[], self.rules)?;
        }
        Ok(())
    }

    pub(crate) fn relay_cpu(&self) -> Result<Cpu, Failure> {
        self.relay.as_ref().map_or(Ok(Cpu::default()), Process::cpu)
    }

    /// Sends the requests of a load, each when an earlier one has ended, and waits for all of them.
    pub(crate) fn closed_loop(&mut self, load: Load) -> Result<Spent, Failure> {
        let (engine, relay, client) = (self.engine.cpu()?, self.relay_cpu()?, own_cpu()?);
        let started = Instant::now();
        let (mut to_send, mut running) = (load.requests, 0);
        let mut spent = Spent::default();
        while to_send > 0 || running > 0 {
            while to_send > 0 && running < load.at_once {
                self.send(load.prompt_tokens, load.output_tokens)?;
                to_send -= 1;
                running += 1;
            }
            let arrival = self.receive()?;
            let (tokens, ended) = self.note(&arrival.outputs)?;
            spent.messages += 1;
            spent.tokens += tokens;
            spent.requests += ended;
            running -= ended;
        }
        spent.wall_s = started.elapsed().as_secs_f64();
        // The engine may still be working on the last message.
        self.wait_until_taken()?;
        spent.engine = self.engine.cpu()?.since(engine);
        spent.relay = self.relay_cpu()?.since(relay);
        spent.client = own_cpu()?.since(client);
        Ok(spent)
    }
}

impl Spent {
    pub(crate) fn engine_us_per_request(&self) -> f64 {
        self.engine.total_ns as f64 / 1e3 / self.requests as f64
    }

    pub(crate) fn engine_us_per_token(&self) -> f64 {
        self.engine.total_ns as f64 / 1e3 / self.tokens as f64
    }
}

/// An ID as long as those of vllm-rs.
fn name(index: u64) -> String {
    format!("cmpl-{index:032x}-0")
}

fn index(id: &str) -> Option<usize> {
    usize::from_str_radix(id.strip_prefix("cmpl-")?.get(..32)?, 16).ok()
}
