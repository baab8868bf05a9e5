//! Parses the server-sent events of OpenAI's API.

use std::borrow::Cow;

use serde::Deserialize;

/// Longer lines are errors: no event of a text completion is that long.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// Splits a stream of bytes into the data of events.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    /// The start of a line that is not complete.
    rest: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoEvent(pub(crate) String);

impl EventReader {
    /// Calls `take` with the data of each event that ends in `bytes`, until it returns an error.
    pub(crate) fn read<E>(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<(), E>, NoEvent> {
        let mut bytes = bytes;
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, after) = (&bytes[..end], &bytes[end + 1..]);
            bytes = after;
            let taken = if self.rest.is_empty() {
                data_of(line)?.map_or(Ok(()), &mut take)
            } else {
                self.rest.extend_from_slice(line);
                let line = std::mem::take(&mut self.rest);
                data_of(&line)?.map_or(Ok(()), &mut take)
            };
            if taken.is_err() {
                return Ok(taken);
            }
        }
        self.rest.extend_from_slice(bytes);
        if self.rest.len() > MAX_EVENT_BYTES {
            return Err(NoEvent(format!("a line of more than {MAX_EVENT_BYTES} bytes")));
        }
        Ok(Ok(()))
    }
}

/// Returns the data of a line. None for comments, other fields and empty lines.
fn data_of(line: &[u8]) -> Result<Option<&[u8]>, NoEvent> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if let Some(data) = line.strip_prefix(b"data:") {
        return Ok(Some(data.strip_prefix(b" ").unwrap_or(data)));
    }
    let is_other = [&b":"[..], b"event:", b"id:", b"retry:"].iter().any(|field| line.starts_with(field));
    if line.is_empty() || is_other {
        return Ok(None);
    }
    let shown = String::from_utf8_lossy(&line[..line.len().min(80)]);
    Err(NoEvent(format!("expected server-sent events, found `{shown}`")))
}

/// The fields of a streamed text completion that are read.
#[derive(Debug, Deserialize)]
pub(crate) struct Event<'a> {
    #[serde(default, borrow)]
    pub(crate) choices: Vec<Choice<'a>>,
    #[serde(default)]
    pub(crate) usage: Option<Usage>,
    #[serde(default, borrow)]
    pub(crate) error: Option<&'a serde_json::value::RawValue>,
    /// `error` if the event itself is an error.
    #[serde(default, borrow)]
    pub(crate) object: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Choice<'a> {
    #[serde(default, borrow)]
    pub(crate) text: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(crate) token_ids: Option<Vec<u32>>,
    #[serde(default, borrow)]
    pub(crate) finish_reason: Option<Cow<'a, str>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Usage {
    #[serde(default)]
    pub(crate) prompt_tokens: u32,
    #[serde(default)]
    pub(crate) completion_tokens: u32,
    #[serde(default)]
    pub(crate) prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct PromptDetails {
    #[serde(default)]
    pub(crate) cached_tokens: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parts: &[&[u8]]) -> Result<Vec<String>, NoEvent> {
        let (mut reader, mut found) = (EventReader::default(), Vec::new());
        for part in parts {
            let taken = reader.read(part, |data| {
                found.push(String::from_utf8_lossy(data).into_owned());
                Ok::<(), ()>(())
            })?;
            assert_eq!(taken, Ok(()));
        }
        Ok(found)
    }

    /// Packets can end anywhere.
    #[test]
    fn events_are_whole_wherever_they_are_cut() {
        let text = b"data: {\"a\":1}\n\n: ping\r\n\r\ndata:{\"b\":2}\r\n\r\nevent: x\ndata: [DONE]\n\n";
        let wanted = ["{\"a\":1}", "{\"b\":2}", "[DONE]"];
        assert_eq!(read(&[text]).unwrap(), wanted);
        for cut in 0..text.len() {
            assert_eq!(read(&[&text[..cut], &text[cut..]]).unwrap(), wanted, "{cut}");
        }
        let single: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(read(&single).unwrap(), wanted);
    }

    #[test]
    fn what_is_no_event_is_refused() {
        assert!(read(&[b"<html>\n"]).unwrap_err().0.contains("found `<html>`"));
        assert!(read(&[&vec![b'x'; MAX_EVENT_BYTES + 1]]).unwrap_err().0.contains("a line of more than"));
    }

    #[test]
    fn events_of_a_completion_are_read() {
        let text = r#"{"id":"x","choices":[{"index":0,"text":"\u00e9","token_ids":[5,6],"finish_reason":null}],
            "usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}"#;
        let event: Event<'_> = serde_json::from_str(text).unwrap();
        assert_eq!(event.choices[0].token_ids.as_deref(), Some(&[5, 6][..]));
        assert_eq!(event.usage.unwrap().prompt_tokens_details.unwrap().cached_tokens, Some(1));
        let event: Event<'_> = serde_json::from_str(r#"{"error":{"message":"no"}}"#).unwrap();
        assert!(event.choices.is_empty() && event.error.is_some());
    }
}
