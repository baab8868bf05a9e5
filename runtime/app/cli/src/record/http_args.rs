use std::path::PathBuf;

use clap::Args;
use vcr_base::units;
use vcr_frontend::faults::ClientFault;
use vcr_record::http::JsonPath;

fn bytes(text: &str) -> Result<u64, units::UnitError> {
    units::bytes(text)
}

/// Options of `vcr record --upstream`.
#[derive(Debug, Args)]
#[command(next_help_heading = "HTTP proxy")]
pub(crate) struct UpstreamArgs {
    /// Record HTTP traffic as a proxy of this server: clients connect to --port instead.
    #[arg(long, value_name = "URL")]
    #[arg(conflicts_with_all = [
        "frontend_handshake", "engine_handshake", "connect_timeout", "bind_host", "kv_events", "block_size",
        "record_tokens", "record_prompts",
    ])]
    pub(crate) upstream: Option<String>,

    /// Address to listen on.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", requires = "upstream")]
    pub(crate) host: String,

    /// Port to listen on; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8000, requires = "upstream")]
    pub(crate) port: u16,

    /// Additional certificate authorities of the server (PEM).
    #[arg(long, value_name = "FILE", requires = "upstream")]
    pub(crate) upstream_ca: Option<PathBuf>,

    /// Serve HTTPS with this certificate (PEM), read again when it changes.
    #[arg(long, value_name = "FILE", requires = "upstream")]
    pub(crate) ssl_certfile: Option<PathBuf>,

    /// Key of the certificate (PEM) [default: in --ssl-certfile].
    #[arg(long, value_name = "FILE", requires = "ssl_certfile")]
    pub(crate) ssl_keyfile: Option<PathBuf>,

    /// Also replace the values of this header; those of authorization, x-api-key, cookies and similar headers are
    /// always replaced (repeatable).
    #[arg(long, value_name = "NAME", requires = "upstream")]
    pub(crate) redact_header: Vec<String>,

    /// Also replace the values of this query parameter; those of key, token and similar parameters are always replaced
    /// (repeatable).
    #[arg(long, value_name = "NAME", requires = "upstream")]
    pub(crate) redact_query: Vec<String>,

    /// Replace values in JSON bodies, such as messages.*.content (repeatable).
    #[arg(long, value_name = "PATH", requires = "upstream")]
    pub(crate) redact_json: Vec<JsonPath>,

    /// Maximum size of a recorded body; longer bodies are passed on, but not recorded.
    #[arg(long, value_name = "BYTES", default_value = "16MiB", value_parser = bytes, requires = "upstream")]
    pub(crate) max_body_size: u64,

    /// Folder of a tokenizer that counts the tokens of answers without usage.
    #[arg(long, value_name = "FOLDER", requires = "upstream")]
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) tokenizer: Option<PathBuf>,

    /// Inject a fault for clients, such as `stall:for=2s,call=3` (repeatable).
    #[arg(long, value_name = "FAULT", requires = "upstream")]
    pub(crate) client_fault: Vec<ClientFault>,

    #[command(flatten)]
    pub(crate) page: crate::page::PageArgs,
}
