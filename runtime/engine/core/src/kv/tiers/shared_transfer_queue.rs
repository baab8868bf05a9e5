//! One transfer direction between two tiers, shared by several engines.
//!
//! Each transfer in progress gets an equal share of the bandwidth of all engines, and an equal share of its
//! own engine's bandwidth. The smaller share applies; the rest is not given to other transfers. A transfer takes no
//! share before its first byte. Arithmetic is in whole 1e-9 bytes, so the same transfers arrive at the
//! same nanosecond on every machine. Time advances in steps, which end where the shares change.

use super::blocks::Slot;

/// Units per byte. A unit is 1e-9 byte, so `bytes_per_s * ns` counts units.
const UNITS_PER_BYTE: u128 = 1_000_000_000;

#[derive(Debug)]
struct FairTransfer {
    client: u32,
    load: Option<u32>,
    num_blocks: u32,
    slots: Vec<Slot>,
    /// When the transfer's first byte is sent.
    ready_ns: u64,
    is_moving: bool,
    remaining_units: u128,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) client: u32,
    pub(super) load: Option<u32>,
    pub(super) num_blocks: u32,
}

#[derive(Debug)]
pub(super) struct SharedTransferQueue {
    /// Bandwidth of each engine. None means no limit.
    own_bytes_per_s: Option<u64>,
    /// Bandwidth of all engines together. None means no limit.
    shared_bytes_per_s: Option<u64>,
    first_byte_ns: u64,
    updated_ns: u64,
    transfers: Vec<FairTransfer>,
    num_moving: u32,
    /// Number of moving transfers by engine.
    moving_of: Vec<u32>,
    bytes_of: Vec<u64>,
    /// When the next transfer arrives or begins to take a share.
    next_ns: Option<u64>,
}

impl SharedTransferQueue {
    pub(super) fn new(own_bytes_per_s: Option<u64>, shared_bytes_per_s: Option<u64>, first_byte_ns: u64) -> Self {
        Self {
            own_bytes_per_s,
            shared_bytes_per_s,
            first_byte_ns,
            updated_ns: 0,
            transfers: Vec::new(),
            num_moving: 0,
            moving_of: vec![0],
            bytes_of: vec![0],
            next_ns: None,
        }
    }

    pub(super) fn add_client(&mut self) {
        self.moving_of.push(0);
        self.bytes_of.push(0);
    }

