//! Options of KV transfers, with modelled times or real bytes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use vcr_base::units;
use vcr_core::EngineConfig;
use vcr_latency::tables::KvShape;
use vcr_live::{Identity, KvPeer, LoadFailurePolicy, PlaneSettings, TransferSettings, TransferTime};
use vcr_transfer::tcp::{TcpPlane, TcpSettings};
use vcr_transfer::{Geometry, GeometryInput, HeadOrder, Plane, PlaneFactory, Regions};

use super::kv_shape::{KvDtypeArg, ShapeArg};
use super::nixl::{NixlArgs, NixlEngines};
use super::rendezvous::{RendezvousArgs, RendezvousEngines};
use super::transfer_tls::TransferTlsArgs;
use super::unusable::Unusable;

use crate::terminal::text::counted;

/// What moves KV between engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlaneArg {
    /// No bytes move; transfers take a modelled time.
    None,
    /// TCP, in vcr's own protocol.
    Tcp,
    /// NVIDIA's NIXL, with the side channel of vLLM's NIXL connector.
    Nixl,
}

/// Where the duration of a transfer comes from.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TimeArg {
    Real,
    Modelled,
    SlowerOf,
}

/// Which engine moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    /// The decode engine reads.
    Pull,
    /// The prefill engine writes.
    Push,
}

/// What happens to a request whose KV does not arrive.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FailureArg {
    Fail,
    Recompute,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Disaggregated prefill and decode")]
pub(crate) struct TransferArgs {
    /// Host of the side channel for KV transfers.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", env = "VCR_SIDE_CHANNEL_HOST")]
    pub(crate) side_channel_host: String,

    /// Port of the side channel; the engine's number is added to it.
    #[arg(long, value_name = "PORT", default_value_t = 5600, env = "VCR_SIDE_CHANNEL_PORT")]
    pub(crate) side_channel_port: u16,

    /// Allow requests to name prefill engines at these hosts (repeatable): an address or host name, a CIDR such as
    /// 10.0.0.0/8, *.DOMAIN, or * for all. This machine and --side-channel-host are always allowed.
    #[arg(long, value_name = "HOST|CIDR", env = "VCR_ALLOW_REMOTE_KV", value_delimiter = ',')]
    pub(crate) allow_remote_kv: Vec<KvPeer>,

    /// Fixed time of each KV transfer.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = crate::values::duration)]
    pub(crate) kv_cache_transfer_latency: u64,

    /// Time added by each transferred token.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = crate::values::duration)]
    pub(crate) kv_cache_transfer_time_per_token: u64,

    /// Standard deviation of the transfer time.
    #[arg(long, alias = "kv-cache-transfer-latency-std-dev", value_name = "TIME", default_value = "0ms")]
    #[arg(value_parser = crate::values::duration)]
    pub(crate) kv_cache_transfer_time_std_dev: u64,

    /// Free a prompt's blocks if no decode engine fetched them within this time [default: 480s; with --kv-transfer, 30s
    /// extended by heartbeats].
    #[arg(long, value_name = "TIME", value_parser = crate::values::duration)]
    pub(crate) kv_lease: Option<u64>,

    /// How KV bytes move between engines; prefill and decode engines need the same value.
    #[arg(long, value_enum, value_name = "CARRIER", default_value = "none", env = "VCR_KV_TRANSFER")]
    pub(crate) kv_transfer: PlaneArg,

    /// Duration of a transfer: the measured one, the modelled one, or the longer of both.
    #[arg(long, value_enum, value_name = "SOURCE", default_value = "slower-of")]
    pub(crate) kv_transfer_time: TimeArg,

    /// Which engine moves the bytes: the decode engine reads, or the prefill engine writes. Set it on the prefill
    /// engine.
    #[arg(long, value_enum, value_name = "MODE", default_value = "pull")]
    pub(crate) kv_transfer_mode: ModeArg,

    /// Address to listen at for KV transfers over TCP; the engine's number is added to the port
    /// [default: --side-channel-host and --side-channel-port].
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) kv_transfer_listen: Option<String>,

    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    #[arg(help = format!("TCP connections to each peer [default: {}]", TcpSettings::default().streams))]
    pub(crate) kv_transfer_streams: Option<u64>,

    /// Time limit of a KV transfer.
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = crate::values::duration)]
    pub(crate) kv_transfer_timeout: u64,

    /// What a decode engine does if KV does not arrive: fail the request, or recompute its prompt.
    #[arg(long, value_enum, value_name = "POLICY", default_value = "fail")]
    pub(crate) kv_load_failure_policy: FailureArg,

    /// Bytes of a KV block over all layers of its group, heads and tensor-parallel ranks [default:
    /// computed from the shape].
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    pub(crate) kv_block_bytes: Option<u64>,

    /// Shape of the model's KV: layers x KV heads x head size, or the model's config.json [default:
    /// MODEL's, or 32x8x128].
    #[arg(long, value_name = "LxHxS|FILE")]
    pub(crate) kv_shape: Option<ShapeArg>,

    /// Data type of the KV cache, which decides the size of blocks.
    #[arg(long, value_name = "DTYPE", value_enum, default_value = "auto")]
    pub(crate) kv_cache_dtype: KvDtypeArg,

    #[command(flatten)]
    tls: TransferTlsArgs,

    #[command(flatten)]
    pub(crate) rendezvous: RendezvousArgs,

    #[command(flatten)]
    pub(crate) nixl: NixlArgs,
}

