//! MessagePack: a reader, a writer, and one declaration per structure for both its decoder and its encoder.

pub(crate) mod derived;
pub(crate) mod error;
pub(crate) mod field;
pub(crate) mod json;
pub(crate) mod read;
pub(crate) mod structs;
pub(crate) mod value;
pub(crate) mod write;

pub(crate) use derived::{as_array, serde_message, serde_wire};
pub(crate) use structs::{Elements, array_struct, array_wire, map_struct};
