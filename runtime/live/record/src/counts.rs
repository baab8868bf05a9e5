//! Counts of the recording so far.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// A counter with one writer and many readers.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counts {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            $(pub(crate) $name: Count,)*
        }

        /// Counts of a recording.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct RecordSummary {
            $($(#[$meta])* pub $name: u64,)*
        }

        impl Counts {
            pub(crate) fn summary(&self) -> RecordSummary {
                RecordSummary { $($name: self.$name.get(),)* }
            }
        }
    };
}

counts! {
    /// Registrations of engines. An engine that registers again is counted again.
    engines,
    /// INIT messages of the frontend that were not forwarded, because the engine could not have been recorded.
    refused_inits,
    /// Requests that arrived.
    arrivals,
    /// Finished requests.
    requests,
    /// Finished requests that were aborted. Over HTTP: exchanges whose clients disconnected.
    aborted,
    /// Requests in progress, or that were in progress when the capture ended.
    open,
    /// Requests that were dropped because some of their outputs were not recorded.
    broken,
    /// HTTP exchanges.
    http,
    /// HTTP exchanges whose bodies exceeded the limit, so that the capture has only a part of them.
    left_out,
    /// Generations over HTTP without a `request` line, because the lengths of their prompts are unknown.
    without_lengths,
    /// Strings in HTTP exchanges that look like API keys.
    keys,
    /// Tokens in the outputs of requests.
    tokens,
    /// Engine messages with outputs or statistics.
    steps,
    /// Batches of KV events.
    kv_batches,
    /// Messages that were forwarded but not recorded, because the recorder was behind or the capture could not be
    /// written.
    lost_messages,
    /// Bytes of the lost messages.
    lost_bytes,
    /// Messages that were forwarded but could not be decoded.
    undecodable,
    /// Outputs for unknown or finished requests.
    unmatched_outputs,
    /// Interruptions of the traffic.
    breaks,
    /// Files of the capture.
    parts,
    /// Files that were removed while they were being written.
    removed_files,
    /// Finished requests in the removed files.
    removed_requests,
}