/// Default lease if no bytes move: that of vLLM versions before heartbeats.
const LEASE_WITHOUT_HEARTBEATS_NS: u64 = 480_000_000_000;
/// vLLM's `kv_lease_duration`.
const LEASE_NS: u64 = 30_000_000_000;

/// Limit of address space for KV whose memory is only allocated when used.
const ADDRESS_SPACE_BYTES: u64 = 1 << 45;

impl TransferArgs {
    /// Whether bytes move between engines.
    pub(crate) fn moves_pages(&self) -> bool {
        self.kv_transfer != PlaneArg::None
    }

    /// The shape of the KV, if bytes move.
    pub(crate) fn shape(&self, model_config: Option<&Path>) -> Result<Option<KvShape>, Unusable> {
        let shape = || ShapeArg::resolve(self.kv_shape.as_ref(), model_config);
        self.moves_pages().then(shape).transpose()
    }

    /// Makes the settings of transfers for engines with this configuration and KV of this shape.
    pub(crate) fn settings(
        &self,
        engine: &EngineConfig,
        engines: &Identity,
        model_name: &str,
        shape: Option<&KvShape>,
    ) -> Result<TransferSettings, Unusable> {
        for (option, is_given) in [
            ("--kv-transfer-tls-cert", self.tls.is_given()),
            ("--kv-transfer-streams", self.kv_transfer_streams.is_some()),
        ] {
            if is_given && self.kv_transfer != PlaneArg::Tcp {
                return Err(Unusable::new(format!("invalid {option}: expected --kv-transfer tcp with it")));
            }
        }
        if self.moves_pages() && engine.hashed_blocks().lookahead_tokens > 0 {
            return Err(Unusable::new(
                "--kv-transfer with EAGLE or MTP needs --disable-lookahead-block-hashes, as vLLM's KV connectors do without \
                 hashes of tokens after a block",
            ));
        }
        let plane = match (self.kv_transfer, shape) {
            (PlaneArg::None, _) | (_, None) => None,
            (PlaneArg::Tcp, Some(shape)) => {
                let factory = tcp(self.tcp_settings(engines)?);
                Some(self.plane(self.geometry(engine, engines, shape, Regions::Apart)?, engines, factory)?)
            }
            (PlaneArg::Nixl, Some(shape)) => {
                let geometry = self.geometry(engine, engines, shape, Regions::Together)?;
                Some(self.plane(geometry, engines, self.nixl_planes(engines, model_name, shape)?)?)
            }
        };
        let lease_ns = if plane.is_some() { LEASE_NS } else { LEASE_WITHOUT_HEARTBEATS_NS };
        Ok(TransferSettings {
            engine_id: engines.instance_id.clone(),
            side_channel_host: self.side_channel_host.clone(),
            side_channel_port: self.side_channel_port,
            allowed_peers: self.allow_remote_kv.clone(),
            latency_ns: self.kv_cache_transfer_latency,
            per_token_ns: self.kv_cache_transfer_time_per_token,
            std_dev_ns: self.kv_cache_transfer_time_std_dev,
            shared_link: None,
            lease_ns: self.kv_lease.unwrap_or(lease_ns),
            plane,
            load_timeout_ns: self.kv_transfer_timeout,
            load_failure: match self.kv_load_failure_policy {
                FailureArg::Fail => LoadFailurePolicy::Fail,
                FailureArg::Recompute => LoadFailurePolicy::Recompute,
            },
            meetings: self.rendezvous.meetings(&RendezvousEngines {
                host: &self.side_channel_host,
                block_tokens: engine.block_size(),
                identity: engines,
            })?,
        })
    }

    fn plane(&self, geometry: Geometry, engines: &Identity, factory: PlaneFactory) -> Result<PlaneSettings, Unusable> {
        let num_engines = u64::from(engines.num_ranks);
        let limit_bytes = vcr_base::input::memory::limit();
        // NIXL registers all of the memory; TCP allocates it block by block.
        let backs_as_used = self.kv_transfer == PlaneArg::Tcp;
        let total_bytes = geometry.total_bytes().saturating_mul(num_engines);
        if let Some(limit_bytes) =
            limit_bytes.filter(|limit| total_bytes > if backs_as_used { ADDRESS_SPACE_BYTES } else { *limit })
        {
            let format = |bytes: u64| units::format_bytes(bytes as f64);
            return Err(Unusable {
                message: format!(
                    "the KV of {} with {} blocks of {} takes {}, but this process may use {}",
                    counted(num_engines, "engine"),
                    geometry.blocks(),
                    format(geometry.block_bytes()),
                    format(total_bytes),
                    format(limit_bytes)
                ),
                hint: Some("give smaller blocks (--kv-block-bytes), or fewer (--num-gpu-blocks)".to_owned()),
            });
        }
        Ok(PlaneSettings {
            factory,
            geometry,
            memory_limit_bytes: limit_bytes.map(|limit| limit / num_engines.max(1)),
            backs_as_used,
            time: match self.kv_transfer_time {
                TimeArg::Real => TransferTime::Real,
                TimeArg::Modelled => TransferTime::Modelled,
                TimeArg::SlowerOf => TransferTime::SlowerOf,
            },
            is_pushed: self.kv_transfer_mode == ModeArg::Push,
            observer: None,
        })
    }

