//! Field types and their encodings.

use std::sync::Arc;

use super::error::DecodeError;
use super::read::Reader;
use super::write;

/// A value with a single encoding.
pub(crate) trait Wire: Sized {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;

    fn write(&self, out: &mut Vec<u8>);

    /// Reads a field. Nil means the default, except for types that have nil as a value.
    fn read_or(reader: &mut Reader<'_>, default: Self) -> Result<Self, DecodeError> {
        if reader.take_nil() { Ok(default) } else { Self::read(reader) }
    }
}

impl Wire for u64 {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.narrow("an integer from 0 to 2^64 - 1")
    }

    fn write(&self, out: &mut Vec<u8>) {
        write::uint(out, *self);
    }
}

impl Wire for u32 {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.u32()
    }

    fn write(&self, out: &mut Vec<u8>) {
        write::uint(out, u64::from(*self));
    }
}

impl Wire for i64 {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.narrow("an integer from -2^63 to 2^63 - 1")
    }

    fn write(&self, out: &mut Vec<u8>) {
        write::int(out, *self);
    }
}

impl Wire for bool {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.bool()
    }

    fn write(&self, out: &mut Vec<u8>) {
        write::bool(out, *self);
    }
}

impl Wire for f64 {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.f64()
    }

    fn write(&self, out: &mut Vec<u8>) {
        write::f64(out, *self);
    }
}

impl<T: Wire> Wire for Arc<T> {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        T::read(reader).map(Self::new)
    }

    fn write(&self, out: &mut Vec<u8>) {
        T::write(self, out);
    }
}

impl Wire for String {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.str().map(str::to_owned)
    }

    fn write(&self, out: &mut Vec<u8>) {
        write::str(out, self);
    }
}

impl<T: Wire> Wire for Option<T> {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if reader.take_nil() { Ok(None) } else { T::read(reader).map(Some) }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Some(value) => value.write(out),
            None => write::nil(out),
        }
    }

    fn read_or(reader: &mut Reader<'_>, _: Self) -> Result<Self, DecodeError> {
        Self::read(reader)
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.list(T::read)
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_list(out, self);
    }
}

pub(crate) fn write_list<T: Wire>(out: &mut Vec<u8>, items: &[T]) {
    write::array(out, items.len());
    for item in items {
        item.write(out);
    }
}
