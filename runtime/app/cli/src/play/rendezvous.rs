//! Options of a rendezvous between prefill and decode engines.

use clap::{Args, ValueEnum};
use vcr_live::{Identity, MeetingSettings, PdRole};

use super::unusable::Unusable;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RendezvousArg {
    /// By the prefill engine's answer, which a router passes on.
    None,
    /// By the TCP bootstrap of NVIDIA Dynamo's mocker.
    Dynamo,
    /// By SGLang's bootstrap server.
    Sglang,
    /// By the bootstrap server of vLLM's Mooncake connector.
    Mooncake,
}

/// Default role of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleArg {
    Prefill,
    Decode,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Disaggregated prefill and decode")]
pub(crate) struct RendezvousArgs {
    /// How prefill and decode engines find each other if a router sends a request to both at once.
    #[arg(long, value_enum, value_name = "PROTOCOL", default_value = "none")]
    kv_rendezvous: RendezvousArg,

    /// Bootstrap port. With `dynamo`, each engine's number is added to it, otherwise the first engine's number.
    #[arg(long, value_name = "PORT", default_value_t = 8998)]
    kv_rendezvous_port: u16,

    /// Role of this process in requests that name only a room, not do_remote_decode or do_remote_prefill. With
    /// `decode`, the process does not listen at the bootstrap port.
    #[arg(long, value_enum, value_name = "ROLE")]
    kv_rendezvous_role: Option<RoleArg>,

    /// Time to wait in a room for the other worker.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::values::duration)]
    kv_rendezvous_timeout: u64,
}

#[cfg_attr(not(feature = "rendezvous"), expect(dead_code, reason = "without it only the name of its feature matters"))]
pub(crate) struct RendezvousEngines<'a> {
    /// Host name of the engines for peers.
    pub(crate) host: &'a str,
    pub(crate) block_tokens: u32,
    /// Addresses, versions and names of the engines for frontends.
    pub(crate) identity: &'a Identity,
}

impl RendezvousArgs {
    pub(crate) fn meetings(&self, engines: &RendezvousEngines<'_>) -> Result<Option<MeetingSettings>, Unusable> {
        if self.kv_rendezvous == RendezvousArg::None {
            return Ok(None);
        }
        self.start(engines).map(Some)
    }

    #[cfg_attr(
        not(feature = "rendezvous"),
        expect(dead_code, reason = "without it only the name of its feature matters")
    )]
    fn role(&self) -> Option<PdRole> {
        self.kv_rendezvous_role.map(|role| match role {
            RoleArg::Prefill => PdRole::Prefill,
            RoleArg::Decode => PdRole::Decode,
        })
    }
}

#[cfg(feature = "rendezvous")]
impl RendezvousArgs {
    fn start(&self, engines: &RendezvousEngines<'_>) -> Result<MeetingSettings, Unusable> {
        use vcr_live::RoomKeys;
        use vcr_transfer::bootstrap::{Protocol, RendezvousSettings};
        let (protocol, room_keys) = match self.kv_rendezvous {
            RendezvousArg::None | RendezvousArg::Dynamo => (Protocol::Dynamo, RoomKeys::Bootstrap),
            RendezvousArg::Sglang => (Protocol::Sglang, RoomKeys::Bootstrap),
            RendezvousArg::Mooncake => (Protocol::Mooncake, RoomKeys::TransferId),
        };
        if self.kv_rendezvous_timeout == 0 {
            return Err(Unusable::new("invalid --kv-rendezvous-timeout 0s: expected more than 0"));
        }
        let RendezvousEngines { host, block_tokens, identity } = engines;
        let settings = RendezvousSettings {
            protocol,
            host: (*host).to_owned(),
            port: self.kv_rendezvous_port,
            first_rank: identity.first_rank,
            num_ranks: identity.num_ranks,
            tensor_parallel_size: identity.tensor_parallel_size,
            block_tokens: *block_tokens,
            timeout: std::time::Duration::from_nanos(self.kv_rendezvous_timeout),
            serves: self.kv_rendezvous_role != Some(RoleArg::Decode),
        };
        let factory = vcr_transfer::bootstrap::start(settings).map_err(|error| Unusable {
            message: error.to_string(),
            hint: Some(
                "give another --kv-rendezvous-port, or --kv-rendezvous-role decode where no decode engine is to come"
                    .to_owned(),
            ),
        })?;
        Ok(MeetingSettings { factory, room_keys, role: self.role() })
    }
}

#[cfg(not(feature = "rendezvous"))]
impl RendezvousArgs {
    /// Fails with the name of the missing feature.
    fn start(&self, _engines: &RendezvousEngines<'_>) -> Result<MeetingSettings, Unusable> {
        let (message, hint) = crate::absent::message("--kv-rendezvous", "rendezvous");
        Err(Unusable { message, hint: Some(hint.to_owned()) })
    }
}
