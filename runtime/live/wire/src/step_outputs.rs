//! Outputs of a step in the form that frontends need: decoded from a message without an allocation for each output,
//! or passed on within a process without encoding.

use crate::codec::Elements;
use crate::codec::error::{DecodeError, Step};
use crate::codec::field::Wire;
use crate::codec::read::{Reader, whole};
use crate::output::{EngineCoreOutput, EngineCoreOutputs, StepEncoder, StepEnd};

/// An engine's message, split for a frontend with many requests: outputs that have only new tokens need no allocation.
#[derive(Debug)]
pub struct StepOutputs<'a> {
    /// The message, without its outputs.
    pub message: EngineCoreOutputs,
    outputs: Vec<Entry<'a>>,
    tokens: Vec<u32>,
}

/// The output of a step for one request.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOutput<'a> {
    /// Only new tokens.
    Tokens(&'a [u32]),
    /// An output with more than new tokens.
    Whole(Box<EngineCoreOutput>),
}

#[derive(Debug)]
struct Entry<'a> {
    request_id: &'a str,
    kind: EntryKind,
}

#[derive(Debug)]
enum EntryKind {
    /// The number of the output's tokens.
    Tokens(usize),
    Whole(Box<EngineCoreOutput>),
}

/// Index of the outputs in [`EngineCoreOutputs`].
const OUTPUTS: usize = 1;

impl<'a> StepOutputs<'a> {
    /// Decodes the first frame of a message.
    pub fn decode(frame: &'a [u8]) -> Result<Self, DecodeError> {
        whole("EngineCoreOutputs", frame, |reader| {
            let len = EngineCoreOutputs::read_len(reader)?;
            let message = EngineCoreOutputs::default();
            let mut step = Self { message, outputs: Vec::new(), tokens: Vec::new() };
            step.message.read_range(reader, 0..len.min(OUTPUTS))?;
            if len > OUTPUTS {
                step.read_outputs(reader).map_err(|error| error.within(Step::Element(OUTPUTS, "outputs")))?;
                step.message.read_tail(reader, OUTPUTS + 1..len)?;
            }
            Ok(step)
        })
    }

