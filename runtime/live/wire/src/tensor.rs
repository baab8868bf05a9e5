//! Tensors, and logprobs as tensors.

use crate::codec::error::{DecodeError, Problem};
use crate::codec::field::Wire;
use crate::codec::read::{Reader, is_ext};
use crate::codec::value::{Raw, Value};
use crate::codec::{array_struct, array_wire, write};

/// The extension type of tensor bytes inside of the message.
const INLINE: i8 = 3;

array_struct! {
    /// A tensor of torch or of numpy.
    Tensor, 3 required {
        /// Data type: for torch the bare name (`float32`), for numpy the typestr (`<f4`).
        dtype: String = String::new(),
        /// Sizes of the dimensions, outermost first.
        shape: Vec<u64> = Vec::new(),
        /// The numbers, row by row, little-endian.
        data: TensorData = TensorData::Inline(Vec::new()),
    }
}
array_wire!(Tensor, full);

/// The place of a tensor's bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorData {
    /// In the message.
    Inline(Vec<u8>),
    /// In the frame of the message with this index; the payload has index 0.
    Aux(u64),
    /// In memory shared with the sender, which only a process on the same machine can read: `{sender_id,
    /// message_id, tensor_id}`.
    Shared(Raw),
}

impl Wire for TensorData {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        use rmp::Marker;
        match reader.peek() {
            Some(Marker::FixMap(_) | Marker::Map16 | Marker::Map32) => Raw::read(reader).map(Self::Shared),
            Some(marker) if is_ext(marker) => {
                let at = reader.offset();
                let (code, bytes) = reader.ext()?;
                if code != INLINE {
                    let problem = Problem::OutOfRange { expected: "extension type 3", found: code.into() };
                    return Err(DecodeError::new(problem, at));
                }
                Ok(Self::Inline(bytes.to_vec()))
            }
            _ => u64::read(reader).map(Self::Aux),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Inline(bytes) => write::ext(out, INLINE, bytes),
            Self::Aux(index) => index.write(out),
            Self::Shared(handle) => handle.write(out),
        }
    }
}

impl Tensor {
    /// The bytes, which may be one of `aux`, the frames after the payload.
    ///
    /// # Errors
    ///
    /// There is no such frame, or the bytes are in shared memory.
    pub fn bytes<'a>(&'a self, aux: &'a [Vec<u8>]) -> Result<&'a [u8], DecodeError> {
        let error = |problem| DecodeError::new(problem, 0).of("tensor");
        match &self.data {
            TensorData::Inline(bytes) => Ok(bytes),
            TensorData::Aux(index) => {
                let position = index.checked_sub(1).and_then(|position| usize::try_from(position).ok());
                let frame = position.and_then(|position| aux.get(position));
                frame.map(Vec::as_slice).ok_or_else(|| error(Problem::NoSuchFrame { index: *index, frames: aux.len() }))
            }
            TensorData::Shared(_) => {
                let problem = Problem::Unexpected {
                    expected: "bytes in the message",
                    found: "a handle of memory shared with the sender",
                };
                Err(error(problem))
            }
        }
    }

    /// The numbers, converted to floats from any numeric type.
    fn numbers(&self, aux: &[Vec<u8>]) -> Result<Vec<f64>, DecodeError> {
        let bytes = self.bytes(aux)?;
        let mismatch = || {
            let problem = Problem::Shape { dtype: self.dtype.clone(), bytes: bytes.len() };
            DecodeError::new(problem, 0).of("tensor")
        };
        let count = self.shape.iter().try_fold(1u64, |count, dimension| count.checked_mul(*dimension));
        let (size, read) = number(&self.dtype).ok_or_else(mismatch)?;
        if count.and_then(|count| count.checked_mul(size as u64)) != Some(bytes.len() as u64) {
            return Err(mismatch());
        }
        Ok(bytes.chunks_exact(size).map(read).collect())
    }

    /// A torch tensor of 32-bit floats.
    ///
    /// # Panics
    ///
    /// The number of elements does not match the shape.
    #[must_use]
    pub fn of_f32(shape: &[usize], numbers: impl IntoIterator<Item = f32>) -> Self {
        let bytes: Vec<u8> = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(bytes.len(), 4 * shape.iter().product::<usize>(), "numbers that do not fill the shape");
        Self::of("float32", shape, bytes)
    }

    fn of(dtype: &str, shape: &[usize], bytes: Vec<u8>) -> Self {
        let shape = shape.iter().map(|dimension| *dimension as u64).collect();
        Self { dtype: dtype.to_owned(), shape, data: TensorData::Inline(bytes) }
    }
}

type Read = fn(&[u8]) -> f64;

