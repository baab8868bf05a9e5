//! The record of every request.

use vcr_core::plan::TierLoad;
use vcr_trace::RequestRow;

pub use super::outcome::{FailReason, GiveUp, Outcome};
use crate::config::{Overheads, PoolRole};

/// A field of a record as a number; None if the field is absent.
trait Word: Copy {
    const IS_OPTIONAL: bool;

    fn to_word(self) -> Option<u64>;

    fn of_word(word: Option<u64>) -> Self;

    fn hashed(self) -> u64 {
        match self.to_word() {
            Some(word) if Self::IS_OPTIONAL => word.wrapping_add(1),
            word => word.unwrap_or(0),
        }
    }
}

macro_rules! words {
    ($($number:ty)*) => {$(
        impl Word for $number {
            const IS_OPTIONAL: bool = false;

            fn to_word(self) -> Option<u64> {
                Some(self.into())
            }

            fn of_word(word: Option<u64>) -> Self {
                word.unwrap_or_default() as $number
            }
        }

        impl Word for Option<$number> {
            const IS_OPTIONAL: bool = true;

            fn to_word(self) -> Option<u64> {
                self.map(u64::from)
            }

            fn of_word(word: Option<u64>) -> Self {
                word.map(|word| word as $number)
            }
        }
    )*};
}

words!(u32 u64);

/// Converts a record's value to the value in a row: times become milliseconds.
trait InRow<T> {
    fn in_row(self) -> T;
}

impl<T> InRow<T> for T {
    fn in_row(self) -> T {
        self
    }
}

impl InRow<f64> for u64 {
    fn in_row(self) -> f64 {
        ns_to_ms(self)
    }
}

impl InRow<Option<f64>> for Option<u64> {
    fn in_row(self) -> Option<f64> {
        self.map(ns_to_ms)
    }
}

/// 1 for a field that the fingerprint hashes, else 0.
macro_rules! count_hashed {
    (hashed) => {
        1
    };
    ($other:ident) => {
        0
    };
}

macro_rules! hash_field {
    ($add:ident, $value:expr, hashed) => {
        $add($value.hashed());
    };
    ($add:ident, $value:expr, $other:ident) => {};
}

macro_rules! hash_further {
    ($add:ident, $value:expr, further) => {
        $add($value.hashed());
    };
    ($add:ident, $value:expr, $other:ident) => {};
}

macro_rules! reset_field {
    ($value:expr, reset) => {
        $value = Default::default();
    };
    ($value:expr, kept) => {};
}

/// Sets the field of a row from the record's field if both exist.
macro_rules! set_row {
    ($record:ident $row:ident { $field:ident : $($of_field:tt)* } { $row_field:ident : $($of_row:tt)* }) => {
        $row.$row_field = $record.$field.in_row();
    };
    ($record:ident $row:ident { $($field:tt)* } { $($row_field:tt)* }) => {};
}

