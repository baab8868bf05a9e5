//! The rendezvous of one engine.

use std::collections::HashMap;
use std::sync::Arc;

use crate::{Description, Meeting, Rendezvous, RendezvousContext, RendezvousEvent, Room};
use tokio::task::AbortHandle;

use crate::bootstrap::hub::Hub;
use crate::bootstrap::join::meet;
use crate::bootstrap::rooms::Prompt;
use crate::bootstrap::shared::Inbox;

pub(crate) struct EngineRendezvous {
    hub: Arc<Hub>,
    rank: u16,
    inbox: Arc<Inbox>,
    joins: HashMap<u64, AbortHandle>,
}

impl EngineRendezvous {
    pub(crate) fn new(hub: Arc<Hub>, context: RendezvousContext) -> Self {
        let RendezvousContext { engine_id, rank, allows, wake } = context;
        let inbox = Arc::new(Inbox::new(allows, wake));
        hub.add(rank, &engine_id, Arc::clone(&inbox));
        Self { hub, rank, inbox, joins: HashMap::new() }
    }
}

impl Rendezvous for EngineRendezvous {
    fn open(&mut self, room: &Room) {
        if let Err(error) = self.hub.shared.rooms.open(room, self.rank) {
            tracing::warn!(rank = self.rank, "room {room} cannot be opened: {error}");
        }
    }

    fn complete(&mut self, room: Room, description: Description) {
        let shared = &self.hub.shared;
        let request = description.request.clone();
        match shared.rooms.complete(&room, Prompt { rank: self.rank, description }) {
            Ok((number, before)) => {
                if let Some(before) = before {
                    shared.expired(&room, before, "before it was used again");
                }
                let Some(number) = number else { return };
                let shared = Arc::clone(shared);
                self.hub.spawn(async move {
                    tokio::time::sleep(shared.settings.timeout).await;
                    if let Some(prompt) = shared.rooms.expire(&room, number) {
                        let why = format!("within {:?}", shared.settings.timeout);
                        shared.expired(&room, prompt, &why);
                    }
                });
            }
            Err(error) => {
                let message = format!("KV rendezvous: the prompt of room {room} cannot wait: {error}");
                self.inbox.push(RendezvousEvent::Expired { request, message });
            }
        }
    }

    fn close(&mut self, room: &Room) {
        self.hub.shared.rooms.close(room);
    }

    fn join(&mut self, id: u64, meeting: Meeting) {
        let (shared, inbox) = (Arc::clone(&self.hub.shared), Arc::clone(&self.inbox));
        let task = async move {
            let event = match meet(&shared, &inbox, &meeting).await {
                Ok(description) => RendezvousEvent::Met { id, description },
                Err(error) => RendezvousEvent::Missed { id, error },
            };
            inbox.push(event);
        };
        self.joins.insert(id, self.hub.spawn(task));
    }

    fn leave(&mut self, id: u64) {
        if let Some(handle) = self.joins.remove(&id) {
            handle.abort();
        }
    }

    fn poll(&mut self, events: &mut Vec<RendezvousEvent>) {
        for event in self.inbox.take() {
            match &event {
                RendezvousEvent::Met { id, .. } | RendezvousEvent::Missed { id, .. } => {
                    // The event is dropped if the request has left the room.
                    if self.joins.remove(id).is_some() {
                        events.push(event);
                    }
                }
                RendezvousEvent::Taken { .. } | RendezvousEvent::Expired { .. } => events.push(event),
            }
        }
    }
}

impl Drop for EngineRendezvous {
    fn drop(&mut self) {
        for handle in self.joins.values() {
            handle.abort();
        }
        self.hub.remove(self.rank, &self.inbox);
    }
}
