//! State that the tasks and engines of a process share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{HostFilter, RendezvousEvent, Room, Wake};

use crate::bootstrap::RendezvousSettings;
use crate::bootstrap::ranks;
use crate::bootstrap::rooms::{Prompt, Rooms};
use crate::bootstrap::workers;

pub(crate) struct Inbox {
    events: Mutex<Vec<RendezvousEvent>>,
    allows: HostFilter,
    wake: Wake,
}

impl Inbox {
    pub(crate) fn new(allows: HostFilter, wake: Wake) -> Self {
        Self { events: Mutex::default(), allows, wake }
    }

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

pub(crate) struct Shared {
    pub(crate) settings: RendezvousSettings,
    pub(crate) rooms: Rooms,
    /// Ranks that have registered with SGLang's protocol.
    pub(crate) sglang: Mutex<ranks::Table>,
    /// Workers that have registered with the Mooncake protocol.
    pub(crate) mooncake: Mutex<workers::Table>,
    /// Inboxes of the engines that serve, by rank.
    inboxes: Mutex<HashMap<u16, Arc<Inbox>>>,
}

impl Shared {
    pub(crate) fn new(settings: RendezvousSettings) -> Self {
        Self {
            settings,
            rooms: Rooms::default(),
            sglang: Mutex::default(),
            mooncake: Mutex::default(),
            inboxes: Mutex::default(),
        }
    }

    /// Whether the engines may connect to this host; all of them have the same settings.
    pub(crate) fn allows(&self, host: &str) -> bool {
        self.inboxes().values().next().is_some_and(|inbox| inbox.allows(host))
    }

    pub(crate) fn add(&self, rank: u16, inbox: Arc<Inbox>) {
        self.inboxes().insert(rank, inbox);
    }

    pub(crate) fn remove(&self, rank: u16, inbox: &Arc<Inbox>) {
        let mut inboxes = self.inboxes();
        if inboxes.get(&rank).is_some_and(|other| Arc::ptr_eq(other, inbox)) {
            inboxes.remove(&rank);
        }
    }

    fn inboxes(&self) -> MutexGuard<'_, HashMap<u16, Arc<Inbox>>> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send(&self, rank: u16, event: RendezvousEvent) {
        let inbox = self.inboxes().get(&rank).cloned();
        if let Some(inbox) = inbox {
            inbox.push(event);
        }
    }

    /// Reports that a decode engine has got a prompt and will send no notice.
    pub(crate) fn taken(&self, prompt: Prompt) {
        self.send(prompt.rank, RendezvousEvent::Taken { request: prompt.description.request });
    }

    /// Reports that no decode engine has fetched a prompt.
    pub(crate) fn expired(&self, room: &Room, prompt: Prompt, why: &str) {
        let message = format!("KV rendezvous: no decode engine came to room {room} {why}");
        self.send(prompt.rank, RendezvousEvent::Expired { request: prompt.description.request, message });
    }
}
