//! Targets of runs.

use std::sync::Arc;

use rhai::{Array, Dynamic, Engine, ImmutableString, Map, NativeCallContext};
use vcr_base::suggestion::{did_you_mean, nearest};
use vcr_cluster::{
    AdapterNames, FrontendTarget, HttpTarget, Prompts, RunConfig, ServeTarget, SessionNames, SessionToken, Target,
    TargetDriver, TargetError,
};

use crate::script::context::Context;
use crate::script::error::{Blame, Scripted, Thrown};
use crate::script::options::{Options, as_text, describe};
use crate::script::register::with_options;
#[derive(Clone)]
pub(crate) struct TargetSpec(pub(crate) Target);

pub(crate) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_options(engine, context, "frontend", |_, options| frontend(options));
    with_options(engine, context, "serve", |_, options| serve(options));
    let shared = Arc::clone(context);
    engine.register_fn("http", move |call: NativeCallContext<'_>, url: ImmutableString, map: Map| {
        http(&url, Options::new("http", &shared.source, &call, map))
    });
    let shared = Arc::clone(context);
    engine.register_fn("http", move |call: NativeCallContext<'_>, url: ImmutableString| {
        http(&url, Options::new("http", &shared.source, &call, Map::new()))
    });
}

fn serve(mut options: Options<'_>) -> Scripted<TargetSpec> {
    let target = ServeTarget { client_faults: options.strings("client_faults").unwrap_or_default() };
    options.finish()?;
    Ok(TargetSpec(Target::Serve(target)))
}

fn frontend(mut options: Options<'_>) -> Scripted<TargetSpec> {
    let (binary, model) = (options.string("binary"), options.string("model"));
    let target = FrontendTarget {
        binary: options.required("binary", binary),
        model: options.required("model", model),
        line: options.string("line"),
        args: options.strings("args").unwrap_or_default(),
    };
    options.finish()?;
    Ok(TargetSpec(Target::Frontend(target)))
}

fn http(url: &str, mut options: Options<'_>) -> Scripted<TargetSpec> {
    let prompts = [("auto", Prompts::Auto), ("token-ids", Prompts::TokenIds), ("text", Prompts::Text)];
    let target = HttpTarget {
        url: url.to_owned(),
        model: options.string("model"),
        api_key_env: options.string("api_key_env"),
        headers: headers(&mut options),
        prompts: options.choice("prompts", &prompts).unwrap_or_default(),
        tokenizer: options.string("tokenizer"),
        vocab_size: options.u32("vocab_size"),
        ca_file: options.string("ca_file"),
        idle_timeout_ns: options.duration_ns("idle_timeout"),
        adapters: adapters(&mut options),
        sessions: sessions(&mut options),
    };
    options.finish()?;
    Ok(TargetSpec(Target::Http(target)))
}

/// Reads `session_header: "X-Session-Id"`, and `session_token: "cookie"` or the name of a header.
fn sessions(options: &mut Options<'_>) -> SessionNames {
    let mut name = |option: &'static str| {
        let name = options.string(option)?;
        let is_header = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_header {
            let message = format!("invalid `{option}`: expected the name of a header, such as \"x-session-token\"");
            options.problem(option, message);
        }
        is_header.then_some(name)
    };
    let header = name("session_header");
    let token = name("session_token");
    SessionNames {
        header,
        token: token.map(|name| if name == "cookie" { SessionToken::Cookie } else { SessionToken::Header(name) }),
    }
}

/// Reads `adapters: ["sql", "chat"]`, or `adapters: "tenant-{}"`.
fn adapters(options: &mut Options<'_>) -> AdapterNames {
    let Some(value) = options.take("adapters") else { return AdapterNames::default() };
    let names = value.clone().try_cast::<Array>();
    let names = names.map(|names| names.iter().map(as_text).collect::<Option<Vec<_>>>());
    match (as_text(&value).filter(|pattern| pattern.contains("{}")), names) {
        (Some(pattern), _) => AdapterNames::Pattern(pattern),
        (None, Some(Some(names))) => AdapterNames::Listed(names),
        _ => {
            let message = format!(
                "invalid `adapters`: expected a list of names, or a text with {{}} for the number, got {}",
                describe(&value)
            );
            options.problem("adapters", message);
            AdapterNames::default()
        }
    }
}

