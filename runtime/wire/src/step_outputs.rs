//! Messages of outputs, read without memory for each output.

use crate::codec::Elements;
use crate::codec::error::{DecodeError, Step};
use crate::codec::field::Wire;
use crate::codec::read::{Reader, whole};
use crate::output::{EngineCoreOutput, EngineCoreOutputs};

/// A message of an engine with its outputs apart, as a frontend reads it that has
/// many requests: outputs with nothing but new tokens stay in the frame.
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
    /// New tokens, and nothing else.
    Tokens(&'a [u32]),
    /// Anything else.
    Whole(Box<EngineCoreOutput>),
}

#[derive(Debug)]
struct Entry<'a> {
    request_id: &'a str,
    kind: EntryKind,
}

#[derive(Debug)]
enum EntryKind {
    /// A number of the tokens.
    Tokens(usize),
    Whole(Box<EngineCoreOutput>),
}

/// The place of the outputs in [`EngineCoreOutputs`].
const OUTPUTS: usize = 1;

impl<'a> StepOutputs<'a> {
    /// Decodes the first frame of a message.
    ///
    /// # Errors
    ///
    /// When it is none.
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

    /// An output of a name and tokens; none, and nothing read, if it is another one.
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
        // A name that is nil is empty.
        let request_id = ahead.array().and_then(|_| ahead.str()).unwrap_or_default();
        Ok(Entry { request_id, kind: EntryKind::Whole(output) })
    }

    /// Hands the outputs on, each with the name of its request, in their order.
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
