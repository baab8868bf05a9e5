//! One way between two tiers: of each engine its own, or one that all share.

use super::blocks::Slot;
use super::fair::{Arrived, FairLane};
use super::lane::Lane;

/// A way with its transfers.
#[derive(Debug)]
pub(super) enum Road {
    /// By engine.
    Own(Vec<Lane>),
    /// Of all engines.
    Shared(FairLane),
}

impl Road {
    /// Another engine comes.
    pub(super) fn add_client(&mut self) {
        match self {
            Self::Own(lanes) => {
                let lane = lanes[0].empty_like();
                lanes.push(lane);
            }
            Self::Shared(lane) => lane.add_client(),
        }
    }

    /// When something happens on it next, and on whose part of it.
    pub(super) fn next(&self) -> Option<(u64, u32)> {
        match self {
            Self::Own(lanes) => {
                let next = lanes.iter().enumerate().filter_map(|(client, lane)| Some((lane.next_ns()?, client as u32)));
                next.min()
            }
            Self::Shared(lane) => Some((lane.next_ns()?, 0)),
        }
    }

    /// When something happens next that may concern a load of an engine.
    pub(super) fn next_of(&self, client: u32) -> Option<u64> {
        match self {
            Self::Own(lanes) => lanes[client as usize].next_ns(),
            Self::Shared(lane) => lane.next_ns(),
        }
    }

    /// When the transfer of a load of an engine, or of another numbered job, arrives; unknown on a shared way.
    pub(super) fn arrival_ns(&self, client: u32, load: u32) -> Option<u64> {
        match self {
            Self::Own(lanes) => lanes[client as usize].arrival_ns(load),
            Self::Shared(_) => None,
        }
    }

    /// Bytes of all transfers of an engine so far.
    pub(super) fn bytes(&self, client: u32) -> u64 {
        match self {
            Self::Own(lanes) => lanes[client as usize].bytes(),
            Self::Shared(lane) => lane.bytes(client),
        }
    }

    /// Sends blocks as one transfer of an engine.
    pub(super) fn send(
        &mut self,
        now_ns: u64,
        client: u32,
        load: Option<u32>,
        (num_blocks, block_bytes): (u32, u64),
        slots: &[Slot],
    ) {
        match self {
            Self::Own(lanes) => {
                let lane = &mut lanes[client as usize];
                lane.send(now_ns, load, num_blocks, block_bytes, slots.iter().copied());
            }
            Self::Shared(lane) => lane.send(now_ns, client, load, (num_blocks, block_bytes), slots.to_vec()),
        }
    }

    /// Takes a transfer that arrives at `now_ns`, which is [`Road::next`], if one does; `slots`
    /// are its places.
    pub(super) fn pop(&mut self, now_ns: u64, client: u32, slots: &mut Vec<Slot>) -> Option<Arrived> {
        match self {
            Self::Own(lanes) => {
                let transfer = lanes[client as usize].pop(slots);
                Some(Arrived { client, load: transfer.load, num_blocks: transfer.num_blocks })
            }
            Self::Shared(lane) => lane.pop(now_ns, slots),
        }
    }
}
