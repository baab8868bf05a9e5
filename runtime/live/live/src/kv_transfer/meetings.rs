//! One engine's part in a rendezvous: rooms with its finished prompts, and rooms in which its
//! requests wait.

use std::collections::HashMap;
use std::sync::Arc;

use vcr_core::plan::RemoteLoad;
use vcr_transfer::{Description, Meeting, Rendezvous, RendezvousContext, RendezvousEvent, Room, TransferError, Wake};

use crate::config::TransferSettings;
use crate::error::LiveError;
use crate::kv_transfer::peers::AllowedPeers;
use crate::kv_transfer::settings::MeetingSettings;

/// A request of this engine with reserved blocks, and the result of its wait.
pub(crate) struct MeetingResult {
    pub(crate) load: RemoteLoad,
    /// The place of its KV, if the prefill engine names it.
    pub(crate) outcome: Result<Option<Description>, TransferError>,
}

/// Counts of one engine's meetings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MeetingCounts {
    /// Rooms that requests of this engine have waited in.
    pub(crate) rooms: u64,
    /// The number of these that missed their prefill engine.
    pub(crate) missed: u64,
    /// Time in them.
    pub(crate) waited_ns: u64,
}

struct Waiting {
    load: RemoteLoad,
    since_ns: u64,
}

/// The rendezvous of one engine.
pub(crate) struct Meetings {
    rendezvous: Box<dyn Rendezvous>,
    /// Requests that wait, by their tags.
    waiting: HashMap<u64, Waiting>,
    counts: MeetingCounts,
    /// Kept for its memory.
    events: Vec<RendezvousEvent>,
}

impl Meetings {
    /// Takes part from now on.
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

    /// A request for a room has arrived, whose prompt is computed here.
    pub(crate) fn open(&mut self, room: &Room) {
        self.rendezvous.open(room);
    }

    /// Its prompt is finished and held.
    pub(crate) fn complete(&mut self, room: Room, description: Description) {
        self.rendezvous.complete(room, description);
    }

    /// It has ended without that.
    pub(crate) fn close(&mut self, room: &Room) {
        self.rendezvous.close(room);
    }

    /// Sends a request with reserved blocks to its room.
    pub(crate) fn join(&mut self, load: RemoteLoad, meeting: Meeting, now_ns: u64) {
        self.counts.rooms += 1;
        self.rendezvous.join(load.tag, meeting);
        self.waiting.insert(load.tag, Waiting { load, since_ns: now_ns });
    }

    /// Ends its wait.
    pub(crate) fn leave(&mut self, tag: u64) {
        if self.waiting.remove(&tag).is_some() {
            self.rendezvous.leave(tag);
        }
    }

    /// Takes the events since the last call: requests that no longer wait, and changes of held
    /// prompts.
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
