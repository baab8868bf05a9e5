//! LoRA adapters, in both array layouts of the protocol.

use crate::codec::error::{DecodeError, Problem, Step};
use crate::codec::field::Wire;
use crate::codec::read::{Reader, whole};
use crate::codec::value::{Raw, Value};
use crate::codec::write;

/// The layout of an adapter's array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoraLayout {
    /// Seven elements; the fifth is the tensorizer's configuration. Used by vllm-rs up to 0.32 and the Python
    /// server up to 0.31.
    Seven,
    /// Six elements, without the tensorizer's configuration.
    #[default]
    Six,
}

/// An adapter that a request uses or that is to be loaded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoraRequest {
    /// The adapter's name for users.
    pub name: String,
    /// The adapter's number in the engine, from 1.
    pub int_id: u64,
    /// Path of the adapter.
    pub path: String,
    /// The model that the adapter belongs to.
    pub base_model_name: Option<String>,
    /// Configuration of the tensorizer; only in the layout with seven elements.
    pub tensorizer_config: Option<Raw>,
    /// Whether the adapter replaces a loaded one of this name.
    pub load_inplace: bool,
    /// Whether the weights are three-dimensional tensors of a mixture of experts.
    pub is_3d: bool,
    /// The layout that was read, or that is to be written.
    pub layout: LoraLayout,
}

impl LoraRequest {
    /// Decodes the array of an adapter.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        whole("lora_request", frame, Self::read)
    }

    /// Decodes the adapter in the argument of a utility call.
    pub fn from_value(value: &Value) -> Result<Self, DecodeError> {
        Self::decode(Raw::of(value).bytes())
    }
}

impl Wire for LoraRequest {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        use rmp::Marker;
        let element = |index, name| move |error: DecodeError| error.within(Step::Element(index, name));
        let len = reader.array()?;
        if len < 3 {
            return Err(reader.error(Problem::Missing).within(Step::Element(len, ["name", "int_id", "path"][len])));
        }
        let mut lora = Self {
            name: String::read(reader).map_err(element(0, "name"))?,
            int_id: u64::read(reader).map_err(element(1, "int_id"))?,
            path: String::read(reader).map_err(element(2, "path"))?,
            ..Self::default()
        };
        let mut left = len - 3;
        let mut next = || {
            let is_there = left > 0;
            left -= usize::from(is_there);
            is_there
        };
        if next() {
            lora.base_model_name = Option::read(reader).map_err(element(3, "base_model_name"))?;
        }
        let is_bool = matches!(reader.peek(), Some(Marker::True | Marker::False));
        if len == 7 || (len > 4 && !is_bool) {
            lora.layout = LoraLayout::Seven;
            if next() {
                lora.tensorizer_config = Option::read(reader).map_err(element(4, "tensorizer_config"))?;
            }
        }
        if next() {
            lora.load_inplace = bool::read_or(reader, false).map_err(element(len - 2, "load_inplace"))?;
        }
        if next() {
            lora.is_3d = bool::read_or(reader, false).map_err(element(len - 1, "is_3d"))?;
        }
        while next() {
            reader.skip()?;
        }
        Ok(lora)
    }

    fn write(&self, out: &mut Vec<u8>) {
        write::array(out, if self.layout == LoraLayout::Seven { 7 } else { 6 });
        self.name.write(out);
        self.int_id.write(out);
        self.path.write(out);
        self.base_model_name.write(out);
        if self.layout == LoraLayout::Seven {
            self.tensorizer_config.write(out);
        }
        self.load_inplace.write(out);
        self.is_3d.write(out);
    }
}
