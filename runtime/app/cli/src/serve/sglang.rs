//! Settings of a simulated SGLang server.

use serde_json::{Map, Value, json};
use vcr_core::sglang::{SchedulePolicy, SglangConfig, SglangConfigInput};
use vcr_core::{NamedValue as _, PluginContext};
use vcr_live::{LiveConfig, PdRole};

use super::args::{FrontendArg, ServeArgs};
use super::backend::{BackendArg, SglangArgs};
use crate::play::unusable::Unusable;

/// The imitated version of SGLang.
const VERSION: &str = "0.5.23";

impl SglangArgs {
    pub(crate) fn is_chosen(&self) -> bool {
        self.backend == BackendArg::Sglang
    }

    /// SGLang's engine defaults as vLLM arguments. Refuses options that SGLang does not have.
    pub(crate) fn words(&self, args: &ServeArgs) -> Result<Vec<String>, Unusable> {
        let own = [
            ("--max-total-tokens", self.max_total_tokens.is_some()),
            ("--chunked-prefill-size", self.chunked_prefill_size.is_some()),
            ("--max-prefill-tokens", self.max_prefill_tokens.is_some()),
            ("--schedule-policy", self.schedule_policy.is_some()),
            ("--schedule-conservativeness", self.schedule_conservativeness.is_some()),
        ];
        let words = args.vllm.engine_words();
        if !self.is_chosen() {
            let given = own.iter().find(|(_, is_given)| *is_given);
            return match given {
                Some((flag, _)) => Err(Unusable::new(format!("{flag}: expected with --backend sglang"))),
                None => Ok(words),
            };
        }
        let others = [
            ("--frontend rust", matches!(args.server.frontend, FrontendArg::Rust)),
            ("--lora-modules", !args.server.lora_modules.is_empty()),
            ("--enable-lora", args.vllm.enables_adapters()),
            ("--mm-encoder-only", args.media.mm_encoder_only),
            ("--fake-metrics", args.clients.fake_metrics.is_some()),
            (words.first().map_or("", String::as_str), !words.is_empty()),
        ];
        if let Some((flag, _)) = others.iter().find(|(_, is_given)| *is_given) {
            return Err(Unusable::new(format!(
                "{flag}: not with --backend sglang, whose server does not have it here"
            )));
        }
        args.live.engine.sglang_words(self.max_total_tokens)
    }

    /// Switches the configuration to SGLang's scheduler.
    pub(crate) fn apply(&self, config: &mut LiveConfig) -> Result<(), Unusable> {
        if !self.is_chosen() {
            return Ok(());
        }
        if config.transfer.plane.is_some() {
            return Err(Unusable::new(
                "--kv-transfer: expected none with --backend sglang, whose pages are counted and have no places",
            ));
        }
        let times = (config.latency)(&PluginContext::of_seed(0)).map(|model| model.request_times().is_some());
        if times.is_ok_and(|has_times| has_times) {
            return Err(Unusable {
                message: "times of single requests: not with --backend sglang, whose passes have times".to_owned(),
                hint: Some("give --prefill-step-time and --decode-step-time, or --latency".to_owned()),
            });
        }
        let (engine, own) = (&config.engine, SglangConfigInput::default());
        let page_size = engine.block_size();
        let whole_pages = |tokens: u32| (tokens - tokens % page_size).max(page_size);
        let policy = self.schedule_policy.as_deref().and_then(SchedulePolicy::of_name);
        let input = SglangConfigInput {
            page_size,
            num_pages: engine.num_gpu_blocks(),
            max_num_seqs: engine.max_num_seqs(),
            max_model_len: Some(engine.max_model_len()),
            enable_prefix_caching: engine.enable_prefix_caching(),
            schedule_policy: policy.unwrap_or_default(),
            max_prefill_tokens: self.max_prefill_tokens.unwrap_or(own.max_prefill_tokens.max(page_size)),
            chunked_prefill_size: self.chunked_prefill_size.unwrap_or(whole_pages(own.chunked_prefill_size)),
            schedule_conservativeness: self.schedule_conservativeness.unwrap_or(own.schedule_conservativeness),
            ..own
        };
        let sglang = SglangConfig::new(input).map_err(|errors| {
            let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
            Unusable::new(lines.join("\n"))
        })?;
        config.sglang = Some(sglang);
        // SGLang fails requests whose KV does not arrive.
        config.transfer.load_failure = vcr_live::LoadFailurePolicy::Fail;
        Ok(())
    }
}

/// Role of the engines with disaggregated prefill and decode; none otherwise.
pub(crate) fn part(config: &LiveConfig) -> Option<PdRole> {
    config.transfer.meetings.as_ref().and_then(|meetings| meetings.role)
}

/// Role of the engines in SGLang's metrics; none for vLLM.
pub(crate) fn engine_type(config: &LiveConfig) -> Option<&'static str> {
    config.sglang.as_ref()?;
    Some(match part(config) {
        None => "unified",
        Some(PdRole::Prefill) => "prefill",
        Some(PdRole::Decode) => "decode",
    })
}

/// The settings that SGLang's server info reports.
pub(crate) fn info(args: &ServeArgs, config: &LiveConfig) -> Option<Map<String, Value>> {
    let settings = config.sglang.as_ref()?.stated();
    let mode = match part(config) {
        None => "null",
        Some(PdRole::Prefill) => "prefill",
        Some(PdRole::Decode) => "decode",
    };
    let tokens = u64::from(settings.page_size) * u64::from(settings.num_pages);
    let info = json!({
        "version": VERSION,
        "host": args.server.host,
        "port": args.server.port,
        "page_size": settings.page_size,
        "max_total_tokens": tokens,
        "max_total_num_tokens": tokens,
        "max_running_requests": settings.max_num_seqs,
        "max_prefill_tokens": settings.max_prefill_tokens,
        "chunked_prefill_size": settings.chunked_prefill_size,
        "schedule_policy": if settings.schedule_policy == SchedulePolicy::Lpm { "lpm" } else { "fcfs" },
        "schedule_conservativeness": settings.schedule_conservativeness,
        "disable_radix_cache": !settings.enable_prefix_caching,
        "tp_size": config.identity.tensor_parallel_size,
        "pp_size": 1,
        "load_balance_method": "auto",
        "disaggregation_mode": mode,
        "random_seed": config.seed,
        "status": "ready",
    });
    info.as_object().cloned()
}