macro_rules! declare_record {
    (
        request { $($doc:literal { $($field:ident : $type:ty, $retry:ident, $hash:ident)? } { $($row:tt)* };)* }
        detail { $($detail_doc:literal { $detail:ident : $detail_type:ty, $detail_retry:ident, $detail_hash:ident };)* }
    ) => {
        /// One request from arrival to end. Times are virtual nanoseconds. After a retry, all times except the
        /// arrival are those of the last attempt. Arrival, tokens and end are client times; all times between are
        /// engine times. [`vcr_trace::request_fields`] declares the fields.
        #[derive(Clone, Debug, Default)]
        pub struct RequestRecord {
            $($(
                #[doc = $doc]
                pub $field: $type,
            )?)*
            /// The outcome of the request.
            pub outcome: Outcome,
            /// Details that explain the latency.
            pub detail: RequestDetail,
        }

        /// Details of a request's last attempt that explain its latency.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct RequestDetail {
            $(
                #[doc = $detail_doc]
                pub $detail: $detail_type,
            )*
        }

        impl RequestRecord {
            /// Resets the fields that describe a single attempt.
            pub(super) fn reset(&mut self) {
                $($(reset_field!(self.$field, $retry);)?)*
                $(reset_field!(self.detail.$detail, $detail_retry);)*
            }

            /// Number of hashed words: one per hashed field, and one for the status.
            const WORDS: usize = $($(count_hashed!($hash) +)?)* $(count_hashed!($detail_hash) +)* 1;

            /// The hashed fields as numbers, for a fingerprint. Reasons are hashed as text.
            pub(crate) fn words(&self) -> [u64; Self::WORDS] {
                let mut words = [0; Self::WORDS];
                let mut left = words.iter_mut();
                let mut add = |word: u64| *left.next().expect("they were counted") = word;
                $($(hash_field!(add, self.$field, $hash);)?)*
                add(match self.outcome {
                    Outcome::Unfinished => 0,
                    Outcome::Completed => 1,
                    Outcome::Rejected(_) => 2,
                    Outcome::Shed => 3,
                    Outcome::Failed(_) => 4,
                    Outcome::GivenUp(reason) => 5 + reason as u64,
                });
                $(hash_field!(add, self.detail.$detail, $detail_hash);)*
                words
            }

            /// The remaining fields as numbers. The fingerprint covers them only if one is not 0.
            pub(crate) fn further_words(&self) -> Option<[u64; 3]> {
                let mut words = [0; 3];
                let mut left = words.iter_mut();
                let mut add = |word: u64| *left.next().expect("there are three") = word;
                $($(hash_further!(add, self.$field, $hash);)?)*
                (words != [0; 3]).then_some(words)
            }

            /// Names of the fields in the order of [`RequestRecord::field_words`].
            pub(super) const FIELDS: &'static [&'static str] = &[$($(stringify!($field),)?)* $(stringify!($detail),)*];

            /// All fields except the outcome as words.
            pub(super) fn field_words(&self) -> [Option<u64>; Self::FIELDS.len()] {
                [$($(self.$field.to_word(),)?)* $(self.detail.$detail.to_word(),)*]
            }

            /// Inverse of [`RequestRecord::field_words`].
            pub(super) fn of_field_words(words: &[Option<u64>], outcome: Outcome) -> Self {
                let mut words = words.iter().copied();
                let mut next = || words.next().flatten();
                Self {
                    $($($field: Word::of_word(next()),)?)*
                    outcome,
                    detail: RequestDetail { $($detail: Word::of_word(next()),)* },
                }
            }

            /// The row of request `id` in `requests.jsonl`.
            #[must_use]
            pub fn row<'a>(
                &self,
                id: u64,
                workload: &'a str,
                slo_class: Option<&'a str>,
                engine_names: &'a [String],
            ) -> RequestRow<'a> {
                let engine = |worker: Option<u32>| worker.map(|worker| engine_names[worker as usize].as_str().into());
                let since_arrival = |ns: Option<u64>| ns.map(|ns| ns_to_ms(ns - self.arrival_ns));
                let mut row = RequestRow {
                    id,
                    workload: workload.into(),
                    status: self.outcome.status().into(),
                    reason: self.outcome.reason().map(Into::into),
                    queued_ms: (self.queued_ns > self.arrival_ns).then(|| ns_to_ms(self.queued_ns)),
                    ttft_ms: since_arrival(self.first_token_ns),
                    e2e_ms: since_arrival(self.last_token_ns),
                    engine: engine(self.prefill_worker),
                    decode_engine: engine(self.decode_worker),
                    slo_class: slo_class.map(Into::into),
                    ..RequestRow::default()
                };
                $(set_row!(self row { $($field: $type)? } { $($row)* });)*
                row
            }
        }
    };
}

vcr_trace::request_fields!(declare_record);

impl RequestDetail {
    /// Sets the number of tokens that a pool's router assumed to be cached on the chosen engine.
    pub(super) fn set_overlap_tokens(&mut self, pool: PoolRole, tokens: Option<u32>) {
        match pool {
            PoolRole::Aggregated | PoolRole::Prefill => self.prefill_overlap_tokens = tokens,
            PoolRole::Decode => self.decode_overlap_tokens = tokens,
        }
    }
}

/// Times of the first, second and last output token. A record does not store other token times.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenTimes {
    pub(super) first_ns: u64,
    pub(super) second_ns: u64,
    pub(super) last_ns: u64,
}