    /// The layout of an engine's KV.
    fn geometry(
        &self,
        engine: &EngineConfig,
        engines: &Identity,
        shape: &KvShape,
        regions: Regions,
    ) -> Result<Geometry, Unusable> {
        if engine.keeps_states() {
            return Err(Unusable::new(
                "--kv-transfer cannot be combined with `mamba` in --kv-cache-groups: states are not transferred",
            ));
        }
        if engine.context_ranks() > 1 || engine.pipeline_parallel_size() > 1 {
            return Err(Unusable::new(
                "--kv-transfer cannot be combined with --decode-context-parallel-size or --pipeline-parallel-size: how \
                 blocks are spread over ranks is not known to it",
            ));
        }
        let element_bytes = self.kv_cache_dtype.bytes(shape, engines.dtype);
        let slice_bytes =
            engine.block_size().checked_mul(shape.head_size).and_then(|size| size.checked_mul(element_bytes));
        // A block belongs to one KV cache group. Groups have equal numbers of layers, because vLLM pads the last one.
        let groups = engine.kv_cache_groups().len().max(1) as u32;
        let input = GeometryInput {
            layers: shape.layers.div_ceil(groups),
            kv_heads: shape.heads,
            slice_bytes: slice_bytes.unwrap_or(u32::MAX),
            ranks: engines.tensor_parallel_size,
            blocks: engine.num_gpu_blocks(),
            block_tokens: engine.block_size(),
            order: HeadOrder::HeadsFirst,
            regions: if shape.is_latent { Regions::Latent } else { regions },
        };
        let input = match self.kv_block_bytes {
            Some(block_bytes) => input.with_block_bytes(block_bytes),
            None => Ok(input),
        };
        input.and_then(Geometry::new).map_err(|error| Unusable {
            message: error.to_string(),
            hint: Some("see --kv-block-bytes, --kv-shape and --tensor-parallel-size".to_owned()),
        })
    }

    fn nixl_planes(&self, engines: &Identity, model_name: &str, shape: &KvShape) -> Result<PlaneFactory, Unusable> {
        let hint = Some("give --side-channel-host and --side-channel-port".to_owned());
        if self.kv_transfer_listen.is_some() {
            let message = "invalid --kv-transfer-listen: NIXL peers meet at the side channel".to_owned();
            return Err(Unusable { message, hint });
        }
        if self.side_channel_port == 0 {
            let message = "invalid --side-channel-port 0: expected the port at which NIXL peers ask".to_owned();
            return Err(Unusable { message, hint });
        }
        check_ports(self.side_channel_port, engines)?;
        self.nixl.planes(&NixlEngines {
            side_channel: (&self.side_channel_host, self.side_channel_port),
            identity: engines,
            model_name,
            shape: [shape.layers, shape.heads, shape.head_size],
            cache_dtype: self.kv_cache_dtype.to_string(),
            is_pushed: self.kv_transfer_mode == ModeArg::Push,
        })
    }

    fn tcp_settings(&self, engines: &Identity) -> Result<TcpSettings, Unusable> {
        let (host, port) = match &self.kv_transfer_listen {
            None => (self.side_channel_host.clone(), self.side_channel_port),
            Some(address) => {
                let parts = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
                let (host, port) = parts.filter(|(host, _)| !host.is_empty()).ok_or_else(|| {
                    Unusable::new(format!("invalid --kv-transfer-listen `{address}`: expected HOST:PORT"))
                })?;
                (host.to_owned(), port)
            }
        };
        check_ports(port, engines)?;
        let default = TcpSettings::default();
        Ok(TcpSettings {
            host,
            port,
            streams: self.kv_transfer_streams.map_or(default.streams, |streams| streams as usize),
            patience: Duration::from_nanos(self.kv_transfer_timeout).min(default.patience),
            tls: self.tls.tls()?,
            ..default
        })
    }
}

/// Checks that the port number of every engine is valid.
fn check_ports(port: u16, engines: &Identity) -> Result<(), Unusable> {
    let last = u32::from(port) + u32::from(engines.first_rank) + u32::from(engines.num_ranks) - 1;
    if port > 0 && last > u32::from(u16::MAX) {
        return Err(Unusable::new(format!(
            "the ports of KV transfers are {port} to {last}, and the last one is 65535"
        )));
    }
    Ok(())
}

fn tcp(settings: TcpSettings) -> PlaneFactory {
    Arc::new(move |context| Ok(Box::new(TcpPlane::new(context, settings.clone())?) as Box<dyn Plane>))
}
