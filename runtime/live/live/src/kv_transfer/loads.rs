//! KV transfers to this engine ("loads"): modelled times, faults and ends.
//!
//! [`Loads`] owns the state of each load until it ends. The mover owns the bytes, if a data plane moves any;
//! callers pass the mover as an argument.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use vcr_base::random::Stream;
use vcr_transfer::{ErrorKind, Moved, TransferError};

use crate::config::TransferSettings;
use crate::kv_transfer::mover::{LoadPages, Mover};
use crate::kv_transfer::settings::{TransferFault, TransferTime};

pub(crate) struct LoadRequest<'a> {
    pub(crate) tag: u64,
    pub(crate) moved_tokens: u32,
    pub(crate) fault: Option<TransferFault>,
    /// Pages to move, if there is a data plane; an error if they cannot be moved.
    pub(crate) pages: Result<Option<LoadPages<'a>>, TransferError>,
}

struct Load {
    /// The mover's number, while bytes move.
    id: Option<u64>,
    modelled_ns: u64,
    /// Earliest end, set by a fault.
    not_before_ns: u64,
    /// Whether the transfer is still on a link that engines share.
    is_on_link: bool,
    failure: Option<TransferError>,
    /// Sizes and times of the moved bytes, once the plane has finished.
    moved: Option<Moved>,
}

pub(crate) struct LoadEnd {
    pub(crate) tag: u64,
    pub(crate) failure: Option<TransferError>,
    /// Sizes and times of the bytes moved so far; `None` without a plane.
    pub(crate) moved: Option<Moved>,
    /// Whether the plane itself has notified the prefill engine, or will.
    pub(crate) is_notified: bool,
}

pub(crate) struct Loads {
    settings: TransferSettings,
    rank: u16,
    by_tag: HashMap<u64, Load>,
    /// Times at which loads end, with their tags.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    draws: Stream,
    started: u64,
    failed: u64,
}

