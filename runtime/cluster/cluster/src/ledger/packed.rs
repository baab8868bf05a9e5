//! Compact records of ended requests.
//!
//! A record is stored as differences from predicted values. Most predictions are the values of the previous record.
//! A correctly predicted word takes one bit. Most records take 20 to 40 bytes instead of the 400 of a
//! [`RequestRecord`]. They can only be read in sequence.

use super::record::{Outcome, RequestRecord};

/// Approximate bytes of a chunk. Chunks avoid a growing list, which would briefly need twice its memory.
const CHUNK_BYTES: usize = 1 << 16;
/// Words of a record. One bit per word says whether its prediction was right.
const WORDS: usize = RequestRecord::FIELDS.len() + 1;
const MASK_BYTES: usize = WORDS.div_ceil(8);
const _: () = assert!(WORDS <= 64, "a mask has 64 bits");
/// Maximum bytes of a record: a word of 65 bits takes ten bytes.
const MAX_RECORD_BYTES: usize = MASK_BYTES + WORDS * 10;

/// The words of a record; None for absent fields.
type Words = [Option<u64>; WORDS];

/// Packed records in order.
#[derive(Clone, Debug, Default)]
pub struct PackedRecords {
    chunks: Vec<Vec<u8>>,
    /// Outcomes; records refer to them by index.
    outcomes: Vec<Outcome>,
    len: u64,
    /// Number of initial records to leave out.
    skipped: u64,
    last: Option<Box<Words>>,
}

#[derive(Clone, Copy)]
enum Expected {
    /// The value of an earlier word of the same record.
    As(usize),
    /// None, or a value near an earlier word of the same record.
    NoneOrAbout(usize),
}

impl Expected {
    /// The predicted value, and the value relative to which other values are stored.
    fn of(self, words: &Words) -> (Option<u64>, u64) {
        match self {
            Self::As(other) => (words[other], words[other].unwrap_or_default()),
            Self::NoneOrAbout(other) => (None, words[other].unwrap_or_default()),
        }
    }
}

const fn word_of(field: &str) -> usize {
    let mut index = 0;
    while index < RequestRecord::FIELDS.len() {
        if is_same(RequestRecord::FIELDS[index].as_bytes(), field.as_bytes()) {
            return index;
        }
        index += 1;
    }
    panic!("the record has no such field");
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}

const ARRIVAL: usize = word_of("arrival_ns");
const QUEUED: usize = word_of("queued_ns");
const SCHEDULED: usize = word_of("scheduled_ns");
const PREFILL_END: usize = word_of("prefill_end_ns");
const TRANSFER_START: usize = word_of("transfer_start_ns");
const TRANSFER_END: usize = word_of("transfer_end_ns");
const FIRST_TOKEN: usize = word_of("first_token_ns");
const SECOND_TOKEN: usize = word_of("second_token_ns");
const LAST_TOKEN: usize = word_of("last_token_ns");
/// The word of the outcome comes after the words of the fields.
const OUTCOME: usize = WORDS - 1;

/// The words that are predicted from another word of their record, in writing order. They are written after all
/// other words, which are predicted to equal those of the previous record.
const RELATED: [(usize, Expected); 13] = {
    use Expected::{As, NoneOrAbout};
    [
        (QUEUED, As(ARRIVAL)),
        (SCHEDULED, As(QUEUED)),
        (PREFILL_END, As(SCHEDULED)),
        (TRANSFER_START, NoneOrAbout(PREFILL_END)),
        (TRANSFER_END, NoneOrAbout(TRANSFER_START)),
        (FIRST_TOKEN, As(PREFILL_END)),
        (SECOND_TOKEN, As(FIRST_TOKEN)),
        (LAST_TOKEN, As(SECOND_TOKEN)),
        (word_of("end_ns"), As(LAST_TOKEN)),
        (word_of("decode_scheduled_ns"), NoneOrAbout(TRANSFER_END)),
        (word_of("deadline_ns"), NoneOrAbout(ARRIVAL)),
        (word_of("load_since_ns"), NoneOrAbout(ARRIVAL)),
        (word_of("preempted_since_ns"), NoneOrAbout(ARRIVAL)),
    ]
};
const RELATED_MASK: u64 = {
    let mut mask = 0;
    let mut index = 0;
    while index < RELATED.len() {
        mask |= 1 << RELATED[index].0;
        index += 1;
    }
    mask
};

