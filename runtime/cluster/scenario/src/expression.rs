//! Evaluates single values of the vocabulary for commands that take them as options, such as `knobs(#{ ttft:
//! "200ms", itl: "10ms" })`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rhai::{Dynamic, Position, Scope};
use vcr_base::random::Distribution;
use vcr_cluster::{LatencyFactory, Overheads, PolicyFactory, PoolConfig, RouterConfig, ScalerFactory, Target};
use vcr_core::{EngineConfigInput, Policy};
use vcr_guest::Limits;
use vcr_model::vllm_args::{Deployment, VllmArgs};

use crate::script::context::Context;
use crate::script::error::{self, Blame, ScenarioError};
use crate::script::options::{ScriptDistribution, as_number};
use crate::vocabulary::cluster::PoolSpec;
use crate::vocabulary::cluster::{autoscale, router};
use crate::vocabulary::engine::policy::PolicySpec;
use crate::vocabulary::guest::GuestSpec;
use crate::vocabulary::latency::LatencySpec;
use crate::vocabulary::placement::Placement;
use crate::vocabulary::run::target;
use crate::vocabulary::script_engine;
use crate::{RunOptions, Silent};

/// Evaluates `source` to a latency model. Relative paths in `source` start at `folder`, and errors call it `name`.
/// With live engines, each call of a guest may take `guest_wall_time`.
///
/// # Errors
/// If `source` is not an expression of the vocabulary, or has a value of another kind.
pub fn latency(
    name: &str,
    source: &str,
    folder: &Path,
    guest_wall_time: Option<Duration>,
) -> Result<LatencyFactory, ScenarioError> {
    let value = evaluate(name, source, folder, guest_wall_time)?;
    let spec = LatencySpec::of(&value).map_err(|what| {
        let hint = "write one as in scenarios: knobs(#{ ttft: \"200ms\", itl: \"10ms\" })";
        wrong(name, &format!("expected {what}"), hint)
    })?;
    Ok(spec.factory)
}

