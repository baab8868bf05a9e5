//! Identifies a server and its model before the first request of a run.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;
use vcr_cluster::{AdapterNames, HttpTarget, Prompts, TargetError};
use vcr_text::Tokenizer;

use super::address::Address;
use super::error::ClientError;
use super::pool::{Outgoing, Pool};
use super::tls::Tls;
use super::words::{FEWEST_WORDS, Words, candidates};
use crate::drive::vocabulary::Vocabulary;

/// Timeout for the response to an identification request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of the response to an identification request, in bytes.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// Number of characters of a server's error message that are shown.
const MAX_MESSAGE_CHARS: usize = 200;

#[derive(Clone, Debug)]
pub(crate) enum PromptForm {
    TokenIds(Vocabulary),
    Text(Words),
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) model: String,
    /// The version that the server reports.
    pub(crate) version: Option<String>,
    /// Whether the server accepts vLLM's additions to OpenAI's API.
    pub(crate) is_vllm: bool,
    pub(crate) prompts: PromptForm,
    /// The names of the models that are LoRA adapters.
    pub(crate) adapters: AdapterNames,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<ModelCard>,
}

#[derive(Deserialize)]
struct ModelCard {
    id: String,
    #[serde(default)]
    owned_by: Option<String>,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Deserialize)]
struct Tokenized {
    count: usize,
    #[serde(default)]
    tokens: Vec<u32>,
}

