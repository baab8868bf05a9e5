//! A NIXL agent with one registered arena.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nixl_sys::{
    Agent, AgentConfig, Backend, MemType, MemoryRegion, NixlDescriptor, NixlError, NotificationMap, OptArgs,
    RegistrationHandle, ThreadSync, XferDescList, XferOp, XferRequest,
};
use vcr_transfer::{Arena, ErrorKind, TransferError};

use crate::layout::arena_range;

/// Maximum pause of the library's own thread between two checks of the network; its sockets wake it too. Without a
/// pause, the thread takes a whole core. Over shared memory, the reader does not need the thread, but over TCP the
/// owner's thread answers.
const PROGRESS_DELAY_US: u64 = 5000;

/// UCX reads the memory of processes on this machine in system calls of 512 KiB by default. In a kernel without
/// preemption, a due step of an engine waits for the end of such a call. Smaller calls cost little. The environment
/// variable `UCX_CMA_SEG_SIZE` overrides this.
const UCX_CONFIG: &str = "CMA_SEG_SIZE=256k";

/// Bytes to move: local address, address at the peer, length.
pub(crate) type Extent = (usize, u64, usize);

/// A transfer that NIXL has, and its lists. Dropping the lists takes as long as making them, so it happens after
/// the transfer has ended.
pub(crate) struct Posted {
    request: XferRequest,
    _lists: [XferDescList<'static>; 2],
    _options: OptArgs,
}

/// A NIXL agent, which only one thread may use.
pub(crate) struct NixlAgent {
    /// Must be dropped before the agent, and the agent before the memory.
    registration: Option<RegistrationHandle>,
    agent: Agent,
    backend: Backend,
    peers: HashSet<String>,
    _arena: Arc<Arena>,
}

struct Memory(Arc<Arena>);

impl std::fmt::Debug for Memory {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Memory")
    }
}

impl MemoryRegion for Memory {
    #[expect(unsafe_code, reason = "the trait has it so; an address is not used here")]
    unsafe fn as_ptr(&self) -> *const u8 {
        arena_range(&self.0).0 as *const u8
    }

    fn size(&self) -> usize {
        arena_range(&self.0).1
    }
}

impl NixlDescriptor for Memory {
    fn mem_type(&self) -> MemType {
        MemType::Dram
    }

    fn device_id(&self) -> u64 {
        0
    }
}

fn local(doing: &str) -> impl Fn(NixlError) -> TransferError {
    move |error| TransferError::new(ErrorKind::Local, format!("NIXL cannot {doing}: {error}"))
}

impl NixlAgent {
    /// Starts an agent, whose name no other agent may have, and registers the arena.
    pub(crate) fn new(name: &str, arena: &Arc<Arena>) -> Result<Self, TransferError> {
        let config = AgentConfig {
            enable_prog_thread: true,
            pthr_delay_us: PROGRESS_DELAY_US,
            thread_sync: ThreadSync::None,
            ..AgentConfig::default()
        };
        let agent = Agent::new_configured(name, &config).map_err(local("start an agent"))?;
        let (_, mut params) = agent.get_plugin_params("UCX").map_err(local("find its UCX plugin"))?;
        params.set("engine_config", UCX_CONFIG).map_err(local("configure its UCX plugin"))?;
        let backend = agent.create_backend("UCX", &params).map_err(local("start its UCX backend"))?;
        let memory = Memory(Arc::clone(arena));
        let registration = agent.register_memory(&memory, None).map_err(local("register the KV arena"))?;
        let (registration, peers) = (Some(registration), HashSet::new());
        Ok(Self { registration, agent, backend, peers, _arena: Arc::clone(arena) })
    }

    pub(crate) fn metadata(&self) -> Result<Vec<u8>, TransferError> {
        self.agent.get_local_md().map_err(local("describe its agent"))
    }

    /// Adds a peer by its metadata, and returns the peer's name.
    pub(crate) fn add_peer(&mut self, metadata: &[u8]) -> Result<String, NixlError> {
        // The crate panics if the name is not text.
        let loaded = catch_unwind(AssertUnwindSafe(|| self.agent.load_remote_md(metadata)));
        let name = loaded.unwrap_or(Err(NixlError::InvalidParam))?;
        self.peers.insert(name.clone());
        Ok(name)
    }

    /// Drops the state of a peer and its connections.
    pub(crate) fn remove_peer(&mut self, name: &str) {
        if self.peers.remove(name)
            && let Err(error) = self.agent.invalidate_remote_md(name)
        {
            tracing::debug!("NIXL does not forget {name}: {error}");
        }
    }

    /// Starts to move bytes. The peer gets `notice` after the bytes.
    pub(crate) fn start(
        &self,
        operation: XferOp,
        peer: &str,
        extents: &[Extent],
        notice: Option<&[u8]>,
    ) -> Result<Posted, NixlError> {
        let mut here = XferDescList::new(MemType::Dram)?;
        let mut there = XferDescList::new(MemType::Dram)?;
        for &(local, remote, bytes) in extents {
            here.add_desc(local, bytes, 0);
            there.add_desc(remote as usize, bytes, 0);
        }
        let mut options = OptArgs::new()?;
        options.add_backend(&self.backend)?;
        if let Some(notice) = notice {
            options.set_notification_message(notice)?;
            options.set_has_notification(true)?;
        }
        let request = self.agent.create_xfer_req(operation, &here, &there, peer, Some(&options))?;
        self.agent.post_xfer_req(&request, Some(&options))?;
        Ok(Posted { request, _lists: [here, there], _options: options })
    }

    pub(crate) fn is_done(&self, posted: &Posted) -> Result<bool, NixlError> {
        self.agent.get_xfer_status(&posted.request).map(|status| status.is_success())
    }

    /// Sends a notification to a peer, which must have been added.
    pub(crate) fn notify(&self, peer: &str, notice: &[u8]) -> Result<(), NixlError> {
        self.agent.send_notification(peer, notice, Some(&self.backend))
    }

    /// Appends the notifications from peers since the last call.
    pub(crate) fn take_notices(&self, taken: &mut Vec<Vec<u8>>) -> Result<(), NixlError> {
        // A new map each time, because the crate's function to empty a map stops at a notification that is not text.
        let mut notices = NotificationMap::new()?;
        self.agent.get_notifications(&mut notices, None)?;
        for peer in notices.agents() {
            for notice in notices.get_notifications(peer?)? {
                taken.push(notice?);
            }
        }
        Ok(())
    }
}

impl Drop for NixlAgent {
    fn drop(&mut self) {
        for peer in std::mem::take(&mut self.peers) {
            _ = self.agent.invalidate_remote_md(&peer);
        }
        self.registration = None;
    }
}
