//! Counts of the recording so far.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// A count that one thread changes and others read.
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
    /// Engines that have presented themselves, each time counted.
    engines,
    /// Answers of the frontend to engines that were not handed on, because the
    /// engines would not have been recorded.
    refused_inits,
    /// Requests that have arrived.
    arrivals,
    /// Finished requests.
    requests,
    /// The aborted part of these; over HTTP, exchanges whose clients disconnected.
    aborted,
    /// Requests that are in progress, or were when the capture ended.
    open,
    /// Requests that were given up because their outputs were not recorded.
    broken,
    /// Exchanges over HTTP.
    http,
    /// The part of these whose bodies are incomplete in the capture because they were too long.
    left_out,
    /// Generations over HTTP without a `request` line, since the lengths of their prompts are unknown.
    without_lengths,
    /// Strings over HTTP that look like keys.
    keys,
    /// Tokens that requests got.
    tokens,
    /// Messages with outputs or statistics.
    steps,
    /// Batches of KV events.
    kv_batches,
    /// Messages that were handed on but not recorded: the recorder was behind,
    /// or the capture could not be written.
    lost_messages,
    /// Their bytes.
    lost_bytes,
    /// Messages that were handed on but could not be read.
    undecodable,
    /// Outputs of requests that are not known, or over.
    unmatched_outputs,
    /// Breaks in the traffic.
    breaks,
    /// Files of the capture.
    parts,
    /// Files that were removed while they were written.
    removed_files,
    /// Requests that were over in them.
    removed_requests,
}
