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

/// The sources of KV other than the device.
#[derive(Debug)]
pub(super) struct KvLoads {
    /// KV tiers below the device, if any.
    tiers: Option<Box<KvTiers>>,
    connector: Option<Box<ConnectorState>>,
    /// Whether vLLM's offloading connector answers lookups, whether of the tiers or of a driver.
    offloads: bool,
    /// Number of last prompt tokens that are computed here when a prompt is transferred.
    left_to_decode: u32,
    /// Sequence number of the latest load.
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

    #[inline]
    pub(super) fn has_tiers(&self) -> bool {
        self.tiers.is_some()
    }

    #[inline]
    pub(super) fn has_connector(&self) -> bool {
        self.connector.is_some()
    }

    #[inline]
    pub(super) fn offloads(&self) -> bool {
        self.offloads
    }

    #[inline]
    pub(super) fn begin_step(&mut self) {
        if let Some(tiers) = &mut self.tiers {
            tiers.begin_step();
        }
    }

    pub(super) fn next_order(&mut self) -> u32 {
        self.latest_order = self.latest_order.wrapping_add(1);
        self.latest_order
    }

    pub(super) fn forget_load(&mut self, id: RequestId) {
        if let Some(tiers) = self.tiers.as_mut().filter(|_| !self.offloads) {
            tiers.forget_load(id);
        }
    }

    /// The offloading connector whose transfers the driver performs.
    fn driven(&self) -> Option<&Offloading> {
        self.connector.as_ref()?.offloading()
    }

    /// The offloading connector of the driver or of the tiers.
    fn offloading(&self) -> Option<&Offloading> {
        self.driven().or_else(|| self.tiers.as_ref()?.offloading())
    }

    fn offloading_mut(&mut self) -> Option<&mut Offloading> {
        let driven = self.connector.as_mut().and_then(|connector| connector.offloading_mut());
        driven.or_else(|| self.tiers.as_mut()?.offloading_mut())
    }
}