fn words_of(record: &RequestRecord, outcome: u64) -> Words {
    let mut words = [Some(outcome); WORDS];
    words[..OUTCOME].copy_from_slice(&record.field_words());
    words
}

/// Inverse of [`words_of`].
fn record_of(words: &Words, outcomes: &[Outcome]) -> RequestRecord {
    RequestRecord::of_field_words(words, outcomes[words[OUTCOME].unwrap_or_default() as usize])
}

impl PackedRecords {
    pub(crate) fn push(&mut self, record: &RequestRecord) {
        let outcome = self.outcomes.iter().position(|known| *known == record.outcome).unwrap_or_else(|| {
            self.outcomes.push(record.outcome);
            self.outcomes.len() - 1
        });
        let words = words_of(record, outcome as u64);
        if self.chunks.last().is_none_or(|chunk| chunk.len() + MAX_RECORD_BYTES > CHUNK_BYTES) {
            self.chunks.push(Vec::with_capacity(CHUNK_BYTES));
        }
        let chunk = self.chunks.last_mut().expect("there is one");
        let mask_at = chunk.len();
        chunk.extend_from_slice(&[0; MASK_BYTES]);
        let last = self.last.get_or_insert_with(|| Box::new([None; WORDS]));
        let mut mask = 0_u64;
        let mut add = |index: usize, (expected, about): (Option<u64>, u64)| {
            let word = words[index];
            if word != expected {
                mask |= 1 << index;
                write(chunk, word.map_or(0, |value| u128::from(folded(value.wrapping_sub(about))) + 1));
            }
        };
        for index in (0..WORDS).filter(|index| RELATED_MASK >> index & 1 == 0) {
            add(index, (last[index], last[index].unwrap_or_default()));
        }
        for (index, expected) in RELATED {
            add(index, expected.of(&words));
        }
        chunk[mask_at..mask_at + MASK_BYTES].copy_from_slice(&mask.to_le_bytes()[..MASK_BYTES]);
        **last = words;
        self.len += 1;
    }

    pub(crate) fn skip_first(&mut self, count: u64) {
        self.skipped = count.min(self.len);
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len - self.skipped
    }

    /// Whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All records, in order.
    pub fn iter(&self) -> impl Iterator<Item = RequestRecord> + '_ {
        let reader = Reader { packed: self, chunk: 0, at: 0, left: self.len, words: [None; WORDS] };
        reader.skip(self.skipped as usize)
    }
}

/// Maps a small positive or negative difference to a small number (zigzag encoding).
fn folded(difference: u64) -> u64 {
    let difference = difference.cast_signed();
    (difference << 1 ^ difference >> 63).cast_unsigned()
}

fn unfolded(folded: u64) -> u64 {
    (folded >> 1) ^ (folded & 1).wrapping_neg()
}

/// Writes a number with seven bits per byte, lowest bits first.
fn write(into: &mut Vec<u8>, mut number: u128) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// Takes from the beginning a number that [`write`] has written.
fn read(bytes: &mut &[u8]) -> u128 {
    let mut take = || {
        let (&byte, rest) = bytes.split_first().expect("numbers are whole");
        *bytes = rest;
        byte
    };
    let mut low_bits = 0;
    for shift in (0..63).step_by(7) {
        let byte = take();
        low_bits |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return low_bits.into();
        }
    }
    u128::from(take()) << 63 | u128::from(low_bits)
}

/// Reads a word that differs from its prediction.
fn read_word(bytes: &mut &[u8], about: u64) -> Option<u64> {
    // A folded difference can take 65 bits, because 1 was added to it.
    read(bytes).checked_sub(1).map(|folded| about.wrapping_add(unfolded(folded as u64)))
}

/// Reads the words that differ from the previous record, one for each bit of `changed`.
fn read_changed(bytes: &mut &[u8], words: &mut Words, mut changed: u64) {
    while changed != 0 {
        let index = changed.trailing_zeros() as usize;
        words[index] = read_word(bytes, words[index].unwrap_or_default());
        changed &= changed - 1;
    }
}