    fn read_outputs(&mut self, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        if reader.take_nil() {
            return Ok(());
        }
        let len = reader.array()?;
        self.outputs.reserve(reader.capacity::<Entry<'_>>(len));
        for index in 0..len {
            let entry = match self.plain(reader) {
                Some(entry) => entry,
                None => Self::entire(reader).map_err(|error| error.within(Step::Item(index)))?,
            };
            self.outputs.push(entry);
        }
        Ok(())
    }

    /// Reads an output that has only an ID and tokens. For another output, returns `None` and does not advance the
    /// reader.
    fn plain(&mut self, reader: &mut Reader<'a>) -> Option<Entry<'a>> {
        let mut ahead = reader.clone();
        if ahead.array().ok()? != 2 {
            return None;
        }
        let request_id = ahead.str().ok()?;
        let before = self.tokens.len();
        let count = ahead.array().ok()?;
        for _ in 0..count {
            match ahead.u32() {
                Ok(token) => self.tokens.push(token),
                Err(_) => {
                    self.tokens.truncate(before);
                    return None;
                }
            }
        }
        *reader = ahead;
        Some(Entry { request_id, kind: EntryKind::Tokens(count) })
    }

    fn entire(reader: &mut Reader<'a>) -> Result<Entry<'a>, DecodeError> {
        let mut ahead = reader.clone();
        let output = Box::new(EngineCoreOutput::read(reader)?);
        // A nil ID counts as empty.
        let request_id = ahead.array().and_then(|_| ahead.str()).unwrap_or_default();
        Ok(Entry { request_id, kind: EntryKind::Whole(output) })
    }

    /// Calls `take` with each output and the ID of its request, in order.
    pub fn for_each(self, mut take: impl FnMut(&'a str, StepOutput<'_>)) {
        let mut tokens = self.tokens.as_slice();
        for Entry { request_id, kind } in self.outputs {
            match kind {
                EntryKind::Whole(output) => take(request_id, StepOutput::Whole(output)),
                EntryKind::Tokens(count) => {
                    let (own, rest) = tokens.split_at(count);
                    tokens = rest;
                    take(request_id, StepOutput::Tokens(own));
                }
            }
        }
    }
}

/// Gathers the outputs of one step for a frontend in the same process, which gets them without a message. The
/// buffers are kept between steps.
#[derive(Debug, Default)]
pub struct StepKeeper {
    /// The IDs of the requests, concatenated.
    names: String,
    kept: Vec<Kept>,
    tokens: Vec<u32>,
}

#[derive(Debug)]
struct Kept {
    name_len: usize,
    kind: EntryKind,
}

impl StepKeeper {
    /// Whether nothing was added since the last step.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Adds new tokens of a request that continues.
    pub fn tokens(&mut self, request_id: &str, new_token_ids: &[u32]) {
        self.tokens.extend_from_slice(new_token_ids);
        self.keep(request_id, EntryKind::Tokens(new_token_ids.len()));
    }

    /// Adds an output that has more than tokens.
    pub fn output(&mut self, output: EngineCoreOutput) {
        let output = Box::new(output);
        self.names.push_str(&output.request_id);
        self.kept.push(Kept { name_len: output.request_id.len(), kind: EntryKind::Whole(output) });
    }

    fn keep(&mut self, request_id: &str, kind: EntryKind) {
        self.names.push_str(request_id);
        self.kept.push(Kept { name_len: request_id.len(), kind });
    }

    /// Returns the added outputs and the rest of a message. [`StepKeeper::clear`] must follow.
    pub fn step(&mut self, end: StepEnd<'_>) -> StepOutputs<'_> {
        let message = EngineCoreOutputs {
            engine_index: end.engine_index,
            scheduler_stats: end.scheduler_stats.cloned(),
            timestamp: end.timestamp,
            weight_version: end.weight_version.map(str::to_owned),
            ..EngineCoreOutputs::default()
        };
        let mut names = self.names.as_str();
        let named = |Kept { name_len, kind }| {
            let (request_id, rest) = names.split_at(name_len);
            names = rest;
            Entry { request_id, kind }
        };
        StepOutputs {
            message,
            outputs: self.kept.drain(..).map(named).collect(),
            tokens: std::mem::take(&mut self.tokens),
        }
    }

    /// Clears the returned outputs and keeps the allocations.
    pub fn clear(&mut self) {
        self.names.clear();
        self.kept.clear();
        self.tokens.clear();
    }

    /// Adds all outputs to a message instead, and clears them.
    pub fn encode(&mut self, encoder: &mut StepEncoder) {
        self.step(StepEnd::default()).for_each(|request_id, output| match output {
            StepOutput::Tokens(tokens) => encoder.tokens(request_id, tokens, None),
            StepOutput::Whole(output) => encoder.output(&output),
        });
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use vcr_base::finish_reason::FinishReason;

    use super::*;
    use crate::stats::SchedulerStats;
    use crate::{Protocol, VllmMinor};

    fn filled() -> StepKeeper {
        let mut keeper = StepKeeper::default();
        keeper.tokens("a", &[1, 2]);
        keeper.output(EngineCoreOutput {
            request_id: "\u{e9}b".to_owned(),
            new_token_ids: vec![3],
            finish_reason: Some(FinishReason::Stop),
            ..EngineCoreOutput::default()
        });
        keeper.tokens("", &[]);
        keeper.tokens("c", &[4]);
        keeper
    }

    fn all(step: StepOutputs<'_>) -> Vec<String> {
        let mut all = vec![format!("{:?}", step.message)];
        step.for_each(|id, output| all.push(format!("{id}: {output:?}")));
        all
    }

    /// A client cannot tell whether the outputs were encoded in between.
    #[test]
    fn kept_outputs_are_those_of_the_message() {
        let stats = SchedulerStats { num_running_reqs: 3, ..SchedulerStats::default() };
        let end = StepEnd { engine_index: 2, scheduler_stats: Some(&stats), timestamp: 1.5, weight_version: Some("v") };
        let mut encoder = StepEncoder::new(VllmMinor::V0_33.rules());
        filled().encode(&mut encoder);
        let mut frame = Vec::new();
        encoder.finish(end, &mut frame);
        let mut keeper = filled();
        let kept = all(keeper.step(end));
        assert_eq!(kept, all(StepOutputs::decode(&frame).expect("it is a message")));
        assert_eq!(kept.len(), 5);
        keeper.clear();
        assert!(keeper.is_empty());
        assert_eq!(all(keeper.step(StepEnd::default())).len(), 1, "nothing comes twice");
    }
}
