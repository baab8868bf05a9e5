//! Records of requests that are over, in little room.
//!
//! A record is written as the differences from what its neighbours let expect: a word that is
//! as expected takes one bit. Most take 20 to 40 bytes instead of the 400 of a
//! [`RequestRecord`]. They are read one after another only.

use super::record::{Outcome, RequestDetail, RequestRecord};

/// Bytes of a chunk, about: a list that grows by doubling would hold them twice for a while.
const CHUNK_BYTES: usize = 1 << 16;
/// Words of a record; a bit of each says whether it is as expected.
const WORDS: usize = 40;
const MASK_BYTES: usize = WORDS / 8;
/// The most bytes of a record: 65 bits of a word take ten.
const MAX_RECORD_BYTES: usize = MASK_BYTES + WORDS * 10;

/// A word of a record: none for what it lacks.
type Words = [Option<u64>; WORDS];

/// Records in their order.
#[derive(Clone, Debug, Default)]
pub struct PackedRecords {
    chunks: Vec<Vec<u8>>,
    /// Outcomes by their numbers in records.
    outcomes: Vec<Outcome>,
    len: u64,
    /// Records at the beginning that are left out.
    skipped: u64,
    /// The words of the latest record.
    last: Option<Box<Words>>,
}

/// The value that a word is expected to have.
#[derive(Clone, Copy)]
enum Expected {
    /// That of the record before.
    AsBefore,
    /// That of an earlier word of the same record.
    As(usize),
    /// None; if it has one, about that of an earlier word of the same record.
    NoneOrAbout(usize),
}

const ARRIVAL: usize = 7;
const PREFILL_END: usize = 10;
const TRANSFER_END: usize = 12;
const FIRST_TOKEN: usize = 13;
const SECOND_TOKEN: usize = 14;
const LAST_TOKEN: usize = 15;
const TRANSFER_START: usize = 11;

/// The words that are not expected to be as before: these follow one another.
const RELATED: std::ops::Range<usize> = 8..21;

/// By word, in the order of [`words_of`].
const EXPECTED: [Expected; WORDS] = {
    use Expected::{As, AsBefore, NoneOrAbout};
    let mut expected = [AsBefore; WORDS];
    expected[8] = As(ARRIVAL);
    expected[9] = As(8);
    expected[PREFILL_END] = As(9);
    expected[TRANSFER_START] = NoneOrAbout(PREFILL_END);
    expected[TRANSFER_END] = NoneOrAbout(TRANSFER_START);
    expected[FIRST_TOKEN] = As(PREFILL_END);
    expected[SECOND_TOKEN] = As(FIRST_TOKEN);
    expected[LAST_TOKEN] = As(SECOND_TOKEN);
    expected[16] = As(LAST_TOKEN);
    expected[17] = NoneOrAbout(TRANSFER_END);
    expected[18] = NoneOrAbout(ARRIVAL);
    expected[19] = NoneOrAbout(ARRIVAL);
    expected[20] = NoneOrAbout(ARRIVAL);
    let mut index = 0;
    while index < WORDS {
        let is_related = RELATED.start <= index && index < RELATED.end;
        assert!(is_related != matches!(expected[index], AsBefore));
        index += 1;
    }
    expected
};

/// Every field is named, so that none is lost.
fn words_of(record: &RequestRecord, outcome: u64) -> Words {
    let RequestRecord {
        workload,
        session,
        turn,
        prompt_tokens,
        max_tokens,
        output_tokens,
        cached_tokens,
        arrival_ns,
        queued_ns,
        scheduled_ns,
        prefill_end_ns,
        transfer_end_ns,
        first_token_ns,
        last_token_ns,
        end_ns,
        prefill_worker,
        decode_worker,
        preemptions,
        retries,
        attempt,
        deadline_ns,
        wasted_tokens,
        wasted_prompt_tokens,
        class,
        adapter,
        outcome: _,
        detail,
    } = *record;
    let RequestDetail {
        second_token_ns,
        most_cached_tokens,
        host_cached_tokens,
        disk_cached_tokens,
        load_since_ns,
        first_load_ns,
        load_ns,
        preempted_since_ns,
        preempted_ns,
        transfer_start_ns,
        decode_scheduled_ns,
        decode_cached_tokens,
        route_overlap_tokens: [prefill_overlap_tokens, decode_overlap_tokens],
    } = detail;
    let some = |value: u32| Some(u64::from(value));
    let maybe = |value: Option<u32>| value.map(u64::from);
    [
        some(workload),
        Some(session),
        some(turn),
        some(prompt_tokens),
        some(max_tokens),
        some(output_tokens),
        some(cached_tokens),
        Some(arrival_ns),
        Some(queued_ns),
        scheduled_ns,
        prefill_end_ns,
        transfer_start_ns,
        transfer_end_ns,
        first_token_ns,
        second_token_ns,
        last_token_ns,
        end_ns,
        decode_scheduled_ns,
        deadline_ns,
        load_since_ns,
        preempted_since_ns,
        first_load_ns,
        load_ns,
        Some(preempted_ns),
        maybe(prefill_worker),
        maybe(decode_worker),
        some(preemptions),
        some(retries),
        some(attempt),
        some(wasted_tokens),
        some(wasted_prompt_tokens),
        some(class),
        maybe(adapter),
        some(most_cached_tokens),
        some(host_cached_tokens),
        some(disk_cached_tokens),
        maybe(decode_cached_tokens),
        maybe(prefill_overlap_tokens),
        maybe(decode_overlap_tokens),
        Some(outcome),
    ]
}

