//! Encoders without a language model. Other engines fetch their outputs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use vcr_core::tokens::{BatchTokenSource, TokenAnswer, TokenError, TokenRequest, TokenWant};
use vcr_wire::MmFeature;

/// Bytes per number in an encoder's output.
const NUMBER_BYTES: u64 = 2;

/// The tokens of a server without a language model. As in vLLM, each is the first of the vocabulary.
#[derive(Clone, Copy, Debug)]
pub struct EncoderOnly;

impl BatchTokenSource for EncoderOnly {
    fn step(
        &mut self,
        _started: &[TokenRequest<'_>],
        _ended: &[u32],
        wants: &[TokenWant],
        answer: &mut TokenAnswer,
    ) -> Result<(), TokenError> {
        let count = wants.iter().map(|want| want.count as usize).sum();
        answer.tokens.extend(std::iter::repeat_n(0, count));
        Ok(())
    }
}

/// The place of an encoder's outputs, as responses state it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderAddress {
    /// The server's host.
    pub host: String,
    pub port: u16,
    /// Number of numbers in the output per placeholder token.
    pub hidden_size: u32,
}

impl EncoderAddress {
    /// The `ec_transfer_params` of an answer: one entry per medium, by hash. None without media.
    pub(crate) fn params(&self, media: Option<&[MmFeature]>) -> Option<Value> {
        let media = media.filter(|media| !media.is_empty())?;
        let agent = STANDARD.encode(format!("{}:{}", self.host, self.port));
        let entry = |medium: &MmFeature| {
            let size_bytes = medium.mm_position.length * u64::from(self.hidden_size) * NUMBER_BYTES;
            let params = json!({
                "peer_host": self.host,
                "peer_port": self.port,
                "size_bytes": size_bytes,
                "nixl_agent_metadata_b64": agent,
            });
            (medium.identifier.clone(), params)
        };
        Some(Value::Object(media.iter().map(entry).collect()))
    }
}

#[cfg(test)]
mod tests {
    use vcr_wire::PlaceholderRange;

    use super::*;

    #[test]
    fn outputs_are_as_large_as_their_placeholders() {
        let address = EncoderAddress { host: "encoder".to_owned(), port: 8000, hidden_size: 1024 };
        let medium = |hash: &str, length| MmFeature {
            identifier: hash.to_owned(),
            mm_position: PlaceholderRange { offset: 3, length, is_embed: None },
            ..MmFeature::default()
        };
        assert_eq!((address.params(None), address.params(Some(&[]))), (None, None));
        let params = address.params(Some(&[medium("a", 1), medium("b", 576)])).expect("there are two");
        assert_eq!((&params["a"]["size_bytes"], &params["b"]["size_bytes"]), (&json!(2048), &json!(1_179_648)));
        let (host, port) = (&params["b"]["peer_host"], &params["b"]["peer_port"]);
        assert_eq!((host, port), (&json!("encoder"), &json!(8000)));
    }

    #[test]
    fn all_tokens_are_the_first_of_the_vocabulary() {
        let want = |count| TokenWant { slot: count, first_index: 0, count };
        let mut answer = TokenAnswer::default();
        EncoderOnly.step(&[], &[], &[want(2), want(3)], &mut answer).expect("it never fails");
        assert_eq!(answer.tokens, [0; 5]);
    }
}