fn headers(options: &mut Options<'_>) -> Vec<(String, String)> {
    let Some(value) = options.take("headers") else { return Vec::new() };
    let Some(map) = value.clone().try_cast::<Map>() else {
        let message =
            format!("invalid `headers`: expected a map such as #{{ \"x-team\": \"a\" }}, got {}", describe(&value));
        options.problem("headers", message);
        return Vec::new();
    };
    let mut headers = Vec::new();
    for (name, value) in map {
        match as_text(&value) {
            Some(text) => headers.push((name.to_string(), text)),
            None => options
                .problem("headers", format!("invalid header `{name}`: expected a text, got {}", describe(&value))),
        }
    }
    headers
}

/// Reads a target: one that a function made, or the name of one that needs no options.
pub(crate) fn of(value: &Dynamic) -> Result<Target, (String, Option<String>)> {
    if let Some(TargetSpec(target)) = value.clone().try_cast::<TargetSpec>() {
        return Ok(target);
    }
    const HOW: &str = "\"virtual\", \"live\", \"serve\", serve(#{ ... }), frontend(#{ ... }) or http(\"http://...\")";
    let Some(name) = as_text(value) else {
        return Err((format!("expected a target such as {HOW}, got {}", describe(value)), None));
    };
    match name.as_str() {
        "virtual" => Ok(Target::Virtual),
        "live" => Ok(Target::Live),
        "serve" => Ok(Target::Serve(ServeTarget::default())),
        "frontend" => Err((
            "\"frontend\" needs the program and the model of a frontend".to_owned(),
            Some("frontend(#{ binary: \"path/of/vllm-rs\", model: \"path/of/the/model\" })".to_owned()),
        )),
        "http" => Err((
            "\"http\" needs the address of a server".to_owned(),
            Some("http(\"http://localhost:8000\", #{ model: \"...\" })".to_owned()),
        )),
        url if url.starts_with("http://") || url.starts_with("https://") => {
            Ok(Target::Http(HttpTarget { url: url.to_owned(), ..HttpTarget::default() }))
        }
        other => {
            let hint = nearest(other, Target::NAMES).map(did_you_mean);
            Err((format!("expected {HOW}, got \"{other}\""), hint))
        }
    }
}

/// Reads the target of `run`. The scenario's caller may override it.
pub(crate) fn taken(context: &Context, options: &mut Options<'_>) -> Target {
    let own = match options.take("target") {
        None => Target::Virtual,
        Some(value) => match of(&value) {
            Ok(target) => target,
            Err((problem, hint)) => {
                let hint = hint.map_or(String::new(), |hint| format!("; {hint}"));
                options.problem("target", format!("invalid `target`: {problem}{hint}"));
                Target::Virtual
            }
        },
    };
    relative_to(context, context.options.target.clone().unwrap_or(own))
}

/// Makes a target's paths relative to the script, like all other paths.
fn relative_to(context: &Context, mut target: Target) -> Target {
    let is_of_script = context.options.target.is_none();
    let resolve = |path: &mut String| {
        if is_of_script {
            *path = context.resolve(path).display().to_string();
        }
    };
    match &mut target {
        Target::Frontend(frontend) => {
            // A plain name is looked up in the search path.
            if frontend.binary.contains('/') {
                resolve(&mut frontend.binary);
            }
            resolve(&mut frontend.model);
        }
        Target::Http(http) => {
            http.tokenizer.as_mut().map(resolve);
            http.ca_file.as_mut().map(resolve);
        }
        Target::Virtual | Target::Live | Target::Serve(_) => {}
    }
    target
}

/// The driver of a target other than virtual time.
pub(crate) fn driver(context: &Context, target: &Target, run: &RunConfig) -> Result<Arc<dyn TargetDriver>, Thrown> {
    let Some(driver) = context.options.targets.clone() else {
        let message =
            format!("this build of vcr lacks the feature `target`, which the target `{}` needs", target.name());
        return Err(Thrown::input(message).hint("build it with `cargo build --release --features full`"));
    };
    if context.options.uncertainty > 0 {
        let message = format!(
            "`--uncertainty` draws latency models again, in virtual time only; the target is `{}`",
            target.name()
        );
        return Err(Thrown::input(message));
    }
    driver.check(target, run).map_err(|error| thrown(&run.name, error))?;
    Ok(driver)
}

/// Converts a target's error to one for the script's author.
pub(crate) fn thrown(run: &str, error: TargetError) -> Thrown {
    let (blame, hint) = match &error {
        TargetError::Unusable { hint, .. } => (Blame::Input, hint.clone()),
        TargetError::Failed(_) => (Blame::Fault, None),
        TargetError::Run(error) => {
            let (blame, hint) = Blame::of(error);
            (blame, hint.map(str::to_owned))
        }
    };
    Thrown { blame, message: format!("run `{run}`: {error}"), hint }
}