struct Reader<'a> {
    packed: &'a PackedRecords,
    chunk: usize,
    at: usize,
    left: u64,
    words: Words,
}

impl Iterator for Reader<'_> {
    type Item = RequestRecord;

    fn next(&mut self) -> Option<RequestRecord> {
        self.left = self.left.checked_sub(1)?;
        if self.at == self.packed.chunks[self.chunk].len() {
            (self.chunk, self.at) = (self.chunk + 1, 0);
        }
        let (mask_bytes, mut bytes) = self.packed.chunks[self.chunk][self.at..].split_at(MASK_BYTES);
        let mut mask = [0; 8];
        mask[..MASK_BYTES].copy_from_slice(mask_bytes);
        let mask = u64::from_le_bytes(mask);
        // The words are updated in place, because most stay the same.
        let words = &mut self.words;
        read_changed(&mut bytes, words, mask & !RELATED_MASK);
        for (index, expected) in RELATED {
            let (expected, about) = expected.of(words);
            words[index] = if mask >> index & 1 == 0 { expected } else { read_word(&mut bytes, about) };
        }
        self.at = self.packed.chunks[self.chunk].len() - bytes.len();
        Some(record_of(words, &self.packed.outcomes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::record::{FailReason, GiveUp, RequestDetail};
    use super::*;

    /// Words that are small, similar or extreme.
    fn arb_word() -> impl Strategy<Value = Option<u64>> {
        prop_oneof![
            Just(None),
            Just(Some(0)),
            (0u64..100).prop_map(Some),
            any::<u64>().prop_map(Some),
            Just(Some(u64::MAX)),
            Just(Some(1 << 63)),
        ]
    }

    fn arb_record() -> impl Strategy<Value = RequestRecord> {
        let outcomes = [
            Outcome::Unfinished,
            Outcome::Completed,
            Outcome::Shed,
            Outcome::Failed(FailReason::Status(503)),
            Outcome::GivenUp(GiveUp::Deadline),
        ];
        (prop::collection::vec(arb_word(), WORDS), prop::sample::select(outcomes.to_vec())).prop_map(
            |(words, outcome)| {
                let mut words: Words = words.try_into().expect("as many");
                words[OUTCOME] = Some(0);
                record_of(&words, &[outcome])
            },
        )
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(
            records in prop::collection::vec(arb_record(), 0..60),
            skipped in 0usize..70,
        ) {
            let mut packed = PackedRecords::default();
            records.iter().for_each(|record| packed.push(record));
            packed.skip_first(skipped as u64);
            let left = &records[skipped.min(records.len())..];
            prop_assert_eq!(packed.len(), left.len() as u64);
            prop_assert_eq!(format!("{:?}", packed.iter().collect::<Vec<_>>()), format!("{left:?}"));
        }
    }

    #[test]
    fn records_like_their_neighbours_take_little_room() {
        let mut packed = PackedRecords::default();
        let record = |number: u64| {
            let arrival_ns = number * 1_234_567;
            RequestRecord {
                session: number,
                output_tokens: 16,
                scheduled_ns: Some(arrival_ns + 20_000_000),
                prefill_end_ns: Some(arrival_ns + 90_000_000),
                first_token_ns: Some(arrival_ns + 90_000_000),
                last_token_ns: Some(arrival_ns + 250_000_000),
                end_ns: Some(arrival_ns + 250_000_000),
                prefill_worker: Some((number % 4) as u32),
                outcome: Outcome::Completed,
                detail: RequestDetail { second_token_ns: Some(arrival_ns + 99_000_000), ..RequestDetail::default() },
                ..RequestRecord::new(0, number, 0, [1024, 16], [arrival_ns, arrival_ns])
            }
        };
        (0..100_000).for_each(|number| packed.push(&record(number)));
        let bytes: usize = packed.chunks.iter().map(Vec::capacity).sum();
        assert!(bytes < 32 * 100_000, "{bytes} bytes of 100000 records");
        assert_eq!(format!("{:?}", packed.iter().last()), format!("{:?}", Some(record(99_999))));
    }
}
