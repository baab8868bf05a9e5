//! KV from other sources: from other engines, from the tiers below the device, and from a connector.

mod connector;
mod offloading;
mod remote_kv;
mod tier_load;

use self::connector::ConnectorState;
pub(super) use self::connector::External;
pub use self::connector::KvTransferReport;
use crate::config::EngineConfig;
use crate::kv::tiers::KvTiers;
use crate::kv::tiers::offloading::Offloading;
use crate::request::RequestId;

/// The places beyond the device that an engine loads KV from.
#[derive(Debug)]
pub(super) struct KvLoads {
    /// KV tiers below the device, if any.
    tiers: Option<Box<KvTiers>>,
    /// State for a KV connector, if any.
    connector: Option<Box<ConnectorState>>,
    /// Whether vLLM's offloading connector, of the tiers or of a driver, answers lookups beyond the device.
    offloads: bool,
    /// Tokens at the end of a transferred prompt that are computed here.
    left_to_decode: u32,
    /// Order of the latest load of KV.
    latest_order: u32,
}

impl KvLoads {
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self {
            tiers: config.kv_tiers().map(|tiers| Box::new(KvTiers::new(*tiers, config.block_size(), config.rules()))),
            connector: ConnectorState::of(config),
            offloads: config.has_offloading(),
            left_to_decode: config.tokens_left_to_decode(),
            latest_order: 0,
        }
    }

    /// Whether there are tiers.
    #[inline]
    pub(super) fn has_tiers(&self) -> bool {
        self.tiers.is_some()
    }

    /// Whether a connector of the driver's finds KV.
    #[inline]
    pub(super) fn has_connector(&self) -> bool {
        self.connector.is_some()
    }

    /// Whether vLLM's offloading connector decides the hits beyond the device.
    #[inline]
    pub(super) fn offloads(&self) -> bool {
        self.offloads
    }

    /// A step is decided from here on.
    #[inline]
    pub(super) fn begin_step(&mut self) {
        if let Some(tiers) = &mut self.tiers {
            tiers.begin_step();
        }
    }

    /// The order of a load that begins now.
    pub(super) fn next_order(&mut self) -> u32 {
        self.latest_order = self.latest_order.wrapping_add(1);
        self.latest_order
    }

    /// A request is aborted that waits for a load.
    pub(super) fn forget_load(&mut self, id: RequestId) {
        if let Some(tiers) = self.tiers.as_mut().filter(|_| !self.offloads) {
            tiers.forget_load(id);
        }
    }

    /// The offloading connector whose transfers a driver performs.
    fn driven(&self) -> Option<&Offloading> {
        self.connector.as_ref()?.offloading()
    }

    /// The offloading connector, of a driver or of the tiers.
    fn offloading(&self) -> Option<&Offloading> {
        self.driven().or_else(|| self.tiers.as_ref()?.offloading())
    }

    fn offloading_mut(&mut self) -> Option<&mut Offloading> {
        let driven = self.connector.as_mut().and_then(|connector| connector.offloading_mut());
        driven.or_else(|| self.tiers.as_mut()?.offloading_mut())
    }
}
