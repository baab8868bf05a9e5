//! State shared by tasks and engines of the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vcr_transfer::{HostFilter, RendezvousEvent, Room, Wake};

use crate::RendezvousSettings;
use crate::ranks;
use crate::rooms::{Prompt, Rooms};
use crate::workers;

/// Where one engine gets its news.
pub(crate) struct Desk {
    events: Mutex<Vec<RendezvousEvent>>,
    allows: HostFilter,
    wake: Wake,
}

impl Desk {
    pub(crate) fn new(allows: HostFilter, wake: Wake) -> Self {
        Self { events: Mutex::default(), allows, wake }
    }

    /// Whether the engine may connect to this host.
    pub(crate) fn allows(&self, host: &str) -> bool {
        (self.allows)(host)
    }

    fn events(&self) -> MutexGuard<'_, Vec<RendezvousEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: RendezvousEvent) {
        self.events().push(event);
        (self.wake)();
    }

    pub(crate) fn take(&self) -> Vec<RendezvousEvent> {
        std::mem::take(&mut *self.events())
    }
}

/// The process's state for tasks.
pub(crate) struct Shared {
    pub(crate) settings: RendezvousSettings,
    pub(crate) rooms: Rooms,
    /// Ranks that have registered by SGLang's protocol.
    pub(crate) sglang: Mutex<ranks::Table>,
    /// Workers that have registered by that of the Mooncake connector.
    pub(crate) mooncake: Mutex<workers::Table>,
    /// The engines that serve, by their numbers.
    desks: Mutex<HashMap<u16, Arc<Desk>>>,
}

impl Shared {
    pub(crate) fn new(settings: RendezvousSettings) -> Self {
        Self {
            settings,
            rooms: Rooms::default(),
            sglang: Mutex::default(),
            mooncake: Mutex::default(),
            desks: Mutex::default(),
        }
    }

    /// Whether engines may connect to this host: that of any, as they have the same settings.
    pub(crate) fn allows(&self, host: &str) -> bool {
        self.desks().values().next().is_some_and(|desk| desk.allows(host))
    }

    /// An engine serves from now on.
    pub(crate) fn add(&self, rank: u16, desk: Arc<Desk>) {
        self.desks().insert(rank, desk);
    }

    /// An engine serves no longer.
    pub(crate) fn remove(&self, rank: u16, desk: &Arc<Desk>) {
        let mut desks = self.desks();
        if desks.get(&rank).is_some_and(|other| Arc::ptr_eq(other, desk)) {
            desks.remove(&rank);
        }
    }

    fn desks(&self) -> MutexGuard<'_, HashMap<u16, Arc<Desk>>> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells an engine something about a prompt that it holds.
    pub(crate) fn tell(&self, rank: u16, event: RendezvousEvent) {
        let desk = self.desks().get(&rank).cloned();
        if let Some(desk) = desk {
            desk.push(event);
        }
    }

    /// A decode engine has come that will send no notice.
    pub(crate) fn taken(&self, prompt: Prompt) {
        self.tell(prompt.rank, RendezvousEvent::Taken { request: prompt.description.request });
    }

    /// No decode engine has come for a prompt.
    pub(crate) fn expired(&self, room: &Room, prompt: Prompt, why: &str) {
        let message = format!("KV rendezvous: no decode engine came to room {room} {why}");
        self.tell(prompt.rank, RendezvousEvent::Expired { request: prompt.description.request, message });
    }
}
