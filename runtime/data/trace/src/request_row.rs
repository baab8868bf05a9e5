//! The fields of a request of a run, in the cluster's record and in the row of `requests.jsonl`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Declares every field of a request once, and passes the declarations to the macro `$declare`.
///
/// A declaration consists of a documentation, the field of the record if there is one, and the field of the row if
/// there is one. Names end in units. The field of a record states whether an attempt after a fault resets or keeps
/// it, and whether the fingerprint of a run covers it: `hashed`, `further` (only in runs with such requests) or
/// `unhashed`. The field of a row has its serde attributes.
///
/// From the declarations, these are generated: the record with its reset, fingerprint and packing
/// (`vcr_cluster::record`), the row with its reader, writer and table ([`RequestRow`]), and the conversion of
/// fields that are in both. `docs/schemas/requests.schema.json` has the same fields and documentation; a test
/// compares them.
#[macro_export]
macro_rules! request_fields {
    ($declare:ident) => {
        $declare! {
            request {
                "Name of the run." {} { of: Option<Cow<'a, str>>, skip_serializing_if = "Option::is_none" };
                "Number of the request in the run." {} { id: u64 };
                "Index of the workload in the run." { workload: u32, kept, hashed } {};
                "Name of the workload." {} { workload: Cow<'a, str>, borrow };
                "Number of the session within its workload."
                    { session: u64, kept, hashed } { session: u64, default };
                "Number of the turn in its session, from 0." { turn: u32, kept, hashed } { turn: u32, default };
                "How it ended: with its output; refused because it could never run; refused by a router; lost to a \
                 fault; given up by a client that had waited too long; cancelled by its client; or not at all."
                    {} { status: Cow<'a, str>, borrow };
                "Why it was rejected, failed or timed out; absent otherwise."
                    {} { reason: Option<Cow<'a, str>>, skip_serializing_if = "Option::is_none" };
                "Length of the prompt." { prompt_tokens: u32, kept, hashed } { prompt_tokens: u32, default };
                "Length of the output asked for." { max_tokens: u32, kept, hashed } { max_tokens: u32, default };
                "Output tokens emitted." { output_tokens: u32, reset, hashed } { output_tokens: u32, default };
                // The value of the latest admitted attempt.
                "Prompt tokens found in the prefix cache or a tier at first admission."
                    { cached_tokens: u32, kept, hashed } { cached_tokens: u32, default };
                "Arrival: when the client sends it." { arrival_ns: u64, kept, hashed } { arrival_ms: f64 };
                // The value follows from the arrival and the prompt.
                "When it reaches the queue in front of the engines." { queued_ns: u64, kept, unhashed } {};
                "When it reaches the queue in front of the engines; absent where that is the arrival."
                    {} { queued_ms: Option<f64>, skip_serializing_if = "Option::is_none" };
                "Start of the first step with the request in it."
                    { scheduled_ns: Option<u64>, reset, hashed }
                    { scheduled_ms: Option<f64>, skip_serializing_if = "Option::is_none" };
                "End of the prompt's computation."
                    { prefill_end_ns: Option<u64>, reset, hashed }
                    { prefill_end_ms: Option<f64>, skip_serializing_if = "Option::is_none" };
                "Arrival of the KV cache at the decode engine; disaggregated clusters only."
                    { transfer_end_ns: Option<u64>, reset, hashed }
                    { transfer_end_ms: Option<f64>, skip_serializing_if = "Option::is_none" };
                "First output token."
                    { first_token_ns: Option<u64>, reset, hashed }
                    { first_token_ms: Option<f64>, skip_serializing_if = "Option::is_none" };
                "Last output token."
                    { last_token_ns: Option<u64>, reset, hashed }
                    { last_token_ms: Option<f64>, skip_serializing_if = "Option::is_none" };
                "End of the request."
                    { end_ns: Option<u64>, kept, hashed }
                    { end_ms: Option<f64>, skip_serializing_if = "Option::is_none" };
                "Time from arrival to the first output token."
                    {} { ttft_ms: Option<f64>, skip_serializing_if = "Option::is_none" };
                "Time from arrival to the last output token."
                    {} { e2e_ms: Option<f64>, skip_serializing_if = "Option::is_none" };
                // The value of the latest attempt that was sent to an engine.
                "Engine that computed the prompt, as an index over all engines and their ranks."
                    { prefill_worker: Option<u32>, kept, hashed } {};
                "Engine that generated the output, if another." { decode_worker: Option<u32>, reset, hashed } {};
                "Pool and index of the engine that computed the prompt; with ranks such as `engines 0.1`."
                    {} { engine: Option<Cow<'a, str>>, skip_serializing_if = "Option::is_none" };
                "Pool and index of the engine that generated the output, if it is another one."
                    {} { decode_engine: Option<Cow<'a, str>>, skip_serializing_if = "Option::is_none" };
                "Preemptions of the request." { preemptions: u32, kept, hashed } { preemptions: u32, default };
                "Attempts after a fault." { retries: u32, kept, hashed } { retries: u32, default };
                "Attempts of its client before this one; absent for the first. All have the session and the turn of \
                 the first."
                    { attempt: u32, kept, further }
                    { attempt: u32, default, skip_serializing_if = "is_zero" };
                // The value follows from the configuration.
                "When its client gives up for good, however often it tries again; absent without a deadline."
                    { deadline_ns: Option<u64>, kept, unhashed }
                    { deadline_ms: Option<f64>, skip_serializing_if = "Option::is_none" };
                // Metrics count these two values.
                "Output tokens that were cut off by a fault or by its client; absent for none."
                    { wasted_tokens: u32, kept, unhashed }
                    { wasted_tokens: u32, default, skip_serializing_if = "is_zero" };
                "Prompt tokens that were computed for a client that gave up; absent for none."
                    { wasted_prompt_tokens: u32, kept, unhashed }
                    { wasted_prompt_tokens: u32, default, skip_serializing_if = "is_zero" };
                "Number of its class in the workload." { class: u32, kept, further } {};
                "Name of the SLO class; absent for requests without an SLO."
                    {} { slo_class: Option<Cow<'a, str>>, skip_serializing_if = "Option::is_none" };
                "Number of its LoRA adapter; absent without one."
                    { adapter: Option<u32>, kept, further }
                    { adapter: Option<u32>, skip_serializing_if = "Option::is_none" };
                "Its name in its trace or capture; absent where that has none."
                    {} { name: Option<Cow<'a, str>>, skip_serializing_if = "Option::is_none" };
            }
            detail {
                "Second output token." { second_token_ns: Option<u64>, reset, hashed };
                "Maximum prompt tokens found in the (prefill) engine's prefix cache, or in its tiers, at any of its \
                 admissions; for a decode engine only at those after preemptions."
                    { most_cached_tokens: u32, reset, hashed };
                "Tokens loaded from the host, among those cached at its first admission."
                    { host_cached_tokens: u32, reset, hashed };
                "Tokens loaded from the disk, among those cached at its first admission."
                    { disk_cached_tokens: u32, reset, hashed };
                "Since when it has waited for KV from the tiers, if it does."
                    { load_since_ns: Option<u64>, reset, unhashed };
                "Time that it waited for KV from the tiers before its first step."
                    { first_load_ns: Option<u64>, reset, hashed };
                "Time that it waited for KV from the tiers in all, preempted or not."
                    { load_ns: Option<u64>, reset, hashed };
                "Since when it has been preempted, if it is." { preempted_since_ns: Option<u64>, reset, unhashed };
                "Time that it was preempted before." { preempted_ns: u64, reset, hashed };
                "When the decode engine had reserved its blocks." { transfer_start_ns: Option<u64>, reset, hashed };
                "Start of the first step with it on the decode engine."
                    { decode_scheduled_ns: Option<u64>, reset, hashed };
                "Maximum prompt tokens found in the decode engine's prefix cache, for the handoff and after preemptions."
                    { decode_cached_tokens: Option<u32>, reset, hashed };
                "Prompt tokens that the router of the (prefill) pool took to be cached where it sent the request; none \
                 where it asks for no such thing."
                    { prefill_overlap_tokens: Option<u32>, kept, hashed };
                "The same of the decode pool." { decode_overlap_tokens: Option<u32>, kept, hashed };
            }
        }
    };
}

/// A value of a row in a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowCell<'a> {
    /// A text; empty if absent.
    Text(&'a str),
    /// A whole number that is always present.
    Count(u64),
    /// A number; None if absent.
    Number(Option<f64>),
}

macro_rules! cells {
    ($($type:ty, |$value:ident| $cell:expr;)*) => {$(
        impl<'a> From<&'a $type> for RowCell<'a> {
            fn from($value: &'a $type) -> Self {
                $cell
            }
        }
    )*};
}

cells! {
    Cow<'_, str>, |text| Self::Text(text);
    Option<Cow<'_, str>>, |text| Self::Text(text.as_deref().unwrap_or_default());
    u64, |count| Self::Count(*count);
    u32, |count| Self::Count((*count).into());
    f64, |number| Self::Number(Some(*number));
    Option<f64>, |number| Self::Number(*number);
    Option<u32>, |number| Self::Number(number.map(f64::from));
}

macro_rules! declare_row {
    (
        request { $($doc:literal { $($record:tt)* } { $($field:ident : $type:ty $(, $($attribute:tt)*)?)? };)* }
        detail { $($detail:tt)* }
    ) => {
        /// A line of `requests.jsonl`. Times are in milliseconds, since the start of the run or since the arrival.
        #[derive(Clone, Debug, Default, Deserialize, Serialize)]
        pub struct RequestRow<'a> {
            $($(
                #[doc = $doc]
                $(#[serde($($attribute)*)])?
                pub $field: $type,
            )?)*
        }

        impl RequestRow<'_> {
            /// Names of the fields with their documentation, in the order of a line.
            pub const FIELDS: &'static [(&'static str, &'static str)] = &[$($((stringify!($field), $doc),)?)*];

            /// The values of the fields, in the order of [`FIELDS`](Self::FIELDS).
            #[must_use]
            pub fn cells(&self) -> [RowCell<'_>; RequestRow::FIELDS.len()] {
                [$($(RowCell::from(&self.$field),)?)*]
            }
        }
    };
}

request_fields!(declare_row);

impl RequestRow<'_> {
    /// Whether the request got its whole output.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.status == "completed"
    }

    /// Name of the run; empty if the line has none.
    #[must_use]
    pub fn run(&self) -> &str {
        self.of.as_deref().unwrap_or_default()
    }

    /// Time from arrival to end; None if the request has not ended.
    #[must_use]
    pub fn total_ms(&self) -> Option<f64> {
        self.end_ms.map(|end_ms| end_ms - self.arrival_ms)
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
