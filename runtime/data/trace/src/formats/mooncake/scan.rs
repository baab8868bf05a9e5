//! Reads usual rows on a fast path.
//!
//! A row is mostly a list of integers. The scanner reads rows with known fields, plain numbers, texts without
//! escapes and lists of integers. It leaves all other rows to the JSON parser, which also reports errors.

use super::row::{DecodedRow, Dialect, Field};
use crate::millis::Millis;

/// Fills an empty `row` from a JSON object. Returns false if the row is not usual; `row` may then be partly filled.
pub(super) fn row(row: &mut DecodedRow, json: &[u8], dialect: Dialect) -> bool {
    Scanner { rest: json }.object(row, dialect).is_some()
}

struct Scanner<'a> {
    rest: &'a [u8],
}

impl<'a> Scanner<'a> {
    fn object(&mut self, row: &mut DecodedRow, dialect: Dialect) -> Option<()> {
        self.expect(b'{')?;
        loop {
            let field = dialect.field(self.text()?)?;
            self.expect(b':')?;
            self.skip_space();
            if !row.name(field) {
                return None;
            }
            self.value(row, field)?;
            match self.next()? {
                b',' => {}
                b'}' => break,
                _ => return None,
            }
        }
        self.skip_space();
        self.rest.is_empty().then_some(())
    }

    fn value(&mut self, row: &mut DecodedRow, field: Field) -> Option<()> {
        match field {
            Field::HashIds => self.integers(&mut row.hash_ids, Some)?,
            Field::OutputTokenIds => self.integers(&mut row.output_token_ids, |id| u32::try_from(id).ok())?,
            Field::RequestId => row.request_id = Some(self.text()?.into()),
            Field::SessionId => row.session_id = Some(self.text()?.into()),
            Field::PolicyClass => row.policy_class = Some(self.text()?.into()),
            Field::PlayId => row.play_id = Some(self.text()?.into()),
            Field::InputLength => row.input_tokens = u32::try_from(self.integer()?).ok()?,
            Field::OutputLength => row.output_tokens = u32::try_from(self.integer()?).ok()?,
            Field::StrictPriority => row.strict_priority = u32::try_from(self.integer()?).ok()?,
            Field::Priority => row.priority = i32::try_from(self.integer()?).ok()?,
            Field::Timestamp => row.timestamp = Some(self.millis()?),
            Field::Delay => row.delay = Some(self.millis()?),
            Field::NotBefore => row.not_before = Some(self.millis()?),
            Field::ToolWait => row.tool_wait = Some(self.millis()?),
            Field::Model | Field::RequestKind => {
                self.text()?;
            }
            Field::MmItems
            | Field::TextInput
            | Field::Messages
            | Field::Tools
            | Field::Payload
            | Field::Extra
            | Field::Dependencies
            | Field::WaitFor
            | Field::Branches
            | Field::PrefixReset
            | Field::ToolEvents
            | Field::RecordedApiTime => return None,
        }
        Some(())
    }

