//! `vcr inspect kv-bench`: measures KV transfers between two processes, compared with a plain stream of bytes.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Write};
#[cfg(feature = "nixl")]
use std::net::TcpListener;
#[cfg(feature = "nixl")]
use std::path::Path;
use std::process::{Child, Command, Stdio};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use vcr_base::units;
use vcr_transfer::bench::{self, BenchSize, Repetition, Responder, measure};
use vcr_transfer::tcp::{TcpSettings, TcpTls};
use vcr_transfer::{ErrorKind, PlaneFactory, TransferError};
#[cfg(feature = "nixl")]
use vcr_wire::{NixlCompatibility, VllmMinor};

use crate::exit::{Exit, print_error, printed};
use crate::play::transfer_tls::TransferTlsArgs;
use crate::play::unusable::Unusable;
use crate::terminal::text::counted;

pub(crate) const KV_BENCH_EXAMPLES: &str = "Examples:
  vcr inspect kv-bench                                          # two processes on this machine
  vcr inspect kv-bench --total 1MiB --page 16KiB --repeat 50
  vcr inspect kv-bench --kv-transfer nixl                       # the same through NIXL
  vcr inspect kv-bench --listen 0.0.0.0:5600                    # on one host,
  vcr inspect kv-bench --connect 10.0.0.7:5600 --json           # and on another, same sizes
  vcr inspect kv-bench --kv-transfer-tls-cert engine.pem --kv-transfer-tls-key engine-key.pem \\
    --kv-transfer-tls-ca authority.pem

Exit codes:
  0  all bytes arrived and are right
  2  bad usage, an address that cannot be used, or a wrong byte";

/// Options of `vcr inspect kv-bench`.
#[derive(Debug, Args)]
pub(crate) struct KvBenchArgs {
    /// Size of a transfer.
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = units::bytes)]
    total: u64,

    /// Size of a page.
    #[arg(long, value_name = "BYTES", default_value = "256KiB", value_parser = units::bytes)]
    page: u64,

    /// Transport that moves the bytes.
    #[arg(long, value_enum, default_value = "tcp")]
    kv_transfer: BenchPlane,

    /// Library of --kv-transfer nixl, libnixl_capi.so or its folder [default: found in the active
    /// Python environment].
    #[arg(long, value_name = "PATH", env = "NIXL_LIBRARY")]
    nixl_library: Option<OsString>,

    /// Connections of --kv-transfer tcp.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    streams: u64,

    /// Measured transfers, after one warm-up.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repeat: u32,

    /// Serve a process with --connect at this address, and its plain TCP streams at the next port, until a signal.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["connect", "repeat"])]
    listen: Option<String>,

    /// Measure against a process that listens at this address.
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,

    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    tls: TransferTlsArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum BenchPlane {
    Tcp,
    Nixl,
}

/// Addresses that a process prints when it listens.
#[derive(Debug, Serialize, Deserialize)]
struct Listening {
    host: String,
    port: u16,
    plain_port: u16,
}

#[derive(Debug, Serialize)]
struct Summary {
    total_bytes: u64,
    page_bytes: u32,
    pages: u64,
    kv_transfer: BenchPlane,
    /// Number of connections; none with NIXL.
    streams: Option<u64>,
    /// Whether transfers are encrypted; the plain streams never are.
    tls: bool,
    transfer_ms: Vec<f64>,
    plain_ms: Vec<f64>,
    median_transfer_ms: f64,
    median_plain_ms: f64,
    transfer_gb_per_s: f64,
    plain_gb_per_s: f64,
    /// Rate of the transfer divided by that of the plain stream.
    share_of_plain: f64,
}

