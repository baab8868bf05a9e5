//! Decodes one line of text to one line of a capture.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::error::CaptureProblem;
use super::error::LineProblem;
use super::missing::missing_field;
use super::record::CaptureLine;
use super::vllm_vcr;
use crate::lines::describe;

/// The formats that a reader of captures can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureFormat {
    /// The format described in `docs/reference/captures.md`.
    Capture,
    /// A trace of vllm-vcr.
    VllmVcr,
}

/// The fields that show the format of a first line.
#[derive(Deserialize)]
struct FirstLine<'a> {
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    meta: Option<IgnoredAny>,
    ttft_ms: Option<IgnoredAny>,
}

/// The format of the capture that starts with `row`; `None` if it starts no capture.
pub(crate) fn detect(row: &[u8]) -> Option<CaptureFormat> {
    let first: FirstLine<'_> = serde_json::from_slice(row).ok()?;
    match first.kind {
        Some(kind) => (kind == "meta").then_some(CaptureFormat::Capture),
        None => (first.meta.is_some() || first.ttft_ms.is_some()).then_some(CaptureFormat::VllmVcr),
    }
}

/// Whether the first row of a trace of vllm-vcr is a record, not the meta line.
pub(super) fn lacks_meta(row: &[u8]) -> bool {
    serde_json::from_slice::<FirstLine<'_>>(row).is_ok_and(|first| first.meta.is_none())
}

/// Whether a row is the start of a JSON object, but not the complete object.
pub(super) fn is_cut_off(row: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(row).is_err_and(|error| error.is_eof())
}

/// Decodes a line.
pub(super) fn decode(format: CaptureFormat, row: &[u8]) -> Result<CaptureLine, LineProblem> {
    match format {
        CaptureFormat::Capture => decode_own(row),
        CaptureFormat::VllmVcr => vllm_vcr::decode(row),
    }
}

/// The kind is read first: serde would otherwise hold the whole line as an untyped value, at several times the cost.
fn decode_own(row: &[u8]) -> Result<CaptureLine, LineProblem> {
    Ok(match &*kind_of(row)? {
        "meta" => CaptureLine::Meta(typed(row)?),
        "engine" => CaptureLine::Engine(typed(row)?),
        "arrival" => CaptureLine::Arrival(typed(row)?),
        "request" => CaptureLine::Request(typed(row)?),
        "step" => CaptureLine::Step(typed(row)?),
        "http" => CaptureLine::Http(typed(row)?),
        "kv" => CaptureLine::Kv(typed(row)?),
        "break" => CaptureLine::Break(typed(row)?),
        "end" => CaptureLine::End(typed(row)?),
        kind => return Err(LineProblem::of("kind", CaptureProblem::UnknownKind { kind: kind.to_owned() })),
    })
}

fn kind_of(row: &[u8]) -> Result<Cow<'_, str>, LineProblem> {
    #[derive(Deserialize)]
    struct KindOnly<'a> {
        #[serde(borrow)]
        kind: Cow<'a, str>,
    }
    // The place and spelling that the writer uses; others take a second pass.
    if let Some(rest) = row.strip_prefix(b"{\"kind\":\"")
        && let Some(kind) = rest.split(|byte| *byte == b'"').next()
        && kind.iter().all(u8::is_ascii_lowercase)
        && let Ok(kind) = std::str::from_utf8(kind)
        && kind.len() < rest.len()
    {
        return Ok(Cow::Borrowed(kind));
    }
    match serde_json::from_slice::<KindOnly<'_>>(row) {
        Ok(line) => Ok(line.kind),
        Err(_) => Err(explain::<KindOnly<'_>>(row)),
    }
}

/// Decodes a line as `T`. The cause of an error is determined only if there is one.
pub(super) fn typed<T: DeserializeOwned>(row: &[u8]) -> Result<T, LineProblem> {
    serde_json::from_slice(row).map_err(|_| explain::<T>(row))
}

fn explain<'de, T: Deserialize<'de>>(row: &'de [u8]) -> LineProblem {
    let mut decoder = serde_json::Deserializer::from_slice(row);
    let (path, error) = match serde_path_to_error::deserialize::<_, T>(&mut decoder) {
        Err(error) => (error.path().to_string(), error.into_inner()),
        Ok(_) => match decoder.end() {
            Err(error) => (String::from("."), error),
            Ok(()) => return LineProblem::of_line(CaptureProblem::Malformed("not a line of a capture".to_owned())),
        },
    };
    let text = describe(&error);
    if error.is_eof() {
        return LineProblem::of_line(CaptureProblem::CutOff(text));
    }
    if let field @ Some(_) = missing_field::<T>(row) {
        return LineProblem { field, problem: CaptureProblem::Missing };
    }
    let field = (path != "." && path != "?").then_some(path);
    LineProblem { field, problem: CaptureProblem::Malformed(in_plain_words(&text)) }
}

/// Replaces the names of Rust's types by the ranges that they stand for.
fn in_plain_words(text: &str) -> String {
    let mut plain = text.to_owned();
    for (word, meaning) in [("u32", u64::from(u32::MAX)), ("u64", u64::MAX)] {
        plain = plain.replace(&format!("expected {word}"), &format!("expected a whole number from 0 to {meaning}"));
    }
    plain
}