impl Loads {
    pub(crate) fn new(settings: &TransferSettings, rank: u16, seed: u64) -> Self {
        Self {
            settings: settings.clone(),
            rank,
            by_tag: HashMap::new(),
            ends: BinaryHeap::new(),
            draws: Stream::new(seed, "live.transfers"),
            started: 0,
            failed: 0,
        }
    }

    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    pub(crate) fn start(
        &mut self,
        request: LoadRequest<'_>,
        mut mover: Option<&mut Mover>,
        time_scale: f64,
        now_ns: u64,
    ) {
        let LoadRequest { tag, moved_tokens, fault, pages } = request;
        self.started += 1;
        let duration_ns = self.duration_ns(moved_tokens) as f64 / time_scale;
        let modelled_ns = now_ns.saturating_add(duration_ns as u64);
        let mut load =
            Load { id: None, modelled_ns, not_before_ns: now_ns, is_on_link: false, failure: None, moved: None };
        let fail = |kind, message: &str| TransferError::new(kind, format!("KV transfer: {message}"));
        let moved_bytes = pages.as_ref().ok().and_then(Option::as_ref).map_or(0, |pages| pages.pairs().count() as u64)
            * mover.as_ref().map_or(0, |mover| mover.settings().geometry.block_bytes());
        let mut end_ns = None;
        match fault {
            Some(TransferFault::Refuse) => {
                load.failure = Some(fail(ErrorKind::Refused, "a fault refuses it"));
                end_ns = Some(now_ns);
            }
            Some(TransferFault::Drop) => {
                load.failure = Some(fail(ErrorKind::TimedOut, "a fault drops it, and its time is over"));
                end_ns = Some(now_ns.saturating_add(self.settings.load_timeout_ns));
            }
            Some(TransferFault::Slow { by_ns, bytes_per_s }) => {
                let takes_ns = bytes_per_s.map_or(0, |bytes_per_s| {
                    let ns = u128::from(moved_bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
                    u64::try_from(ns).unwrap_or(u64::MAX)
                });
                load.not_before_ns = now_ns.saturating_add(by_ns.max(takes_ns));
            }
            Some(TransferFault::Corrupt) if mover.is_none() => {
                load.failure = Some(fail(ErrorKind::Corrupt, "a fault corrupts it"));
            }
            Some(TransferFault::Corrupt) | None => {}
        }
        // A link that engines share determines the time, unless the real time of the bytes is to be used.
        let is_real = time_of(mover.as_deref()) == TransferTime::Real && matches!(pages, Ok(Some(_)));
        let link = self.settings.shared_link.as_ref().filter(|_| end_ns.is_none() && fault.is_none() && !is_real);
        if let (Some(link), Ok(_)) = (link, &pages) {
            link.start(self.rank, tag, moved_tokens, now_ns);
            load.is_on_link = true;
        }
        let modelled_end_ns = load.modelled_ns.max(load.not_before_ns);
        if end_ns.is_none() {
            match (pages, &mut mover) {
                (Err(error), _) => {
                    load.failure = Some(error);
                    end_ns = Some(now_ns);
                }
                (Ok(Some(pages)), Some(mover)) => {
                    let pages = LoadPages { corrupts: fault == Some(TransferFault::Corrupt), ..pages };
                    load.id = Some(mover.load(tag, pages));
                    let is_modelled = mover.settings().time == TransferTime::Modelled && !load.is_on_link;
                    end_ns = is_modelled.then_some(modelled_end_ns);
                }
                (Ok(_), _) if load.is_on_link => {}
                (Ok(_), _) => end_ns = Some(modelled_end_ns),
            }
        }
        self.by_tag.insert(tag, load);
        if let Some(end_ns) = end_ns {
            self.ends.push(Reverse((end_ns, tag)));
        }
    }

    /// Takes a transfer that has ended.
    pub(crate) fn next_end(&mut self, mover: Option<&Mover>, now_ns: u64) -> Option<LoadEnd> {
        if let Some(link) = &self.settings.shared_link {
            let waits_for_bytes = time_of(mover) == TransferTime::SlowerOf;
            while let Some(tag) = link.next_arrived(self.rank, now_ns) {
                let Some(load) = self.by_tag.get_mut(&tag) else { continue };
                load.is_on_link = false;
                if load.id.is_none() || !waits_for_bytes {
                    self.ends.push(Reverse((now_ns, tag)));
                }
            }
        }
        loop {
            let &Reverse((end_ns, tag)) = self.ends.peek()?;
            if end_ns > now_ns {
                return None;
            }
            self.ends.pop();
            let Some(load) = self.by_tag.remove(&tag) else { continue };
            self.failed += u64::from(load.failure.is_some());
            let is_notified = mover.is_some() && load.failure.is_none();
            return Some(LoadEnd { tag, failure: load.failure, moved: load.moved, is_notified });
        }
    }

    /// The earliest known end of a transfer; on a shared link the transfer may end later.
    pub(crate) fn next_end_ns(&self) -> Option<u64> {
        let on_link = self.settings.shared_link.as_ref().and_then(|link| link.next_arrival_ns(self.rank));
        self.ends.peek().map(|Reverse((end_ns, _))| *end_ns).into_iter().chain(on_link).min()
    }

    /// Cancels the transfer of a request that has ended; its blocks will be reused.
    pub(crate) fn cancel(&mut self, tag: u64, mover: Option<&mut Mover>) {
        let id = self.by_tag.remove(&tag).and_then(|load| load.id);
        if let (Some(id), Some(mover)) = (id, mover) {
            mover.cancel(id);
        }
    }

    /// Modelled duration of moving this many tokens.
    fn duration_ns(&mut self, tokens: u32) -> u64 {
        let settings = &self.settings;
        let mean_ns = settings.latency_ns.saturating_add(settings.per_token_ns.saturating_mul(tokens.into()));
        if settings.std_dev_ns == 0 {
            return mean_ns;
        }
        (mean_ns as f64 + self.draws.normal() * settings.std_dev_ns as f64).max(0.0) as u64
    }

    /// Handles the end of a transfer's bytes, which have arrived intact or will never arrive.
    pub(crate) fn finish_move(
        &mut self,
        tag: u64,
        outcome: Result<Moved, TransferError>,
        mover: Option<&Mover>,
        now_ns: u64,
    ) {
        let time = time_of(mover);
        let Some(load) = self.by_tag.get_mut(&tag) else {
            // In modelled time, the transfer has ended already.
            if let Err(error) = outcome {
                self.failed += 1;
                tracing::warn!(kind = %error.kind, "KV that was counted as here did not arrive: {error}");
            }
            return;
        };
        load.id = None;
        load.moved = outcome.as_ref().ok().copied();
        let end_ns = match outcome {
            Err(error) => {
                load.failure = Some(error);
                now_ns
            }
            // The modelled time, or the link, determines the end.
            Ok(_) if time == TransferTime::Modelled || load.is_on_link => return,
            Ok(_) if time == TransferTime::SlowerOf => load.modelled_ns.max(load.not_before_ns),
            Ok(_) => load.not_before_ns,
        };
        self.ends.push(Reverse((end_ns, tag)));
    }
}

/// The rule for the time of a transfer whose bytes move.
fn time_of(mover: Option<&Mover>) -> TransferTime {
    mover.map_or(TransferTime::SlowerOf, |mover| mover.settings().time)
}