pub(crate) fn kv_bench(args: &KvBenchArgs) -> Exit {
    let Ok(page_bytes) = u32::try_from(args.page) else {
        print_error(&format!("invalid --page {}: expected less than 4 GiB", args.page), None);
        return Exit::BadInput;
    };
    let size = BenchSize { total_bytes: args.total, page_bytes };
    let tls = match args.tls.tls() {
        Ok(tls) => tls,
        Err(Unusable { message, hint }) => {
            print_error(&message, hint.as_deref());
            return Exit::BadInput;
        }
    };
    let done = match (&args.listen, &args.connect) {
        (Some(address), _) => address_of("--listen", address).and_then(|address| listen(args, size, address, tls)),
        (None, Some(address)) => address_of("--connect", address).and_then(|(host, port)| {
            let plain_port =
                port.checked_add(1).ok_or_else(|| failed("--connect: the next port is that of plain streams"))?;
            report(args, size, (&host, port, plain_port), tls)
        }),
        (None, None) => both(args, size, tls),
    };
    match done {
        Ok(exit) => exit,
        Err(error) => {
            let is_mismatch = error.kind == ErrorKind::Mismatch;
            print_error(&error, is_mismatch.then_some("give both processes the same --total and --page"));
            Exit::BadInput
        }
    }
}

fn failed(message: impl Into<String>) -> TransferError {
    TransferError::new(ErrorKind::Local, message)
}

fn address_of(option: &str, text: &str) -> Result<(String, u16), TransferError> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
    let parts = parts.filter(|(host, _)| !host.is_empty());
    parts.ok_or_else(|| failed(format!("invalid {option} `{text}`: expected HOST:PORT")))
}

/// Makes the plane of this process, listening at this address.
fn factory(
    args: &KvBenchArgs,
    size: BenchSize,
    (host, port): (&str, u16),
    tls: Option<TcpTls>,
) -> Result<PlaneFactory, TransferError> {
    match args.kv_transfer {
        BenchPlane::Tcp => {
            let (host, streams) = (host.to_owned(), args.streams as usize);
            Ok(bench::tcp(TcpSettings { host, port, streams, tls, ..TcpSettings::default() }))
        }
        BenchPlane::Nixl if tls.is_some() => Err(failed("options of TLS are for --kv-transfer tcp")),
        BenchPlane::Nixl => nixl(args, size, (host, port)),
    }
}

#[cfg(feature = "nixl")]
fn nixl(args: &KvBenchArgs, size: BenchSize, (host, port): (&str, u16)) -> Result<PlaneFactory, TransferError> {
    // A NIXL side channel needs a port number, so port 0 is resolved first.
    let free = || TcpListener::bind((host, 0)).and_then(|listener| listener.local_addr());
    let port = if port > 0 { port } else { free().map_err(|error| failed(error.to_string()))?.port() };
    let settings = vcr_nixl::NixlSettings {
        side_channel_host: host.to_owned(),
        side_channel_port: port,
        version: VllmMinor::V0_33,
        compatibility: NixlCompatibility {
            vllm_version: "0.33.0".to_owned(),
            model: "kv-bench".to_owned(),
            dtype: "bfloat16".to_owned(),
            num_kv_heads: 1,
            head_size: size.page_bytes,
            num_hidden_layers: 1,
            attn_backend_name: "FLASH_ATTN".to_owned(),
            cache_dtype: "auto".to_owned(),
            is_hma_enabled: true,
            transfer_mode: "pull".to_owned(),
        },
        hash: None,
        // Processes of different sizes are refused by their addresses, with a better message.
        enforces_compatibility: false,
    };
    let library = args.nixl_library.as_deref().filter(|path| !path.is_empty()).map(Path::new);
    vcr_nixl::planes(settings, library).map_err(|error| {
        let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
        failed(format!("{error}{hint}"))
    })
}

#[cfg(not(feature = "nixl"))]
fn nixl(_args: &KvBenchArgs, _size: BenchSize, _address: (&str, u16)) -> Result<PlaneFactory, TransferError> {
    let (message, hint) = crate::absent::message("--kv-transfer nixl", "nixl");
    Err(failed(format!("{message}; {hint}")))
}

fn listen(
    args: &KvBenchArgs,
    size: BenchSize,
    (host, port): (String, u16),
    tls: Option<TcpTls>,
) -> Result<Exit, TransferError> {
    size.geometry()?;
    let plain_port = if port == 0 { 0 } else { port.saturating_add(1) };
    let planes = factory(args, size, (&host, port), tls)?;
    let responder = Responder::start(size, (&host, plain_port), &planes, vcr_base::input::memory::limit())?;
    let listening = Listening { host, port: responder.port(), plain_port: responder.plain_port() };
    let line = serde_json::to_string(&listening).unwrap_or_default();
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| failed(error.to_string()))?;
    drop(out);
    loop {
        std::thread::park();
    }
}

