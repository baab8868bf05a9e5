//! Decodes one line of text into a line of a capture.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::error::CaptureProblem;
use super::error::LineProblem;
use super::missing::missing_field;
use super::record::CaptureLine;
use super::vllm_vcr;
use crate::lines::describe;

/// The formats that the reader of captures supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureFormat {
    /// The format described in `docs/reference/captures.md`.
    Capture,
    /// A trace of vllm-vcr.
    VllmVcr,
}

/// The fields of a first line that show the format.
#[derive(Deserialize)]
struct FirstLine<'a> {
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    meta: Option<IgnoredAny>,
    ttft_ms: Option<IgnoredAny>,
}

/// Detects the format of the capture that starts with `row`. `None` if no capture starts like this.
pub(crate) fn detect(row: &[u8]) -> Option<CaptureFormat> {
    let first: FirstLine<'_> = serde_json::from_slice(row).ok()?;
    match first.kind {
        Some(kind) => (kind == "meta").then_some(CaptureFormat::Capture),
        None => (first.meta.is_some() || first.ttft_ms.is_some()).then_some(CaptureFormat::VllmVcr),
    }
}

pub(super) fn lacks_meta(row: &[u8]) -> bool {
    serde_json::from_slice::<FirstLine<'_>>(row).is_ok_and(|first| first.meta.is_none())
}

pub(super) fn is_cut_off(row: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(row).is_err_and(|error| error.is_eof())
}

pub(super) fn decode(format: CaptureFormat, row: &[u8]) -> Result<CaptureLine, LineProblem> {
    match format {
        CaptureFormat::Capture => decode_own(row),
        CaptureFormat::VllmVcr => vllm_vcr::decode(row),
    }
}

/// Decodes the kind first. Otherwise serde would hold the whole line as an untyped value, which costs several times
/// more.
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
    // The writer puts the kind here, in this spelling. Other lines are read a second time.
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

/// Decodes a line as `T`. The line is only read again for a detailed error if decoding fails.
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

fn in_plain_words(text: &str) -> String {
    let mut plain = text.to_owned();
    for (word, meaning) in [("u32", u64::from(u32::MAX)), ("u64", u64::MAX)] {
        plain = plain.replace(&format!("expected {word}"), &format!("expected a whole number from 0 to {meaning}"));
    }
    plain
}