/// The record of words that [`words_of`] has given.
fn record_of(words: &Words, outcomes: &[Outcome]) -> RequestRecord {
    let mut words = words.iter().copied();
    let mut next = || words.next().flatten();
    macro_rules! small {
        () => {
            next().unwrap_or_default() as u32
        };
    }
    macro_rules! maybe_small {
        () => {
            next().map(|value| value as u32)
        };
    }
    let mut record = RequestRecord {
        workload: small!(),
        session: next().unwrap_or_default(),
        turn: small!(),
        prompt_tokens: small!(),
        max_tokens: small!(),
        output_tokens: small!(),
        cached_tokens: small!(),
        arrival_ns: next().unwrap_or_default(),
        queued_ns: next().unwrap_or_default(),
        scheduled_ns: next(),
        prefill_end_ns: next(),
        ..RequestRecord::default()
    };
    record.detail.transfer_start_ns = next();
    record.transfer_end_ns = next();
    record.first_token_ns = next();
    record.detail.second_token_ns = next();
    record.last_token_ns = next();
    record.end_ns = next();
    record.detail.decode_scheduled_ns = next();
    record.deadline_ns = next();
    record.detail.load_since_ns = next();
    record.detail.preempted_since_ns = next();
    record.detail.first_load_ns = next();
    record.detail.load_ns = next();
    record.detail.preempted_ns = next().unwrap_or_default();
    record.prefill_worker = maybe_small!();
    record.decode_worker = maybe_small!();
    record.preemptions = small!();
    record.retries = small!();
    record.attempt = small!();
    record.wasted_tokens = small!();
    record.wasted_prompt_tokens = small!();
    record.class = small!();
    record.adapter = maybe_small!();
    record.detail.most_cached_tokens = small!();
    record.detail.host_cached_tokens = small!();
    record.detail.disk_cached_tokens = small!();
    record.detail.decode_cached_tokens = maybe_small!();
    record.detail.route_overlap_tokens = [maybe_small!(), maybe_small!()];
    record.outcome = outcomes[next().unwrap_or_default() as usize];
    record
}

impl PackedRecords {
    /// Adds a record.
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
        for (index, &word) in words.iter().enumerate() {
            let (expected, about) = expectation(index, &words, last);
            if word != expected {
                mask |= 1 << index;
                write(chunk, word.map_or(0, |value| u128::from(folded(value.wrapping_sub(about))) + 1));
            }
        }
        chunk[mask_at..mask_at + MASK_BYTES].copy_from_slice(&mask.to_le_bytes()[..MASK_BYTES]);
        **last = words;
        self.len += 1;
    }

    /// Leaves the first `count` out.
    pub(crate) fn skip_first(&mut self, count: u64) {
        self.skipped = count.min(self.len);
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len - self.skipped
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = RequestRecord> + '_ {
        let reader = Reader { packed: self, chunk: 0, at: 0, left: self.len, words: [None; WORDS] };
        reader.skip(self.skipped as usize)
    }
}

/// The value that a word is expected to have, and that which a difference is taken from.
fn expectation(index: usize, words: &Words, last: &Words) -> (Option<u64>, u64) {
    match EXPECTED[index] {
        Expected::AsBefore => (last[index], last[index].unwrap_or_default()),
        Expected::As(other) => (words[other], words[other].unwrap_or_default()),
        Expected::NoneOrAbout(other) => (None, words[other].unwrap_or_default()),
    }
}

/// A difference of either sign as a small number, if it is small.
fn folded(difference: u64) -> u64 {
    let difference = difference.cast_signed();
    (difference << 1 ^ difference >> 63).cast_unsigned()
}

fn unfolded(folded: u64) -> u64 {
    (folded >> 1) ^ (folded & 1).wrapping_neg()
}

/// Writes seven bits in a byte, the lowest first.
fn write(into: &mut Vec<u8>, mut number: u128) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// Takes the number off the beginning that [`write`] has written there.
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

/// Reads a word that is not as expected.
fn read_word(bytes: &mut &[u8], about: u64) -> Option<u64> {
    // A difference of 65 bits is one more than that of 64.
    read(bytes).checked_sub(1).map(|folded| about.wrapping_add(unfolded(folded as u64)))
}

/// Reads words that are not as before, one for each bit of `changed`.
fn read_changed(bytes: &mut &[u8], words: &mut Words, mut changed: u64) {
    while changed != 0 {
        let index = changed.trailing_zeros() as usize;
        words[index] = read_word(bytes, words[index].unwrap_or_default());
        changed &= changed - 1;
    }
}

/// Goes through packed records.
struct Reader<'a> {
    packed: &'a PackedRecords,
    chunk: usize,
    at: usize,
    left: u64,
    /// Those of the latest record.
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
        // In place: most words are as before.
        let words = &mut self.words;
        read_changed(&mut bytes, words, mask & ((1 << RELATED.start) - 1));
        for index in RELATED {
            let (expected, about) = expectation(index, words, words);
            words[index] = if mask >> index & 1 == 0 { expected } else { read_word(&mut bytes, about) };
        }
        read_changed(&mut bytes, words, mask >> RELATED.end << RELATED.end);
        self.at = self.packed.chunks[self.chunk].len() - bytes.len();
        Some(record_of(words, &self.packed.outcomes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::record::{FailReason, GiveUp};
    use super::*;

    /// Small, alike or extreme words: what records have and what they could have.
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
                words[WORDS - 1] = Some(0);
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