/// Creates the connection pool for a target, without connecting.
pub(crate) fn pool(target: &HttpTarget) -> Result<Pool, TargetError> {
    let address = Address::parse(&target.url)?;
    let mut headers = HeaderMap::new();
    if let Some(name) = &target.api_key_env {
        let key = std::env::var(name).ok().filter(|key| !key.is_empty()).ok_or_else(|| {
            let message = format!("`api_key_env` names the environment variable `{name}`, which is not set");
            TargetError::with_hint(message, format!("export {name}=..."))
        })?;
        let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
            .map_err(|_| TargetError::unusable(format!("the API key in `{name}` has characters that no header has")))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    for (name, value) in &target.headers {
        let invalid = || TargetError::unusable(format!("invalid header `{name}`: expected a name and a value of HTTP"));
        let name: HeaderName = name.parse().map_err(|_| invalid())?;
        headers.insert(name, HeaderValue::from_str(value).map_err(|_| invalid())?);
    }
    let tls = address.is_tls.then(|| Tls::new(&address.host, target.ca_file.as_deref())).transpose()?;
    if target.ca_file.is_some() && tls.is_none() {
        return Err(TargetError::unusable("`ca_file` is for https:// addresses only"));
    }
    Ok(Pool::new(address, headers, tls))
}

/// Names of the server's models; empty if it does not list them.
pub(crate) async fn models(pool: &Pool) -> Vec<String> {
    let listed = get(pool, "/v1/models").await.ok();
    let listed = listed.and_then(|bytes| serde_json::from_slice::<Models>(&bytes).ok());
    listed.into_iter().flat_map(|models| models.data).map(|card| card.id).collect()
}

/// Queries the server's model and checks that it has these LoRA adapters.
pub(crate) async fn identify(
    pool: &Pool,
    target: &HttpTarget,
    adapters: &BTreeSet<u32>,
) -> Result<Server, TargetError> {
    let models = get(pool, "/v1/models").await;
    let cards = match models {
        Ok(bytes) => serde_json::from_slice::<Models>(&bytes).map(|models| models.data).map_err(|error| {
            let what =
                format!("{} is not a server of OpenAI's API: its /v1/models is not a list of models", pool.address);
            TargetError::unusable(format!("{what} ({error})"))
        })?,
        // Some gateways have no list of models.
        Err(ClientError::Status { status: 404 | 405, .. }) if target.model.is_some() => Vec::new(),
        Err(error) => return Err(unreachable_server(target, error)),
    };
    let model = match &target.model {
        Some(model) if cards.is_empty() || cards.iter().any(|card| card.id == *model) => model.clone(),
        Some(model) => {
            let known: Vec<&str> = cards.iter().map(|card| card.id.as_str()).collect();
            let message = format!("{} has no model `{model}`; it has {}", pool.address, known.join(", "));
            return Err(TargetError::unusable(message));
        }
        None => cards
            .first()
            .map(|card| card.id.clone())
            .ok_or_else(|| TargetError::with_hint(format!("{} has no model", pool.address), "name one with `model`"))?,
    };
    check_adapters(pool, target, &cards, adapters)?;
    let version = get(pool, "/version").await.ok();
    let version = version.and_then(|bytes| serde_json::from_slice::<Version>(&bytes).ok()).map(|found| found.version);
    let is_vllm = version.is_some() || cards.iter().any(|card| card.owned_by.as_deref() == Some("vllm"));
    let prompts = prompts(pool, target, &model, is_vllm).await?;
    Ok(Server { model, version, is_vllm, prompts, adapters: target.adapters.clone() })
}

/// Checks that every adapter of the workloads has a name, and that the server lists this name.
fn check_adapters(
    pool: &Pool,
    target: &HttpTarget,
    cards: &[ModelCard],
    adapters: &BTreeSet<u32>,
) -> Result<(), TargetError> {
    for number in adapters {
        let Some(name) = target.adapters.name(*number) else {
            let message = format!("`adapters` of `http` has no name for the LoRA adapter {number} of a workload");
            return Err(TargetError::with_hint(message, "list the names of all, from adapter 0"));
        };
        if !cards.is_empty() && !cards.iter().any(|card| card.id == name) {
            let message = format!("{} has no LoRA adapter `{name}`, which a workload uses", pool.address);
            let hint = "load it there, or name those it has: `adapters: [\"sql\", \"chat\"]`";
            return Err(TargetError::with_hint(message, hint));
        }
    }
    Ok(())
}

fn unreachable_server(target: &HttpTarget, error: ClientError) -> TargetError {
    let hint = match &error {
        ClientError::Connect { .. } => "start the server, or correct its address".to_owned(),
        ClientError::Tls { .. } => "`ca_file: \"ca.pem\"` trusts a certificate authority of your own".to_owned(),
        ClientError::Status { status: 401 | 403, .. } => match &target.api_key_env {
            None => "give the environment variable that has the API key: `api_key_env: \"API_KEY\"`".to_owned(),
            Some(name) => format!("the key in `{name}` is not accepted"),
        },
        _ => "the address is that of a server of OpenAI's API, without /v1".to_owned(),
    };
    TargetError::with_hint(format!("{}: {error}", target.url), hint)
}

async fn prompts(pool: &Pool, target: &HttpTarget, model: &str, is_vllm: bool) -> Result<PromptForm, TargetError> {
    let wants_ids = target.prompts == Prompts::TokenIds
        || (target.prompts == Prompts::Auto && is_vllm && target.tokenizer.is_none());
    if wants_ids {
        let size = match target.vocab_size {
            Some(size) => Some(size),
            None => known_tokens(pool, model).await,
        };
        return Ok(PromptForm::TokenIds(Vocabulary::new(size)));
    }
    let words = match &target.tokenizer {
        Some(folder) => words_of_folder(folder)?,
        None => words_of_server(pool, model).await.map_err(|error| {
            let message = format!("{} counts no tokens for us ({error}), so no prompt has an exact length", target.url);
            TargetError::with_hint(message, "give the model's tokenizer: `tokenizer: \"path/of/the/model\"`")
        })?,
    };
    words.map(PromptForm::Text).ok_or_else(|| {
        let message = format!("fewer than {FEWEST_WORDS} English words are single tokens of this model");
        TargetError::with_hint(message, "send token ids, if the server takes them: `prompts: \"token-ids\"`")
    })
}

fn words_of_folder(folder: &str) -> Result<Option<Words>, TargetError> {
    let unusable =
        |error: &dyn std::fmt::Display| TargetError::unusable(format!("invalid `tokenizer` `{folder}`: {error}"));
    let tokenizer = Tokenizer::from_folder(Path::new(folder)).map_err(|error| unusable(&error))?;
    let count = |text: &str| tokenizer.encode(text, true).map(|tokens| tokens.len()).map_err(|error| unusable(&error));
    let special = count("")?;
    let mut single = Vec::new();
    for word in candidates() {
        if count(&format!(" {word} {word}"))? == special + 2 {
            single.push(word);
        }
    }
    Ok(Words::new(single, special as u32))
}

async fn words_of_server(pool: &Pool, model: &str) -> Result<Option<Words>, ClientError> {
    let words = candidates();
    let text = |words: &[&str]| words.iter().fold(String::new(), |text, word| text + " " + word);
    // If the word is a single token, all other tokens are special tokens that the tokenizer adds around a text.
    let special = (count(pool, model, " time time").await?).saturating_sub(2);
    if count(pool, model, &text(&words)).await? == words.len() + special {
        return Ok(Words::new(words, special as u32));
    }
    let mut single = Vec::new();
    for word in words {
        if count(pool, model, &text(&[word, word])).await? == special + 2 {
            single.push(word);
        }
    }
    Ok(Words::new(single, special as u32))
}

/// The highest token id in some common words, plus one. Smaller ids are assumed to exist.
async fn known_tokens(pool: &Pool, model: &str) -> Option<u32> {
    let tokenized = tokenize(pool, model, &candidates().join(" ")).await.ok()?;
    tokenized.tokens.iter().max().map(|last| last + 1)
}

async fn count(pool: &Pool, model: &str, text: &str) -> Result<usize, ClientError> {
    tokenize(pool, model, text).await.map(|tokenized| tokenized.count)
}

async fn tokenize(pool: &Pool, model: &str, text: &str) -> Result<Tokenized, ClientError> {
    let body = json!({ "model": model, "prompt": text }).to_string();
    let bytes = request(pool, Method::POST, "/tokenize", Some(Bytes::from(body))).await?;
    serde_json::from_slice(&bytes).map_err(|error| ClientError::Garbage(format!("/tokenize: {error}")))
}

pub(crate) async fn get(pool: &Pool, path: &str) -> Result<Vec<u8>, ClientError> {
    request(pool, Method::GET, path, None).await
}

async fn request(pool: &Pool, method: Method, path: &str, body: Option<Bytes>) -> Result<Vec<u8>, ClientError> {
    let answer = async {
        let (response, busy) = pool.send(&Outgoing::json(method, path, body, HeaderMap::new()), async || {}).await?;
        let status = response.status();
        let bytes = whole_body(response.into_body(), MAX_ANSWER_BYTES).await?;
        busy.done();
        match status {
            StatusCode::OK => Ok(bytes),
            status => Err(ClientError::Status { status: status.as_u16(), body: message_of(&bytes) }),
        }
    };
    let answered = timeout(ANSWER_TIMEOUT, answer).await;
    answered.unwrap_or(Err(ClientError::Silent(ANSWER_TIMEOUT.as_secs())))
}

/// Reads a whole body, up to a limit.
pub(crate) async fn whole_body(mut body: Incoming, max_bytes: usize) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::new();
    while let Some(data) = next_data(&mut body).await? {
        if bytes.len() + data.len() > max_bytes {
            return Err(ClientError::Garbage(format!("an answer of more than {max_bytes} bytes")));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Returns the next bytes of a body, or none at its end.
pub(crate) async fn next_data(body: &mut Incoming) -> Result<Option<Bytes>, ClientError> {
    loop {
        let frame = std::future::poll_fn(|context| std::pin::Pin::new(&mut *body).poll_frame(context)).await;
        match frame {
            None => return Ok(None),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Some(Err(error)) => return Err(ClientError::Lost(super::pool::with_causes(&error))),
        }
    }
}

/// Extracts the message of an error, in OpenAI's format or others.
pub(crate) fn message_of(bytes: &[u8]) -> String {
    let value: Option<serde_json::Value> = serde_json::from_slice(bytes).ok();
    let text = value.as_ref().and_then(|value| {
        let error = value.get("error").unwrap_or(value);
        error.get("message").or(Some(error)).or(value.get("detail"))?.as_str().map(str::to_owned)
    });
    let text = text.unwrap_or_else(|| String::from_utf8_lossy(bytes).into_owned());
    text.trim().chars().take(MAX_MESSAGE_CHARS).collect()
}