/// The other process; it is killed on drop.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn both(args: &KvBenchArgs, size: BenchSize, tls: Option<TcpTls>) -> Result<Exit, TransferError> {
    let start = |error: io::Error| failed(format!("cannot start the other process: {error}"));
    let program = std::env::current_exe().map_err(start)?;
    let (total, page) = (format!("{}B", size.total_bytes), format!("{}B", size.page_bytes));
    let arguments = ["inspect", "kv-bench", "--listen", "127.0.0.1:0", "--total", &total, "--page", &page];
    let mut command = Command::new(program);
    command.args(arguments).args(args.tls.to_arguments());
    if args.kv_transfer == BenchPlane::Nixl {
        command.args(["--kv-transfer", "nixl"]);
        let library = args.nixl_library.as_deref().filter(|path| !path.is_empty());
        command.args(library.iter().flat_map(|path| [OsStr::new("--nixl-library"), path]));
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut other = Other(child.map_err(start)?);
    let mut line = String::new();
    if let Some(stdout) = other.0.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(start)?;
    }
    let listening: Listening =
        serde_json::from_str(&line).map_err(|_| failed("the other process ended before it listened; see above"))?;
    report(args, size, (&listening.host, listening.port, listening.plain_port), tls)
}

fn report(
    args: &KvBenchArgs,
    size: BenchSize,
    address: (&str, u16, u16),
    tls: Option<TcpTls>,
) -> Result<Exit, TransferError> {
    size.geometry()?;
    let planes = factory(args, size, ("127.0.0.1", 0), tls)?;
    let limits = (args.repeat, vcr_base::input::memory::limit());
    let measured = measure(size, address, &planes, limits, |_| ())?;
    let summary = summary(args, size, &measured);
    let mut out = anstream::stdout().lock();
    let written = if args.json { write_json(&mut out, &summary) } else { write_table(&mut out, &summary) };
    Ok(printed(written, Exit::Passed))
}

fn summary(args: &KvBenchArgs, size: BenchSize, measured: &[Repetition]) -> Summary {
    let ms = |ns: u64| ns as f64 / 1e6;
    let transfer_ms: Vec<f64> = measured.iter().map(|one| ms(one.transfer_ns)).collect();
    let plain_ms: Vec<f64> = measured.iter().map(|one| ms(one.plain_ns)).collect();
    let (transfer, plain) = (median(&transfer_ms), median(&plain_ms));
    let gb_per_s = |ms: f64| size.total_bytes as f64 / (ms.max(1e-6) * 1e6);
    Summary {
        total_bytes: size.total_bytes,
        page_bytes: size.page_bytes,
        pages: measured.first().map_or(0, |one| one.moved.pages),
        kv_transfer: args.kv_transfer,
        streams: (args.kv_transfer == BenchPlane::Tcp).then_some(args.streams),
        tls: args.tls.is_given(),
        median_transfer_ms: transfer,
        median_plain_ms: plain,
        transfer_gb_per_s: gb_per_s(transfer),
        plain_gb_per_s: gb_per_s(plain),
        share_of_plain: plain / transfer.max(1e-6),
        transfer_ms,
        plain_ms,
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

fn write_json(out: &mut dyn Write, summary: &Summary) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, summary)?;
    writeln!(out)
}

fn write_table(out: &mut dyn Write, summary: &Summary) -> io::Result<()> {
    let bytes = |bytes: u64| units::format_bytes(bytes as f64);
    writeln!(
        out,
        "{} in {} pages of {}, {}{}, median of {}, every byte compared",
        bytes(summary.total_bytes),
        summary.pages,
        bytes(summary.page_bytes.into()),
        summary.streams.map_or_else(|| "through NIXL".to_owned(), |streams| counted(streams, "stream")),
        if summary.tls { " with TLS" } else { "" },
        summary.transfer_ms.len()
    )?;
    writeln!(out, "  KV transfer   {:>10.3} ms  {:>7.2} GB/s", summary.median_transfer_ms, summary.transfer_gb_per_s)?;
    writeln!(out, "  plain stream  {:>10.3} ms  {:>7.2} GB/s", summary.median_plain_ms, summary.plain_gb_per_s)?;
    writeln!(out, "  share         {:>10.2}", summary.share_of_plain)
}
