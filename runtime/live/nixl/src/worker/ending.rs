//! The ends of transfers that NIXL has: complete and compared, lost, late, or cancelled.

use std::time::Instant;

use vcr_transfer::{Direction, ErrorKind, Expected, Held, Moved, Transfer, TransferError};

use super::check_block;
use super::{Active, Waiting, Worker, vacate};
use crate::links::{name_of, place_of};

impl Worker {
    /// Ends the transfers that NIXL has completed.
    pub(super) fn take_moved(&mut self) {
        let mut index = 0;
        while let Some(active) = self.active.get(index) {
            match self.agent.is_done(&active.posted) {
                Ok(false) => index += 1,
                Ok(true) => {
                    let active = self.active.swap_remove(index);
                    self.end_moved(active);
                }
                Err(error) => {
                    let Active { transfer, posted, place, .. } = self.active.swap_remove(index);
                    drop(posted);
                    self.links.forget(&place, &mut self.agent);
                    let message = format!("KV peer {} is lost: NIXL reports {error}", name_of(&place));
                    self.fail(&transfer, TransferError::new(ErrorKind::PeerLost, message));
                }
            }
        }
        self.take_ended();
    }

    /// Compares the received bytes with the pattern.
    fn end_moved(&mut self, active: Active) {
        // `_posted` is dropped at the end of this function, so that a reader of the pages does not wait for the
        // drop.
        let Active { transfer, posted: _posted, pages, place, since, asked, connect_ns } = active;
        if transfer.direction == Direction::Read {
            let checked = self.check(&transfer);
            let is_right = checked.is_ok();
            for pair in &transfer.blocks {
                self.context.arena.take_back(pair.local, transfer.id, is_right.then_some(pair.content));
            }
            if let Err(error) = checked {
                let message = format!("KV peer {}: {}", name_of(&place), error.message);
                return self.fail(&transfer, TransferError::new(error.kind, message));
            }
        }
        let blocks = transfer.blocks.len() as u64;
        let queue_ns = (asked - since).as_nanos() as u64;
        let moved = Moved {
            bytes: blocks * self.context.arena.geometry().block_bytes(),
            pages,
            queue_ns: queue_ns.saturating_sub(connect_ns),
            connect_ns,
            move_ns: asked.elapsed().as_nanos() as u64,
        };
        self.finish(&transfer, moved);
    }

    fn check(&self, transfer: &Transfer) -> Result<(), TransferError> {
        for pair in &transfer.blocks {
            let held = Held { block: pair.local, content: pair.content };
            check_block(&self.context, transfer.id, &held, transfer.corrupts)?;
        }
        Ok(())
    }

    /// Frees the blocks of cancelled transfers, and continues with the transfers that have waited for these blocks.
    fn take_ended(&mut self) {
        let mut has_ended = false;
        let mut index = 0;
        while let Some(active) = self.ending.get(index) {
            if let Ok(false) = self.agent.is_done(&active.posted) {
                index += 1;
                continue;
            }
            let Active { transfer, posted, .. } = self.ending.swap_remove(index);
            drop(posted);
            transfer.blocks.iter().for_each(|pair| self.context.arena.take_back(pair.local, transfer.id, None));
            vacate(&self.shared, &transfer);
            has_ended = true;
        }
        if has_ended {
            self.stirred = Instant::now();
            for (transfer, since) in std::mem::take(&mut self.blocked) {
                self.start(transfer, since);
            }
        }
    }

    /// Fails the transfers whose time is over.
    pub(super) fn end_late(&mut self) {
        let late = |transfer: &Transfer, since: Instant| since.elapsed() >= transfer.timeout;
        let message = |transfer: &Transfer, doing: &str| {
            let place = name_of(&place_of(&transfer.peer));
            let timeout_ms = transfer.timeout.as_millis();
            TransferError::new(ErrorKind::TimedOut, format!("KV peer {place}: {doing} after {timeout_ms} ms"))
        };
        while let Some(index) = self.active.iter().position(Active::is_late) {
            let active = self.active.swap_remove(index);
            self.report_failure(&active.transfer, message(&active.transfer, "the pages have not come"));
            self.ending.push(active);
        }
        while let Some(index) = self.blocked.iter().position(|(transfer, since)| late(transfer, *since)) {
            let (transfer, _) = self.blocked.swap_remove(index);
            self.fail(&transfer, message(&transfer, "its blocks were still written to"));
        }
        let mut over = Vec::new();
        for waiting in self.waiting.values_mut() {
            let is_over =
                |waiting: &mut Waiting| matches!(waiting, Waiting::Start(transfer, since) if late(transfer, *since));
            over.extend(waiting.extract_if(.., is_over));
        }
        for waiting in over {
            if let Waiting::Start(transfer, _) = waiting {
                self.fail(&transfer, message(&transfer, "it has not answered"));
            }
        }
        let is_late = |expected: &Expected, since: Instant| since.elapsed() >= expected.timeout;
        let late: Vec<_> = self.expected.extract_if(|_, (expected, since)| is_late(expected, *since)).collect();
        for (request, (expected, _)) in late {
            expected.blocks.iter().for_each(|held| self.context.arena.take_back(held.block, expected.id, None));
            let message = format!("no KV peer has written {request} after {} ms", expected.timeout.as_millis());
            self.end_expected(&expected, Err(TransferError::new(ErrorKind::TimedOut, message)));
        }
    }
}
