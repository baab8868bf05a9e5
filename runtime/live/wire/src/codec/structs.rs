//! Structures of the protocol, declared once.

use std::ops::Range;

use super::error::{DecodeError, Problem, Step};
use super::read::Reader;
use super::write;

/// A structure that is encoded as a positional array.
pub(crate) trait Elements: Default {
    /// Names of the elements, for errors.
    const NAMES: &[&str];
    /// Number of elements that must be present.
    const REQUIRED: usize;

    /// Reads the elements of `range`, after the header of the array.
    fn read_range(&mut self, reader: &mut Reader<'_>, range: Range<usize>) -> Result<(), DecodeError>;

    fn read_len(reader: &mut Reader<'_>) -> Result<usize, DecodeError> {
        let len = reader.array()?;
        if len < Self::REQUIRED {
            return Err(reader.error(Problem::Missing).within(Step::Element(len, Self::NAMES[len])));
        }
        Ok(len)
    }

    fn read_elements(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let len = Self::read_len(reader)?;
        let mut value = Self::default();
        value.read_tail(reader, 0..len)?;
        Ok(value)
    }

    /// Reads the elements of `range`, which goes to the end of the array, and skips unknown ones.
    fn read_tail(&mut self, reader: &mut Reader<'_>, range: Range<usize>) -> Result<(), DecodeError> {
        let unknown = Self::NAMES.len().max(range.start)..range.end;
        self.read_range(reader, range)?;
        for _ in unknown {
            reader.skip()?;
        }
        Ok(())
    }

    /// The length of the shortest equivalent array, for a reader that knows the first `known` elements.
    fn shortest(&self, known: usize) -> usize;

    /// Writes the elements of `range`, without the header of the array.
    fn write_range(&self, out: &mut Vec<u8>, range: Range<usize>);

    /// Writes the header and the first `len` elements.
    fn write_elements(&self, out: &mut Vec<u8>, len: usize) {
        let len = len.min(Self::NAMES.len());
        write::array(out, len);
        self.write_range(out, 0..len);
    }
}

/// Declares a map of named fields. Unknown keys are skipped, and absent keys have their defaults. An `always` field
/// is always written, a `sparse` field only if it differs from its default.
macro_rules! map_struct {
    (
        $(#[$meta:meta])*
        $name:ident, $message:literal {
            $($(#[$field_meta:meta])* $mode:ident $field:ident $(as $key:literal)?: $type:ty = $default:expr,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::codec::field::Wire for $name {
            fn read(
                reader: &mut $crate::codec::read::Reader<'_>,
            ) -> Result<Self, $crate::codec::error::DecodeError> {
                use $crate::codec::error::Step;
                let mut value = Self::default();
                for _ in 0..reader.map()? {
                    match reader.key()? {
                        $(Some($crate::codec::structs::key!($field $($key)?)) => {
                            const KEY: &str = $crate::codec::structs::key!($field $($key)?);
                            value.$field = $crate::codec::field::Wire::read_or(reader, $default)
                                .map_err(|error| error.within(Step::Key(KEY.into())))?;
                        })*
                        _ => reader.skip()?,
                    }
                }
                Ok(value)
            }

            fn write(&self, out: &mut Vec<u8>) {
                let len = 0 $(+ usize::from($crate::codec::structs::is_written!($mode, self.$field, $default)))*;
                $crate::codec::write::map(out, len);
                $(if $crate::codec::structs::is_written!($mode, self.$field, $default) {
                    $crate::codec::write::str(out, $crate::codec::structs::key!($field $($key)?));
                    $crate::codec::field::Wire::write(&self.$field, out);
                })*
            }
        }

        impl $name {
            /// Decodes a map with these keys.
            pub fn decode(frame: &[u8]) -> Result<Self, $crate::DecodeError> {
                $crate::codec::read::whole($message, frame, $crate::codec::field::Wire::read)
            }

            /// Appends the map to `out`.
            pub fn encode(&self, out: &mut Vec<u8>) {
                $crate::codec::field::Wire::write(self, out);
            }
        }
    };
}

/// Declares a positional array. Missing elements at its end have their defaults, and unknown ones are skipped. The
/// first `required` elements must be present.
macro_rules! array_struct {
    (
        $(#[$meta:meta])*
        $name:ident, $required:literal required {
            $($(#[$field_meta:meta])* $field:ident: $type:ty = $default:expr,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::codec::structs::Elements for $name {
            const NAMES: &[&str] = &[$(stringify!($field)),*];

            const REQUIRED: usize = $required;

            fn read_range(
                &mut self,
                reader: &mut $crate::codec::read::Reader<'_>,
                range: std::ops::Range<usize>,
            ) -> Result<(), $crate::codec::error::DecodeError> {
                use $crate::codec::error::Step;
                let mut index = 0;
                $(
                    if range.contains(&index) {
                        self.$field = $crate::codec::field::Wire::read_or(reader, $default)
                            .map_err(|error| error.within(Step::Element(index, stringify!($field))))?;
                    }
                    index += 1;
                )*
                let _ = index;
                Ok(())
            }

            fn shortest(&self, known: usize) -> usize {
                let mut shortest = $required;
                let mut index = 0;
                $(
                    index += 1;
                    if index <= known && self.$field != $default {
                        shortest = index.max($required);
                    }
                )*
                shortest
            }

            fn write_range(&self, out: &mut Vec<u8>, range: std::ops::Range<usize>) {
                let mut index = 0;
                $(
                    if range.contains(&index) {
                        $crate::codec::field::Wire::write(&self.$field, out);
                    }
                    index += 1;
                )*
                let _ = index;
            }
        }
    };
}

/// Declares that an array struct has a single encoding: with all its elements, or as the shortest array.
macro_rules! array_wire {
    ($name:ident, $len:ident) => {
        impl $crate::codec::field::Wire for $name {
            fn read(reader: &mut $crate::codec::read::Reader<'_>) -> Result<Self, $crate::codec::error::DecodeError> {
                $crate::codec::structs::Elements::read_elements(reader)
            }

            fn write(&self, out: &mut Vec<u8>) {
                use $crate::codec::structs::Elements;
                self.write_elements(out, $crate::codec::structs::len!($len, self));
            }
        }
    };
}

macro_rules! len {
    (full, $value:expr) => {
        <Self as $crate::codec::structs::Elements>::NAMES.len()
    };
    (shortest, $value:expr) => {
        $value.shortest(usize::MAX)
    };
}

macro_rules! key {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $key:literal) => {
        $key
    };
}

macro_rules! is_written {
    (sparse, $value:expr, $default:expr) => {
        $value != $default
    };
    ($mode:ident, $value:expr, $default:expr) => {
        true
    };
}

pub(crate) use {array_struct, array_wire, is_written, key, len, map_struct};
