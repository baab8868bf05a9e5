//! Fields of a row.

/// A value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field<'a> {
    Null,
    Integer(i64),
    /// A text or a blob.
    Bytes(&'a [u8]),
    /// A number with a fraction, which nobody asks for.
    Other,
}

impl<'a> Field<'a> {
    /// Its text, if it is one.
    pub(crate) fn text(self) -> Option<&'a str> {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Its bytes, if it is a text or a blob.
    pub(crate) fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The fields of a row; none if it is cut off.
pub(super) fn fields(row: &[u8]) -> Option<Vec<Field<'_>>> {
    let (header, header_bytes) = varint(row)?;
    let header = usize::try_from(header).ok()?;
    let mut kinds = row.get(header_bytes..header)?;
    let mut values = &row[header..];
    let mut fields = Vec::new();
    while !kinds.is_empty() {
        let (kind, kind_bytes) = varint(kinds)?;
        kinds = &kinds[kind_bytes..];
        let length = match kind {
            0 | 8 | 9 => 0,
            1..=4 => kind as usize,
            5 => 6,
            6 | 7 => 8,
            10 | 11 => return None,
            _ => usize::try_from((kind - 12) / 2).ok()?,
        };
        let (value, rest) = values.split_at_checked(length)?;
        values = rest;
        fields.push(match kind {
            0 => Field::Null,
            1..=6 => Field::Integer(integer(value)),
            7 => Field::Other,
            8 => Field::Integer(0),
            9 => Field::Integer(1),
            _ => Field::Bytes(value),
        });
    }
    Some(fields)
}

/// A number of up to eight bytes, the first of which has its sign.
fn integer(bytes: &[u8]) -> i64 {
    let sign = if bytes.first().is_some_and(|byte| *byte >= 0x80) { -1 } else { 0 };
    bytes.iter().fold(sign, |value, byte| value << 8 | i64::from(*byte))
}

/// A number of one to nine bytes, and how many it has.
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (index, byte) in bytes.iter().take(9).enumerate() {
        if index == 8 {
            return Some((value << 8 | u64::from(*byte), 9));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_bytes_as_they_need() {
        assert_eq!(varint(&[0x7f]), Some((127, 1)));
        assert_eq!(varint(&[0x81, 0x00, 0xff]), Some((128, 2)));
        assert_eq!(varint(&[0xff; 9]), Some((u64::MAX, 9)));
        assert_eq!((varint(&[0x80]), varint(&[])), (None, None));
        assert_eq!((integer(&[0xff]), integer(&[0x00, 0x80]), integer(&[])), (-1, 128, 0));
    }

    #[test]
    fn rows_that_are_cut_off_have_no_fields() {
        let row = [3, 1, 15, 7, b'a'];
        assert_eq!(fields(&row), Some(vec![Field::Integer(7), Field::Bytes(b"a")]));
        for end in 0..row.len() {
            assert_eq!(fields(&row[..end]), None, "{end}");
        }
    }
}