    pub(super) fn bytes(&self, client: u32) -> u64 {
        self.bytes_of[client as usize]
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// Sends `num_blocks` blocks of `block_bytes` bytes as one transfer. There must be no event before `now_ns`.
    pub(super) fn send(
        &mut self,
        now_ns: u64,
        client: u32,
        load: Option<u32>,
        (num_blocks, block_bytes): (u32, u64),
        slots: Vec<Slot>,
    ) {
        self.advance(now_ns);
        let bytes = block_bytes.saturating_mul(u64::from(num_blocks));
        let total = &mut self.bytes_of[client as usize];
        *total = total.saturating_add(bytes);
        self.transfers.push(FairTransfer {
            client,
            load,
            num_blocks,
            slots,
            ready_ns: now_ns.saturating_add(self.first_byte_ns),
            is_moving: false,
            remaining_units: u128::from(bytes) * UNITS_PER_BYTE,
        });
        self.start_ready();
    }

    /// Advances to `now_ns`, the time of [`SharedTransferQueue::next_ns`]. Removes a transfer that has arrived by then,
    /// if there is one, and fills `slots` with its places.
    pub(super) fn pop(&mut self, now_ns: u64, slots: &mut Vec<Slot>) -> Option<Arrived> {
        self.advance(now_ns);
        self.start_ready();
        let at = self.transfers.iter().position(|transfer| self.end_ns(transfer) == Some(now_ns))?;
        let FairTransfer { client, load, num_blocks, slots: places, .. } = self.transfers.remove(at);
        self.num_moving -= 1;
        self.moving_of[client as usize] -= 1;
        *slots = places;
        self.note_next();
        Some(Arrived { client, load, num_blocks })
    }

    /// Moves bytes until `now_ns`. No transfer begins or ends before that time.
    fn advance(&mut self, now_ns: u64) {
        let elapsed_ns = u128::from(now_ns.saturating_sub(self.updated_ns));
        if elapsed_ns == 0 {
            return;
        }
        for at in 0..self.transfers.len() {
            let transfer = &self.transfers[at];
            if !transfer.is_moving {
                continue;
            }
            let arrives = self.end_ns(transfer).is_some_and(|end_ns| end_ns <= now_ns);
            let moved = self.rate(transfer.client).map(|(bytes_per_s, sharers)| elapsed_ns * bytes_per_s / sharers);
            let transfer = &mut self.transfers[at];
            transfer.remaining_units = match moved {
                Some(moved) if !arrives => transfer.remaining_units.saturating_sub(moved),
                _ => 0,
            };
        }
        self.updated_ns = now_ns;
    }

    /// Gives a share to each transfer whose first byte is sent now.
    fn start_ready(&mut self) {
        let now_ns = self.updated_ns;
        for transfer in self.transfers.iter_mut().filter(|transfer| !transfer.is_moving && transfer.ready_ns <= now_ns)
        {
            transfer.is_moving = true;
            self.num_moving += 1;
            self.moving_of[transfer.client as usize] += 1;
        }
        self.note_next();
    }

    fn note_next(&mut self) {
        let event_ns = |transfer: &FairTransfer| self.end_ns(transfer).unwrap_or(transfer.ready_ns);
        self.next_ns = self.transfers.iter().map(event_ns).min();
    }

    /// When a moving transfer arrives, if its share does not change.
    fn end_ns(&self, transfer: &FairTransfer) -> Option<u64> {
        if !transfer.is_moving {
            return None;
        }
        let Some((bytes_per_s, sharers)) = self.rate(transfer.client) else { return Some(self.updated_ns) };
        let wait_ns = (transfer.remaining_units * sharers).div_ceil(bytes_per_s);
        Some(self.updated_ns.saturating_add(u64::try_from(wait_ns).unwrap_or(u64::MAX)))
    }

    /// The share of an engine's moving transfer: bytes per second, divided by the number of sharers.
    fn rate(&self, client: u32) -> Option<(u128, u128)> {
        let own = self.own_bytes_per_s.map(|rate| (u128::from(rate.max(1)), self.moving_of[client as usize].into()));
        let shared = self.shared_bytes_per_s.map(|rate| (u128::from(rate.max(1)), self.num_moving.into()));
        match (own, shared) {
            (Some(own), Some(shared)) => Some(if own.0 * shared.1 <= shared.0 * own.1 { own } else { shared }),
            (one, other) => one.or(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    /// Bytes per millisecond at 1 GB/s.
    const MB: u64 = 1_000_000;
    const GB_PER_S: u64 = 1_000_000_000;

    /// Arrival times of transfers of 1 MB. Each transfer is given by its engine and submission time.
    fn arrivals(own: Option<u64>, shared: Option<u64>, first_byte_ns: u64, sent: &[(u32, u64)]) -> Vec<(u32, u64)> {
        let mut queue = SharedTransferQueue::new(own, shared, first_byte_ns);
        (0..4).for_each(|_| queue.add_client());
        let (mut arrived, mut slots) = (Vec::new(), Vec::new());
        let mut until = |queue: &mut SharedTransferQueue, end_ns: u64| {
            while let Some(at_ns) = queue.next_ns().filter(|at_ns| *at_ns <= end_ns) {
                if queue.pop(at_ns, &mut slots).is_some() {
                    arrived.push((slots[0], at_ns));
                }
            }
        };
        for (number, &(client, at_ns)) in sent.iter().enumerate() {
            until(&mut queue, at_ns);
            queue.send(at_ns, client, None, (1, MB), vec![number as Slot]);
        }
        until(&mut queue, u64::MAX);
        assert_eq!((queue.num_moving, queue.moving_of.iter().sum::<u32>()), (0, 0));
        arrived
    }

    #[test]
    fn the_smaller_share_counts() {
        let (one, two) = (Some(GB_PER_S), Some(2 * GB_PER_S));
        assert_eq!(arrivals(one, None, 0, &[(0, 0), (1, 0)]), [(0, MS), (1, MS)], "each has its own");
        assert_eq!(arrivals(one, None, 0, &[(0, 0), (0, 0)]), [(0, 2 * MS), (1, 2 * MS)], "two of one engine halve it");
        assert_eq!(arrivals(None, one, 0, &[(0, 0), (1, 0)]), [(0, 2 * MS), (1, 2 * MS)], "all halve what is shared");
        // Engine 0 gets half a GB/s for each of its two transfers. The third transfer gets a third of 2 GB/s and ends
        // after 1.5 ms. The bandwidth that the first two transfers do not use is
        // lost.
        let three = [(0, 0), (0, 0), (1, 0)];
        assert_eq!(arrivals(one, two, 0, &three), [(2, 3 * MS / 2), (0, 2 * MS), (1, 2 * MS)]);
        assert_eq!(arrivals(None, None, 0, &[(0, 5), (1, 7)]), [(0, 5), (1, 7)], "without limits it takes no time");
    }

    #[test]
    fn shares_change_when_transfers_begin_and_arrive() {
        let one = Some(GB_PER_S);
        // Half a millisecond alone, then both at half speed, then the second transfer alone.
        assert_eq!(arrivals(one, one, 0, &[(0, 0), (1, MS / 2)]), [(0, 3 * MS / 2), (1, 2 * MS)]);
        // While it waits for its first byte, the second transfer takes no share.
        assert_eq!(arrivals(one, one, MS, &[(0, 0), (1, MS / 2)]), [(0, 5 * MS / 2), (1, 3 * MS)]);
        assert_eq!(arrivals(one, one, MS, &[(0, 0), (1, MS)]), [(0, 2 * MS), (1, 3 * MS)]);
    }
}
