use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use vcr_base::units;

fn duration(text: &str) -> Result<u64, units::UnitError> {
    units::duration_ns(text)
}

fn bytes(text: &str) -> Result<u64, units::UnitError> {
    units::bytes(text)
}

/// Options of `vcr record`.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// The capture: .jsonl, or packed as .jsonl.gz or .jsonl.zst.
    #[arg(short, long, value_name = "PATH")]
    pub(crate) out: PathBuf,

    /// Replace a capture of this name.
    #[arg(long)]
    pub(crate) force: bool,

    /// Real frontend's handshake address (its --data-parallel-address and -rpc-port).
    #[arg(long, value_name = "ADDRESS", default_value = "tcp://127.0.0.1:29550", help_heading = "Link")]
    pub(crate) frontend_handshake: String,

    /// Handshake address for the engines.
    #[arg(long, value_name = "ADDRESS", default_value = "tcp://127.0.0.1:29560", help_heading = "Link")]
    pub(crate) engine_handshake: String,

    /// Exit with an error if no engine has connected, or the frontend has not answered an engine, after this time
    /// [default: wait without limit].
    #[arg(long, value_name = "DURATION", value_parser = crate::values::timeout, help_heading = "Link")]
    pub(crate) connect_timeout: Option<Duration>,

    /// Host at which engines reach the recorder's data sockets, on free ports [default: the host of
    /// --engine-handshake; on this machine, Unix sockets].
    #[arg(long, value_name = "HOST", help_heading = "Link")]
    pub(crate) bind_host: Option<String>,

    /// Record the KV events that an engine publishes at this endpoint (repeatable: once per engine, in order).
    #[arg(long, value_name = "ENDPOINT", help_heading = "Link")]
    pub(crate) kv_events: Vec<String>,

    /// Model name to write into the capture.
    #[arg(long, value_name = "NAME", help_heading = "Contents")]
    pub(crate) model: Option<String>,

    /// GPU name to write into the capture.
    #[arg(long, value_name = "NAME", help_heading = "Contents")]
    pub(crate) gpu: Option<String>,

    /// Prompt tokens that one hash covers.
    #[arg(long, value_name = "TOKENS", default_value_t = 16, help_heading = "Contents")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) block_size: u32,

    /// Record the tokens of answers; the answers can be read from the capture.
    #[arg(long, help_heading = "Contents")]
    pub(crate) record_tokens: bool,

    /// Record the tokens of prompts; the prompts can be read from the capture.
    #[arg(long, help_heading = "Contents")]
    pub(crate) record_prompts: bool,

    /// Rotate the file at this size before compression: NAME.1.jsonl, NAME.2.jsonl, ...
    #[arg(long, value_name = "BYTES", value_parser = bytes, help_heading = "Files")]
    pub(crate) rotate_size: Option<u64>,

    /// Rotate the file after this interval.
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Files")]
    pub(crate) rotate_time: Option<u64>,

    /// Maximum size of the queue to the writer; when it is full, messages are relayed and counted, not recorded.
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = bytes, help_heading = "Files")]
    pub(crate) queue_size: u64,

    /// Print the summary as JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Log errors only, and print no summary; RUST_LOG selects more precisely.
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[cfg(feature = "serve")]
    #[command(flatten)]
    pub(crate) http: super::http_args::UpstreamArgs,
}