/// The contradictions between the latency model in `source` and a command line of `vllm serve`, with suggested
/// corrections.
pub fn contradictions(
    name: &str,
    source: &str,
    folder: &Path,
    (option, args): (&'static str, &VllmArgs),
) -> Result<Vec<String>, ScenarioError> {
    let value = evaluate(name, source, folder, None)?;
    let placement = LatencySpec::of(&value).ok().and_then(|spec| spec.placement);
    let of_engine = Placement::of_args(option, args);
    Ok(placement.map(|placement| Placement::contradictions(&of_engine, &placement)).unwrap_or_default())
}

/// The latency model's time outside of steps; None if the model has none.
pub fn overheads(name: &str, source: &str, folder: &Path) -> Result<Option<Overheads>, ScenarioError> {
    let value = evaluate(name, source, folder, None)?;
    let spec = LatencySpec::of(&value).map_err(|what| {
        let hint = "write one as in scenarios: fitted(#{ path: \"model.json\" })";
        wrong(name, &format!("expected {what}"), hint)
    })?;
    Ok(spec.overheads)
}

/// Evaluates `source` to engines with a latency model that takes no time. `source` may be the map of `engine(#{ ...
/// })` with or without braces, the same as JSON, a command line of `vllm serve` or only its arguments, or a whole
/// `pool(#{ ... })`.
///
/// # Errors
/// When `source` is not an expression of the vocabulary, or has a value of another kind. Positions refer to
/// `source`.
pub fn engines(name: &str, source: &str) -> Result<PoolConfig, ScenarioError> {
    let source = source.trim();
    if is_command_line(source) {
        return engines_of_args(name, source);
    }
    // The source starts on a line of its own, after the text `before`.
    let (start, before, end) = match source {
        _ if source.starts_with("pool(") => ("", "", ""),
        _ if source.starts_with("engine(") => (POOL, "", "})"),
        _ if source.starts_with("#{") => (ENGINE, "", ")})"),
        _ if source.starts_with('{') => (ENGINE, "#", ")})"),
        _ => (ENGINE_OPTIONS, "", "})})"),
    };
    let script = format!("{start}\n{before}{source}\n{end}");
    let made = evaluate(name, &script, Path::new(""), None)
        .map_err(|error| ScenarioError { at: error.at.and_then(|at| place_in(source, before, at)), ..error });
    pool_of(name, made?)
}

const POOL: &str = "pool(#{ latency: fixed(#{ step: \"1ms\" }), engine:";
const ENGINE: &str = "pool(#{ latency: fixed(#{ step: \"1ms\" }), engine: engine(";
const ENGINE_OPTIONS: &str = "pool(#{ latency: fixed(#{ step: \"1ms\" }), engine: engine(#{";

/// Converts a position in the script to a position in the source. The source starts in the script's second line
/// after `before`. None outside of the source.
fn place_in(source: &str, before: &str, (line, column): (usize, usize)) -> Option<(usize, usize)> {
    let line = line.checked_sub(1).filter(|line| (1..=source.lines().count()).contains(line))?;
    let shift = if line == 1 { before.len() } else { 0 };
    Some((line, column.saturating_sub(shift).max(1)))
}

fn pool_of(name: &str, value: Dynamic) -> Result<PoolConfig, ScenarioError> {
    value.try_cast::<PoolSpec>().map(|pool| pool.config).ok_or_else(|| {
        wrong(name, "it describes no engine", "write its settings: num_gpu_blocks: 27_000, max_num_seqs: 256")
    })
}

/// Whether `source` is a command line of `vllm serve`, or its arguments.
fn is_command_line(source: &str) -> bool {
    let first = source.split_whitespace().next().unwrap_or_default();
    first.starts_with('-') || first == "vllm" || ["vllm serve", "vllm.entrypoints"].iter().any(|it| source.contains(it))
}

/// The argument's name in older versions of vcr, and its name in vLLM.
const NUM_GPU_BLOCKS: [&str; 2] = ["--num-gpu-blocks", "--num-gpu-blocks-override"];

/// The engines of a command line. If neither an argument nor the model determines the number of KV blocks, it is
/// that of `engine(#{})`.
fn engines_of_args(name: &str, source: &str) -> Result<PoolConfig, ScenarioError> {
    let [older, own] = NUM_GPU_BLOCKS;
    let word = |word: &str| match word.strip_prefix(older) {
        Some(rest) if rest.is_empty() || rest.starts_with('=') => format!("{own}{rest}"),
        _ => word.to_owned(),
    };
    let command = source.split(' ').map(word).collect::<Vec<_>>().join(" ");
    let invalid = |message: String| ScenarioError {
        blame: Blame::Input,
        file: name.to_owned(),
        at: None,
        message,
        hint: Some("`vcr inspect vllm-args` shows what each argument becomes".to_owned()),
    };
    let args = VllmArgs::read(&command, Deployment::default())
        .map_err(|errors| invalid(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))?;
    let blocks = args.known_blocks().map_err(|error| invalid(error.to_string()))?;
    let blocks = blocks.unwrap_or(EngineConfigInput::default().num_gpu_blocks);
    let mut scope = Scope::new();
    scope.push("command", command);
    scope.push("blocks", i64::from(blocks));
    let script = format!("{POOL} vllm_args(command, #{{ num_gpu_blocks: blocks }}) }})");
    let context = context(String::new(), Path::new(""), None);
    let made = script_engine(&context).eval_expression_with_scope::<Dynamic>(&mut scope, &script);
    // Positions refer to the generated script, which the user does not see.
    let made = made.map_err(|error| ScenarioError { at: None, ..error::from_script(name, &error) })?;
    pool_of(name, made)
}

/// Evaluates `source` to a target. It may be a name, a URL, or an expression such as
/// `http("http://localhost:8000", #{ model: "..." })`. Errors call it `name`.
pub fn target(name: &str, source: &str) -> Result<Target, ScenarioError> {
    let is_url = source.starts_with("http://") || source.starts_with("https://");
    let is_place = |(host, port): (&str, &str)| {
        let is_host =
            host.starts_with('[') || !host.contains(|c: char| !c.is_ascii_alphanumeric() && !"-._".contains(c));
        is_host && !host.is_empty() && port.parse::<u16>().is_ok()
    };
    let value = if is_url {
        Dynamic::from(source.to_owned())
    } else if source.rsplit_once(':').is_some_and(is_place) {
        Dynamic::from(format!("http://{source}"))
    } else {
        named(name, source, Path::new(""), None)?
    };
    target::of(&value).map_err(|(problem, hint)| ScenarioError {
        blame: Blame::Input,
        file: name.to_owned(),
        at: None,
        message: problem,
        hint,
    })
}

/// Evaluates `source` to a scheduling policy: the policy of engines, and the factory of rankings unless the engines'
/// own rules apply. A single word is taken as a policy's name. Anything else is evaluated like [`latency`].
///
/// # Errors
/// When `source` is not an expression of the vocabulary, or has a value of another kind.
pub fn policy(
    name: &str,
    source: &str,
    folder: &Path,
    guest_wall_time: Duration,
) -> Result<(Policy, Option<PolicyFactory>), ScenarioError> {
    let spec = PolicySpec::of(&named(name, source, folder, Some(guest_wall_time))?).map_err(|what| {
        let hint = "write a name, or an expression as in scenarios: fair_share(#{ weights: #{ \"3\": 2.0 } })";
        wrong(name, &format!("expected {what}"), hint)
    })?;
    Ok((spec.policy, spec.factory))
}

/// Like [`policy`], for the fallback of a guest: `fcfs` and `priority` also become rankings.
pub fn ranking_policy(
    name: &str,
    source: &str,
    folder: &Path,
    guest_wall_time: Duration,
) -> Result<PolicyFactory, ScenarioError> {
    let (policy, factory) = policy(name, source, folder, guest_wall_time)?;
    Ok(PolicySpec { policy, factory }.into_ranking())
}

/// Evaluates `source` to a router. A single word is taken as a router's name. Anything else is evaluated like
/// [`latency`].
///
/// # Errors
/// If `source` is not an expression of the vocabulary, or has a value of another kind.
pub fn router(
    name: &str,
    source: &str,
    folder: &Path,
    guest_wall_time: Option<Duration>,
) -> Result<RouterConfig, ScenarioError> {
    router::of(&named(name, source, folder, guest_wall_time)?).map_err(|what| {
        let hint = "write a name, or an expression as in scenarios: prefix_affinity(#{ max_waiting: 64 })";
        wrong(name, &format!("expected {what}"), hint)
    })
}

/// Loads a guest as a latency model. `reference` is a path relative to the working directory, or an `oci://`
/// reference. Errors call it `name`.
///
/// # Errors
/// If the guest cannot be loaded, or does not implement a latency model.
pub fn guest_latency(name: &str, reference: &str) -> Result<LatencyFactory, ScenarioError> {
    let spec = LatencySpec::of(&guest(name, reference, "{}")?)
        .map_err(|what| wrong(name, &format!("expected {what}"), "give the path of a guest that is a latency model"))?;
    Ok(spec.factory)
}

/// Loads a guest as a router; otherwise like [`guest_latency`].
pub fn guest_router(name: &str, reference: &str) -> Result<RouterConfig, ScenarioError> {
    router::of(&guest(name, reference, "{}")?)
        .map_err(|what| wrong(name, &format!("expected {what}"), "give the path of a guest that is a router"))
}

/// Loads a guest with this JSON configuration as an autoscaler; otherwise like [`guest_latency`].
pub fn guest_autoscaler(name: &str, reference: &str, config_json: &str) -> Result<ScalerFactory, ScenarioError> {
    autoscale::of_guest(&guest(name, reference, config_json)?)
        .map_err(|what| wrong(name, &format!("expected {what}"), "give the path of a guest that is an autoscaler"))
}

/// Evaluates `source` to a distribution of counts. A number is a constant distribution.
///
/// # Errors
/// If `source` is not an expression of the vocabulary, or has a value of another kind.
pub fn count_distribution(name: &str, source: &str) -> Result<Distribution, ScenarioError> {
    let value = evaluate(name, source, Path::new(""), None)?;
    if let Some(value) = as_number(&value) {
        return Ok(Distribution::Constant { value });
    }
    match value.try_cast::<ScriptDistribution>() {
        Some(made) if !made.is_time => Ok(made.distribution),
        _ => Err(wrong(name, "expected a distribution of counts", "write a number, or for example lognormal(200, 80)")),
    }
}

fn wrong(name: &str, message: &str, hint: &str) -> ScenarioError {
    ScenarioError {
        blame: Blame::Input,
        file: name.to_owned(),
        at: None,
        message: message.to_owned(),
        hint: Some(hint.to_owned()),
    }
}

/// The text itself if `source` is a single word; otherwise the value of the expression.
fn named(name: &str, source: &str, folder: &Path, guest_wall_time: Option<Duration>) -> Result<Dynamic, ScenarioError> {
    let is_word = source.chars().all(|character| character.is_ascii_alphanumeric() || "-_".contains(character));
    if is_word { Ok(Dynamic::from(source.to_owned())) } else { evaluate(name, source, folder, guest_wall_time) }
}

/// Loads a guest, as the vocabulary represents it, without a script.
fn guest(name: &str, reference: &str, config_json: &str) -> Result<Dynamic, ScenarioError> {
    let context = context(String::new(), Path::new(""), None);
    let loaded = GuestSpec::load(&context, reference, Limits::default(), config_json.to_owned(), Position::NONE);
    let spec = loaded.map_err(|thrown| ScenarioError {
        blame: thrown.blame,
        file: name.to_owned(),
        at: None,
        message: thrown.message,
        hint: thrown.hint,
    })?;
    Ok(Dynamic::from(spec))
}

fn context(source: String, folder: &Path, guest_wall_time: Option<Duration>) -> Arc<Context> {
    let mut context = Context::new(source, folder.to_owned(), RunOptions::default(), Arc::new(Silent), None);
    context.guest_wall_time = guest_wall_time;
    Arc::new(context)
}

fn evaluate(
    name: &str,
    source: &str,
    folder: &Path,
    guest_wall_time: Option<Duration>,
) -> Result<Dynamic, ScenarioError> {
    let context = context(source.to_owned(), folder, guest_wall_time);
    let engine = script_engine(&context);
    engine.eval_expression::<Dynamic>(source).map_err(|error| error::from_script(name, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_of_the_vocabulary_is_enough() {
        let made = latency("--latency", "fixed(#{ step: \"10ms\" })", Path::new(""), None);
        assert!(made.is_ok());
        assert!(matches!(router("--router", "least-loaded", Path::new(""), None), Ok(RouterConfig::LeastLoaded)));
        let made = router("--router", "kv_aware(#{ prefill_load_scale: 2.0 })", Path::new(""), None);
        assert!(matches!(made, Ok(RouterConfig::KvAware(_))));
        let made = |source| {
            policy("--policy", source, Path::new(""), Duration::MAX).map(|(policy, ranks)| (policy, ranks.is_some()))
        };
        assert_eq!(made("priority").ok(), Some((Policy::Priority, false)));
        assert_eq!(made("fair-share").ok(), Some((Policy::Ranked, true)));
        assert_eq!(made("shortest_prompt_first(#{ aging_tokens_per_s: 9 })").ok(), Some((Policy::Ranked, true)));
        let router = |source| router("--router", source, Path::new(""), Some(Duration::MAX)).is_ok();
        assert!(router("round-robin") && router("prefix_affinity(#{ max_waiting: 3 })"));
        assert_eq!(count_distribution("--n", "200").ok(), Some(Distribution::Constant { value: 200.0 }));
        assert_eq!(count_distribution("--n", "uniform(1, 5)").ok(), Some(Distribution::Uniform { min: 1.0, max: 5.0 }));
    }

    #[test]
    fn engines_are_described_as_users_write_them() {
        let seqs = |source: &str| {
            let pool = engines("--engine", source).map_err(|error| error.to_string())?;
            let config = pool.engine.as_vllm().ok_or("not vLLM's")?;
            Ok::<_, String>((config.max_num_seqs(), config.enable_prefix_caching()))
        };
        for source in [
            "engine(#{ max_num_seqs: 7 })",
            "#{ max_num_seqs: 7 }",
            "{\"max_num_seqs\": 7}",
            "max_num_seqs: 7",
            "--max-num-seqs 7",
            "--enable-prefix-caching --max-num-seqs=7",
            "--num-gpu-blocks 900 --max-num-seqs 7",
            "vllm serve Qwen/Qwen3-8B -tp 2 --max-num-seqs 7",
            "--model Qwen/Qwen3-8B --num-gpu-blocks-override=9000 --max-num-seqs 7",
            "pool(#{ engine: engine(#{ max_num_seqs: 7 }), latency: fixed(#{ step: \"1s\" }) })",
        ] {
            assert_eq!(seqs(source), Ok((7, true)), "{source}");
        }
        assert_eq!(seqs("--no-enable-prefix-caching --max-num-seqs 9"), Ok((9, false)));
        assert!(seqs("max_num_sqs: 7").expect_err("unknown").contains("has no option `max_num_sqs`"));
        let blocks = |source: &str| {
            let pool = engines("--engine", source).unwrap_or_else(|error| panic!("{source}: {error}"));
            pool.engine.as_vllm().map(|config| config.num_gpu_blocks())
        };
        for source in ["--num-gpu-blocks-override 900", "--num-gpu-blocks 900", "vllm serve m --num-gpu-blocks=900"] {
            assert_eq!(blocks(source), Some(900), "{source}");
        }
        assert_eq!(blocks("vllm serve m"), blocks("max_num_seqs: 256"), "neither stated nor known");
        assert!(blocks("vllm serve Qwen/Qwen3-8B") > Some(20_000), "those of the model on an H100");
        assert!(seqs("pool(#{}").is_err());
        // Error positions refer to the user's text.
        let at = |source: &str| engines("--engine", source).err().expect("it is wrong").at;
        assert_eq!(at("max_num_seqs: abc"), Some((1, 15)));
        assert_eq!(at("{\"max_num_seqs\": abc}"), Some((1, 18)));
        assert_eq!(at("#{ max_num_seqs: abc }"), Some((1, 18)));
        assert_eq!(at("engine(#{\n  max_num_seqs: abc })"), Some((2, 17)));
        assert_eq!(at("max_num_sqs: 7"), Some((1, 1)));
        let error = |source: &str| engines("--engine", source).err().expect("it is wrong").to_string();
        assert_eq!(
            error("--max-num-sqs 3"),
            "--engine: unknown argument `--max-num-sqs`: did you mean `--max-num-seqs`?"
        );
        assert_eq!(
            error("vllm serve m --max-num-seqs x"),
            "--engine: invalid `--max-num-seqs x`: expected a whole number from 1 to 4294967295"
        );
    }

    #[test]
    fn anything_else_is_refused_with_its_place() {
        let made = |source| latency("--latency", source, Path::new(""), None);
        let error = |source| made(source).err().expect("it is wrong").to_string();
        assert!(error("7").starts_with("--latency: expected a latency model"));
        assert!(error("fixed(#{ stp: \"10ms\" })").starts_with("--latency:1:"), "{}", error("fixed(#{ stp: 1 })"));
        let error_of =
            |source| policy("--policy", source, Path::new(""), Duration::MAX).err().expect("it is wrong").to_string();
        assert!(error_of("fsfs").contains("did you mean"), "{}", error_of("fsfs"));
        assert!(error_of("fixed(#{ step: \"1ms\" })").contains("got a latency model"));
        let router = |source| {
            router("--router", source, Path::new(""), Some(Duration::MAX)).err().map(|error| error.to_string())
        };
        let unknown = router("round_robin").expect("it is wrong");
        assert!(unknown.contains("did you mean `round-robin`"), "{unknown}");
        assert!(router("prefix_affinity(#{ load_factor: 0 })").is_some());
        assert!(error("nothing(1)").contains("unknown function `nothing`"));
    }
}
