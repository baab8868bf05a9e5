//! One engine's part in a rendezvous: the rooms of its finished prompts, and the rooms in which its requests wait.

use std::collections::HashMap;
use std::sync::Arc;

use vcr_core::plan::RemoteLoad;
use vcr_transfer::{Description, Meeting, Rendezvous, RendezvousContext, RendezvousEvent, Room, TransferError, Wake};

use crate::config::TransferSettings;
use crate::error::LiveError;
use crate::kv_transfer::peers::AllowedPeers;
use crate::kv_transfer::settings::MeetingSettings;

/// A request of this engine with reserved blocks, and the outcome of its wait.
pub(crate) struct MeetingResult {
    pub(crate) load: RemoteLoad,
    /// The place of the KV, if the prefill engine states it.
    pub(crate) outcome: Result<Option<Description>, TransferError>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MeetingCounts {
    /// Number of rooms in which requests of this engine have waited.
    pub(crate) rooms: u64,
    /// Number of requests that did not meet their prefill engine.
    pub(crate) missed: u64,
    /// Total time that requests waited in rooms.
    pub(crate) waited_ns: u64,
}

struct Waiting {
    load: RemoteLoad,
    since_ns: u64,
}

pub(crate) struct Meetings {
    rendezvous: Box<dyn Rendezvous>,
    /// Waiting requests, by their tags.
    waiting: HashMap<u64, Waiting>,
    counts: MeetingCounts,
    /// Kept to reuse its allocation.
    events: Vec<RendezvousEvent>,
}

impl Meetings {
    /// Starts the rendezvous of an engine.
    pub(crate) fn start(
        settings: &MeetingSettings,
        transfer: &TransferSettings,
        engine_id: String,
        rank: u16,
        wake: Wake,
    ) -> Result<Self, LiveError> {
        let allowed = AllowedPeers::new(&transfer.side_channel_host, &transfer.allowed_peers);
        let allows = Arc::new(move |host: &str| allowed.contains(host));
        let rendezvous = (settings.factory)(RendezvousContext { engine_id, rank, allows, wake })?;
        Ok(Self { rendezvous, waiting: HashMap::new(), counts: MeetingCounts::default(), events: Vec::new() })
    }

    pub(crate) fn counts(&self) -> MeetingCounts {
        self.counts
    }

    /// Opens a room for a request that has arrived and whose prompt is computed here.
    pub(crate) fn open(&mut self, room: &Room) {
        self.rendezvous.open(room);
    }

    /// Completes a room whose prompt is finished and held.
    pub(crate) fn complete(&mut self, room: Room, description: Description) {
        self.rendezvous.complete(room, description);
    }

    /// Closes a room whose request has ended without a finished prompt.
    pub(crate) fn close(&mut self, room: &Room) {
        self.rendezvous.close(room);
    }

    /// Lets a request with reserved blocks wait in its room.
    pub(crate) fn join(&mut self, load: RemoteLoad, meeting: Meeting, now_ns: u64) {
        self.counts.rooms += 1;
        self.rendezvous.join(load.tag, meeting);
        self.waiting.insert(load.tag, Waiting { load, since_ns: now_ns });
    }

    /// Ends the wait of a request.
    pub(crate) fn leave(&mut self, tag: u64) {
        if self.waiting.remove(&tag).is_some() {
            self.rendezvous.leave(tag);
        }
    }

    /// Takes the events since the last call: requests that no longer wait (`met`), and changes of held prompts
    /// (`of_held`).
    pub(crate) fn poll(&mut self, met: &mut Vec<MeetingResult>, of_held: &mut Vec<RendezvousEvent>, now_ns: u64) {
        self.rendezvous.poll(&mut self.events);
        for event in self.events.drain(..) {
            let (id, outcome) = match event {
                RendezvousEvent::Met { id, description } => (id, Ok(description)),
                RendezvousEvent::Missed { id, error } => (id, Err(error)),
                RendezvousEvent::Taken { .. } | RendezvousEvent::Expired { .. } => {
                    of_held.push(event);
                    continue;
                }
            };
            let Some(Waiting { load, since_ns }) = self.waiting.remove(&id) else { continue };
            self.counts.missed += u64::from(outcome.is_err());
            self.counts.waited_ns += now_ns.saturating_sub(since_ns);
            met.push(MeetingResult { load, outcome });
        }
    }
}