    fn skip_space(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    fn next(&mut self) -> Option<u8> {
        self.skip_space();
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn text(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let end = self.rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest.strip_prefix(b"\"")?;
        std::str::from_utf8(text).ok()
    }

    /// Takes a number of at most 19 digits, without sign, fraction or exponent.
    #[inline]
    fn integer(&mut self) -> Option<u64> {
        let mut value = 0u64;
        let mut len = 0;
        while let Some(digit) = self.rest.get(len).map(|byte| byte.wrapping_sub(b'0'))
            && digit < 10
        {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
            len += 1;
        }
        let is_usual = (1..=19).contains(&len) && (len == 1 || self.rest[0] != b'0');
        if !is_usual || matches!(self.rest.get(len), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        self.rest = &self.rest[len..];
        Some(value)
    }

    fn integers<T>(&mut self, list: &mut Vec<T>, convert: impl Fn(u64) -> Option<T>) -> Option<()> {
        self.expect(b'[')?;
        self.skip_space();
        if let Some(rest) = self.rest.strip_prefix(b"]") {
            self.rest = rest;
            return Some(());
        }
        if self.short_integers(list, &convert)? {
            return Some(());
        }
        loop {
            list.push(convert(self.integer()?)?);
            match self.next()? {
                b',' => self.skip_space(),
                b']' => return Some(()),
                _ => return None,
            }
        }
    }

    /// Takes the integers of a list up to a long integer, or to one that is not followed by a comma and a space, as
    /// in published files. Returns whether the list has ended.
    fn short_integers<T>(&mut self, list: &mut Vec<T>, convert: impl Fn(u64) -> Option<T>) -> Option<bool> {
        let mut rest = self.rest;
        let mut is_over = false;
        while !is_over
            && let Some((value, len)) = rest.first_chunk().and_then(|bytes| few_digits(*bytes))
            && (len == 1 || rest[0] != b'0')
        {
            (is_over, rest) = match &rest[len..] {
                [b',', b' ', b'0'..=b'9', ..] => (false, &rest[len + 2..]),
                [b']', after @ ..] => (true, after),
                _ => break,
            };
            list.push(convert(value)?);
        }
        self.rest = rest;
        Some(is_over)
    }

    /// Takes milliseconds: digits, with or without a fraction.
    fn millis(&mut self) -> Option<Millis> {
        let digits = |from: &[u8]| from.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let whole = digits(self.rest);
        if whole == 0 || (whole > 1 && self.rest[0] == b'0') {
            return None;
        }
        match self.rest.get(whole) {
            Some(b'e' | b'E') => None,
            Some(b'.') => {
                let fraction = digits(&self.rest[whole + 1..]);
                let (number, rest) = self.rest.split_at(whole + 1 + fraction);
                if fraction == 0 || matches!(rest, [b'e' | b'E', ..]) {
                    return None;
                }
                self.rest = rest;
                // The nearest double, like the JSON parser.
                Millis::from_f64(std::str::from_utf8(number).ok()?.parse().ok()?)
            }
            _ => Millis::from_whole(self.integer()?),
        }
    }
}

/// Returns the number at the start of `bytes` and its length, if it has 1 to 7 digits and another byte follows. All
/// bytes are processed together as one word.
#[inline]
fn few_digits(bytes: [u8; 8]) -> Option<(u64, usize)> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let word = u64::from_le_bytes(bytes);
    // Sets the high bit of each byte that is not a digit: subtraction borrows below '0', addition carries above
    // '9', and bytes above ASCII have the bit already. Bytes after the first such byte do not matter.
    let below = word.wrapping_sub(ONES * u64::from(b'0'));
    let above = (word & (ONES * 0x7f)) + ONES * u64::from(0x7f - b'9');
    let others = (below | above | word) & (ONES * 0x80);
    let len = others.trailing_zeros() / u8::BITS;
    if others == 0 || len == 0 {
        return None;
    }
    // Leading zeros extend the digits to eight. Then pairs, fours and all eight digits are combined.
    let digits = (word << (u64::BITS - len * u8::BITS)) & (ONES * 0x0f);
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    let all = (fours * 10_000 + (fours >> 32)) & 0xffff_ffff;
    Some((all, len as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn few_digits_are_those_one_by_one(
            bytes in prop::array::uniform8(prop_oneof![5 => b'0'..=b'9', 1 => any::<u8>(), 1 => Just(b',')]),
        ) {
            let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let number = |value: u64, byte: &u8| value * 10 + u64::from(byte.wrapping_sub(b'0'));
            let value = bytes[..digits].iter().fold(0, number);
            prop_assert_eq!(few_digits(bytes), (1..8).contains(&digits).then_some((value, digits)));
        }

        /// A list has the same integers with any spacing.
        #[test]
        fn lists_are_their_integers(
            integers in prop::collection::vec(prop_oneof![0..20u64, 0..10_000_000u64, any::<u64>()], 0..40),
            spaces in prop::collection::vec(prop_oneof![8 => Just(" "), 1 => Just(""), 1 => Just("  ")], 40),
        ) {
            let is_usual = integers.iter().all(|integer| integer.to_string().len() < 20);
            let items = integers.iter().zip(&spaces).map(|(integer, space)| format!("{space}{integer}"));
            let text = format!("[{}],", items.collect::<Vec<_>>().join(","));
            let mut scanner = Scanner { rest: text.as_bytes() };
            let mut list = Vec::new();
            let read = scanner.integers(&mut list, Some);
            prop_assert_eq!(read.is_some(), is_usual, "{}", text);
            if is_usual {
                prop_assert_eq!((list, scanner.rest), (integers, &b","[..]));
            }
        }
    }
}