/// The size in bytes of a number of type `dtype`, and the function that reads it.
fn number(dtype: &str) -> Option<(usize, Read)> {
    macro_rules! read {
        ($type:ty) => {
            (size_of::<$type>(), |bytes| {
                <$type>::from_le_bytes(bytes.try_into().expect("chunks have this size")) as f64
            })
        };
    }
    Some(match dtype {
        "int32" | "<i4" => read!(i32),
        "int64" | "<i8" => read!(i64),
        "float32" | "<f4" => read!(f32),
        "float64" | "<f8" => read!(f64),
        _ => return None,
    })
}

array_struct! {
    /// Logprobs of some positions in encoded form: numpy arrays for sampled tokens, torch tensors for prompts.
    Logprobs, 3 required {
        /// Token ids, `[positions, k + 1]`: the token itself, then the k likeliest.
        token_ids: Tensor = Tensor::default(),
        /// Logprobs of the tokens in `token_ids`, with the same shape.
        logprobs: Tensor = Tensor::default(),
        /// Rank of the token itself among all tokens, `[positions]`.
        ranks: Tensor = Tensor::default(),
        /// Always nil between processes.
        cu_num_generated_tokens: Option<Value> = None,
    }
}
// Always four elements: real engines write a fifth for prompts from 0.29 on, which breaks the frontends of 0.27 and
// 0.28.
array_wire!(Logprobs, full);

/// Logprobs as numbers, with `width` columns for each position.
#[derive(Clone, Debug, PartialEq)]
pub struct LogprobRows {
    /// Number of columns: one for the token itself and one for each of the k likeliest.
    pub width: usize,
    /// Token ids, row by row.
    pub token_ids: Vec<u32>,
    /// Natural logarithms of the probabilities, row by row.
    pub logprobs: Vec<f32>,
    /// Rank of each position's own token; 1 is the likeliest.
    pub ranks: Vec<u32>,
}

impl LogprobRows {
    /// Logprobs of sampled tokens.
    ///
    /// # Panics
    ///
    /// The lengths do not match.
    #[must_use]
    pub fn sampled(&self) -> Logprobs {
        let ranks = self.ranks.iter().flat_map(|rank| i64::from(*rank).to_le_bytes()).collect();
        self.tensors(["<i4", "<f4", "<i8"], ranks)
    }

    /// Logprobs of a prompt, with a row for each token from the second on.
    ///
    /// # Panics
    ///
    /// The lengths do not match.
    #[must_use]
    pub fn prompt(&self) -> Logprobs {
        let ranks = self.ranks.iter().flat_map(|rank| rank.to_le_bytes()).collect();
        self.tensors(["int32", "float32", "int32"], ranks)
    }

    fn tensors(&self, [ids, logprobs, ranks]: [&str; 3], rank_bytes: Vec<u8>) -> Logprobs {
        let rows = self.ranks.len();
        let numbers = rows * self.width;
        assert!(self.token_ids.len() == numbers && self.logprobs.len() == numbers, "rows of unequal width");
        let id_bytes = self.token_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let logprob_bytes = self.logprobs.iter().flat_map(|logprob| logprob.to_le_bytes()).collect();
        Logprobs {
            token_ids: Tensor::of(ids, &[rows, self.width], id_bytes),
            logprobs: Tensor::of(logprobs, &[rows, self.width], logprob_bytes),
            ranks: Tensor::of(ranks, &[rows], rank_bytes),
            cu_num_generated_tokens: None,
        }
    }
}

impl Logprobs {
    /// Decodes the numbers. Some may be in `aux`, the frames after the payload.
    ///
    /// # Errors
    ///
    /// Bytes are missing, or the shapes do not match.
    pub fn rows(&self, aux: &[Vec<u8>]) -> Result<LogprobRows, DecodeError> {
        let token_ids = self.token_ids.numbers(aux)?;
        let logprobs = self.logprobs.numbers(aux)?;
        let ranks = self.ranks.numbers(aux)?;
        let width = match self.token_ids.shape[..] {
            [rows, width] if self.logprobs.shape == [rows, width] && self.ranks.shape == [rows] => width,
            _ => {
                let problem = Problem::Shape { dtype: self.token_ids.dtype.clone(), bytes: token_ids.len() };
                return Err(DecodeError::new(problem, 0).of("logprobs"));
            }
        };
        Ok(LogprobRows {
            // The width is at most the number of IDs, unless there are no rows.
            width: usize::try_from(width).unwrap_or(0),
            token_ids: token_ids.into_iter().map(|id| id as u32).collect(),
            logprobs: logprobs.into_iter().map(|logprob| logprob as f32).collect(),
            ranks: ranks.into_iter().map(|rank| rank as u32).collect(),
        })
    }
}