impl RequestRecord {
    pub(crate) fn new(workload: u32, session: u64, turn: u32, lengths: [u32; 2], times_ns: [u64; 2]) -> Self {
        let [prompt_tokens, max_tokens] = lengths;
        let [arrival_ns, queued_ns] = times_ns;
        Self { workload, session, turn, prompt_tokens, max_tokens, arrival_ns, queued_ns, ..Self::default() }
    }

    /// Adds output tokens; 0 tokens end a prompt that has no output.
    #[inline]
    pub(super) fn give_tokens(&mut self, num_tokens: u32, times: TokenTimes) {
        self.prefill_end_ns.get_or_insert(times.first_ns);
        if num_tokens == 0 {
            return;
        }
        self.first_token_ns.get_or_insert(times.first_ns);
        match self.output_tokens {
            0 if num_tokens > 1 => self.detail.second_token_ns = Some(times.second_ns),
            1 => self.detail.second_token_ns = Some(times.first_ns),
            _ => {}
        }
        self.add_tokens(num_tokens, times.last_ns);
    }

    /// Adds tokens after the first two; the latest arrived at `last_ns`.
    #[inline]
    pub(super) fn add_tokens(&mut self, num_tokens: u32, last_ns: u64) {
        self.output_tokens += num_tokens;
        self.last_token_ns = Some(last_ns);
    }

    /// Converts token times from engine time to client time. Called once, at the end.
    pub(super) fn apply_client_overheads(&mut self, overheads: &Overheads) {
        // A request that is answered as recorded has no engine, and its times are already client times.
        if self.prefill_worker.is_none() || *overheads == Overheads::default() {
            return;
        }
        let sent = |at_ns: u64| at_ns.saturating_add(overheads.output_ns);
        self.detail.second_token_ns = self.detail.second_token_ns.map(sent);
        let second_ns = self.detail.second_token_ns.unwrap_or(u64::MAX);
        let first = |at_ns: u64| sent(at_ns).saturating_add(overheads.first_token_ns).min(second_ns);
        self.first_token_ns = self.first_token_ns.map(first);
        self.last_token_ns = if self.output_tokens == 1 { self.first_token_ns } else { self.last_token_ns.map(sent) };
    }

    pub(super) fn admit(&mut self, now_ns: u64, num_computed_tokens: u32) {
        if self.scheduled_ns.is_none() {
            self.scheduled_ns = Some(now_ns);
            self.cached_tokens = num_computed_tokens;
        }
        let detail = &mut self.detail;
        if self.decode_worker.is_none() {
            detail.most_cached_tokens = detail.most_cached_tokens.max(num_computed_tokens);
        } else {
            detail.decode_scheduled_ns.get_or_insert(now_ns);
            // Cached tokens of a prompt with transferred KV are counted only after a preemption.
            if detail.preempted_since_ns.is_some() {
                detail.most_cached_tokens = detail.most_cached_tokens.max(num_computed_tokens);
                detail.decode_cached_tokens = Some(detail.decode_cached_tokens.unwrap_or(0).max(num_computed_tokens));
            }
        }
        if let Some(since_ns) = detail.preempted_since_ns.take() {
            detail.preempted_ns += now_ns - since_ns;
        }
    }

    pub(super) fn start_load(&mut self, now_ns: u64, load: &TierLoad) {
        let detail = &mut self.detail;
        detail.load_since_ns = Some(now_ns);
        // Only hits of the first admission count, as in `cached_tokens`.
        if self.scheduled_ns.is_none() {
            detail.host_cached_tokens = load.host_tokens;
            detail.disk_cached_tokens = load.disk_tokens;
        }
    }

    pub(super) fn end_load(&mut self, now_ns: u64) {
        let detail = &mut self.detail;
        let waited_ns = detail.load_since_ns.take().map_or(0, |since_ns| now_ns - since_ns);
        *detail.load_ns.get_or_insert(0) += waited_ns;
        if self.scheduled_ns.is_none() {
            detail.first_load_ns = Some(waited_ns);
        }
    }
}

/// Converts nanoseconds to milliseconds.
#[must_use]
pub fn ns_to_ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
