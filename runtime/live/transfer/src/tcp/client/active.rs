//! Transfers in progress, and their pages in batches.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::arena::Span;
use crate::error::{ErrorKind, TransferError};
use crate::geometry::{Geometry, Piece};
use crate::plane::{BlockPair, Transfer};
use crate::statistics::{Direction, Moved};
use crate::tcp::frame::PeerInfo;
use crate::tcp::shared::{Shared, nanoseconds};

/// Maximum bytes of a batch, unless a single page has more.
const BATCH_BYTES: u64 = 4 << 20;
const BATCH_PAGES: u64 = 1024;

pub(super) struct Active {
    pub(super) transfer: Transfer,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
    pub(super) is_over: Arc<AtomicBool>,
    pub(super) progress: Mutex<Progress>,
    pub(super) corrupts: AtomicBool,
}

#[derive(Default)]
pub(super) struct Progress {
    /// Known after the peer has identified itself.
    pages: Option<Arc<Pages>>,
    next_batch: u64,
    done_batches: u64,
    pub(super) first: Option<Instant>,
    pub(super) connect_ns: u64,
}

/// The pages of a transfer, numbered by block, then by piece of a page, then by region.
struct Pages {
    pieces: Vec<Piece>,
    regions: u64,
    count: u64,
    per_batch: u64,
    bytes: u64,
}

impl Pages {
    fn new(local: &Geometry, remote: &Geometry, transfer: &Transfer) -> Result<Self, TransferError> {
        let pieces = match transfer.direction {
            Direction::Read => local.pieces(remote),
            // All of the peer's pages must be written, so split those.
            Direction::Write => remote.pieces(local).map(|pieces| {
                let turned = |piece: Piece| Piece {
                    local_rank: piece.remote_rank,
                    remote_rank: piece.local_rank,
                    local_offset: piece.remote_offset,
                    remote_offset: piece.local_offset,
                    bytes: piece.bytes,
                };
                pieces.into_iter().map(turned).collect()
            }),
        };
        let peer = &transfer.peer;
        let pieces = pieces
            .map_err(|mismatch| TransferError::new(ErrorKind::Mismatch, format!("KV peer {peer}: {mismatch}")))?;
        if let Some(pair) = transfer.blocks.iter().find(|pair| pair.remote >= remote.blocks()) {
            let message = format!("KV peer {peer} has {} blocks, and no block {}", remote.blocks(), pair.remote);
            return Err(TransferError::new(ErrorKind::NotHeld, message));
        }
        let regions = u64::from(local.regions());
        let blocks = transfer.blocks.len() as u64;
        let largest = pieces.iter().map(|piece| u64::from(piece.bytes)).max().unwrap_or(1);
        let of_block: u64 = pieces.iter().map(|piece| u64::from(piece.bytes)).sum::<u64>() * regions;
        Ok(Self {
            count: blocks * regions * pieces.len() as u64,
            per_batch: (BATCH_BYTES / largest).clamp(1, BATCH_PAGES),
            bytes: of_block * blocks,
            pieces,
            regions,
        })
    }

    fn batches(&self) -> u64 {
        self.count.div_ceil(self.per_batch)
    }

    /// The local and remote parts of pages in a batch, and the contents of their blocks.
    fn batch(&self, number: u64, blocks: &[BlockPair]) -> BatchPages {
        let first = number * self.per_batch;
        let last = (first + self.per_batch).min(self.count);
        let per_block = self.regions * self.pieces.len() as u64;
        let mut batch = BatchPages::default();
        for page in first..last {
            let pair = blocks[(page / per_block) as usize];
            let piece = self.pieces[(page % per_block / self.regions) as usize];
            let region = (page % self.regions) as u32;
            let Piece { local_rank, remote_rank, local_offset, remote_offset, bytes } = piece;
            batch.local.push(Span { rank: local_rank, region, block: pair.local, offset: local_offset, bytes });
            batch.remote.push(Span { rank: remote_rank, region, block: pair.remote, offset: remote_offset, bytes });
            batch.contents.push(pair.content);
        }
        batch
    }
}

#[derive(Default)]
pub(super) struct BatchPages {
    pub(super) local: Vec<Span>,
    pub(super) remote: Vec<Span>,
    pub(super) contents: Vec<u64>,
}

impl BatchPages {
    pub(super) fn bytes(&self) -> u64 {
        self.local.iter().map(|span| u64::from(span.bytes)).sum()
    }
}

impl Active {
    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch, and whether it is the last one; `None` if the transfer has no pages.
    pub(super) fn next_batch(
        &self,
        shared: &Shared,
        peer: &PeerInfo,
    ) -> Result<Option<(u64, BatchPages, bool)>, TransferError> {
        let mut progress = self.progress();
        let pages = match &progress.pages {
            Some(pages) => Arc::clone(pages),
            None => {
                self.check_peer(peer)?;
                let pages = Pages::new(shared.arena.geometry(), &peer.geometry, &self.transfer)?;
                Arc::clone(progress.pages.insert(Arc::new(pages)))
            }
        };
        progress.first.get_or_insert_with(Instant::now);
        let number = progress.next_batch;
        if number >= pages.batches() {
            return Ok(None);
        }
        progress.next_batch += 1;
        drop(progress);
        Ok(Some((number, pages.batch(number, &self.transfer.blocks), number + 1 == pages.batches())))
    }

    fn check_peer(&self, found: &PeerInfo) -> Result<(), TransferError> {
        let peer = &self.transfer.peer;
        let error = |message| Err(TransferError::new(ErrorKind::Restarted, message));
        if !peer.engine_id.is_empty() && peer.engine_id != found.engine_id {
            return error(format!("KV peer {peer} is engine `{}` now, not `{}`", found.engine_id, peer.engine_id));
        }
        if peer.generation.is_some_and(|generation| generation != found.generation) {
            return error(format!("KV peer {peer} was restarted since it computed the prompt"));
        }
        Ok(())
    }

    pub(super) fn moved(&self) -> Moved {
        let progress = self.progress();
        let first = progress.first.unwrap_or(self.started);
        Moved {
            bytes: progress.pages.as_ref().map_or(0, |pages| pages.bytes),
            pages: progress.pages.as_ref().map_or(0, |pages| pages.count),
            queue_ns: nanoseconds(first - self.started).saturating_sub(progress.connect_ns),
            connect_ns: progress.connect_ns,
            move_ns: nanoseconds(first.elapsed()),
        }
    }

    /// Counts a batch that has arrived and is right. Returns whether it was the last one.
    pub(super) fn finish_batch(&self) -> bool {
        let mut progress = self.progress();
        progress.done_batches += 1;
        progress.pages.as_ref().is_some_and(|pages| progress.done_batches == pages.batches())
    }
}
