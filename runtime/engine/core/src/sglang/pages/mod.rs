//! KV pages: pages in the radix tree, pages of a single request, and free pages.

mod radix;

pub(super) use self::radix::Hit;
use self::radix::{NodeId, ROOT, RadixCache};
use crate::kv::event::KvEventLog;
use crate::kv::hash::BlockHash;
use crate::request::{Flags, Request, RequestId};
use crate::sglang::config::SglangConfig;

#[derive(Clone, Copy, Debug)]
struct Hold {
    /// The last node of the request's path in the tree. The request locks this path.
    node: NodeId,
    tree_pages: u32,
    /// Number of the request's own pages. They follow the pages of the path and are not in the tree.
    own_pages: u32,
    /// When a decode last filled a page, by the tree's clock; 0 if none has yet.
    filled_at: u64,
    /// Whether the prompt is computed, but no page was left for the next token.
    is_stalled: bool,
    /// Number of tokens to offer to the cache once another engine has received them.
    late_tokens: u32,
}

impl Hold {
    const NONE: Self =
        Self { node: ROOT, tree_pages: 0, own_pages: 0, filled_at: 0, is_stalled: false, late_tokens: 0 };

    fn pages(self) -> u32 {
        self.tree_pages + self.own_pages
    }
}

#[derive(Debug)]
pub(super) struct KvPages {
    page_size_tokens: u32,
    is_caching: bool,
    holds: Vec<Hold>,
    radix: RadixCache,
    num_free: u32,
}

impl KvPages {
    pub(super) fn new(config: &SglangConfig) -> Self {
        Self {
            page_size_tokens: config.page_size(),
            is_caching: config.enable_prefix_caching(),
            holds: Vec::new(),
            radix: RadixCache::new(),
            num_free: config.num_pages(),
        }
    }

    /// Registers a new request, which has no pages.
    pub(super) fn enter(&mut self, id: RequestId) {
        self.holds.resize(self.holds.len().max(id.index() + 1), Hold::NONE);
    }

    #[inline]
    pub(super) fn for_tokens(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_size_tokens)
    }

    /// Number of available pages, including evictable ones.
    #[inline]
    pub(super) fn num_available(&self) -> u32 {
        self.num_free + self.radix.num_evictable_pages()
    }

    #[inline]
    pub(super) fn held(&self, id: RequestId) -> u32 {
        self.holds[id.index()].pages()
    }

    pub(super) fn held_in_tree(&self, id: RequestId) -> u32 {
        self.holds[id.index()].tree_pages
    }

    /// Allocates more pages for a request. The caller has checked that enough are available.
    pub(super) fn grow(&mut self, id: RequestId, pages: u32) {
        if pages > self.num_free {
            let missing = pages - self.num_free;
            self.radix.evict(missing);
            self.num_free = pages;
        }
        self.num_free -= pages;
        self.holds[id.index()].own_pages += pages;
    }

    pub(super) fn flush(&mut self) {
        let pages = self.radix.num_evictable_pages();
        self.radix.evict(pages);
        self.num_free += pages;
    }

    /// Frees the pages after the first `used` pages, which a burst has not needed.
    pub(super) fn shrink(&mut self, id: RequestId, used: u32) {
        let hold = &mut self.holds[id.index()];
        // If a prompt has only one output token, it may have no slot.
        let unused = hold.pages().saturating_sub(used.max(hold.tree_pages));
        hold.own_pages -= unused;
        self.num_free += unused;
    }

    /// Moves the full pages of a request's first `tokens` tokens into the tree, with the time of use `used_at`.
    /// Pages that the tree already has are freed.
    pub(super) fn store(&mut self, id: RequestId, request: &Request, tokens: u32, used_at: u64) {
        if !self.is_caching {
            return;
        }
        let page_size = self.page_size_tokens;
        let hold = &mut self.holds[id.index()];
        let full = tokens / page_size;
        if full <= hold.tree_pages {
            return;
        }
        let (from, to) = (hold.tree_pages as usize, full as usize);
        let tokens = if request.flags.has(Flags::KEEPS_TOKENS) {
            &request.tokens[from * page_size as usize..to * page_size as usize]
        } else {
            &[]
        };
        let (node, known) = self.radix.extend(hold.node, request.tag, &request.block_hashes[from..to], tokens, used_at);
        hold.own_pages -= full - hold.tree_pages;
        hold.tree_pages = full;
        hold.node = node;
        self.num_free += known;
    }

    /// Moves the full pages of a request's first `tokens` tokens into the tree, as used now.
    pub(super) fn store_now(&mut self, id: RequestId, request: &Request, tokens: u32) {
        let now = self.radix.tick(1);
        self.store(id, request, tokens, now);
    }

    /// Moves the full pages of a request that leaves a list into the tree, as used when a decode last filled a page.
    pub(super) fn store_filled(&mut self, id: RequestId, request: &Request, tokens: u32) {
        self.store(id, request, tokens, self.holds[id.index()].filled_at);
    }

    /// Moves the full pages of an ended request into the tree. They count as used now, unless a decode filled the last
    /// of them earlier.
    pub(super) fn store_ended(&mut self, id: RequestId, request: &Request, tokens: u32) {
        let filled_at = self.holds[id.index()].filled_at;
        let fills_now = filled_at == 0 || tokens.is_multiple_of(self.page_size_tokens);
        let used_at = if fills_now { self.radix.tick(1) } else { filled_at };
        self.store(id, request, tokens, used_at);
    }

    pub(super) fn store_late(&mut self, id: RequestId, tokens: u32) {
        self.holds[id.index()].late_tokens = tokens;
    }

    /// Offers the tokens of a request to the cache, because another engine has received them.
    pub(super) fn store_what_is_late(&mut self, id: RequestId, request: &Request) {
        let late_tokens = self.holds[id.index()].late_tokens;
        if late_tokens > 0 {
            self.store_now(id, request, late_tokens);
        }
    }

    /// Records that a decode has filled a page of a request.
    #[inline]
    pub(super) fn note_filled(&mut self, id: RequestId) {
        self.holds[id.index()].filled_at = self.radix.tick(1);
    }

    /// Like [`Self::note_filled`], at the time `at` of the tree's clock.
    pub(super) fn note_filled_at(&mut self, id: RequestId, at: u64) {
        self.holds[id.index()].filled_at = at;
    }

    pub(super) fn tick(&mut self, uses: u64) -> u64 {
        self.radix.tick(uses)
    }

    pub(super) fn is_stalled(&self, id: RequestId) -> bool {
        self.holds[id.index()].is_stalled
    }

    pub(super) fn set_stalled(&mut self, id: RequestId, is_stalled: bool) {
        self.holds[id.index()].is_stalled = is_stalled;
    }

    /// Finds the cached part of a request's first `end` tokens that follows its own pages.
    pub(super) fn lookup(&self, id: RequestId, request: &mut Request, end: u32) -> Hit {
        if !self.is_caching {
            return Hit::default();
        }
        request.ensure_hashed(self.page_size_tokens);
        if request.flags.has(Flags::SKIPS_LOOKUP) {
            return Hit::default();
        }
        let hold = self.holds[id.index()];
        let usable = request.block_hashes.len().min((end / self.page_size_tokens) as usize);
        self.radix.find(hold.node, &request.block_hashes[hold.tree_pages as usize..usable])
    }

    pub(super) fn take_hit(&mut self, id: RequestId, request: &Request, hit: Hit) {
        if hit.pages > 0 {
            let hold = &mut self.holds[id.index()];
            let from = hold.tree_pages as usize;
            hold.tree_pages += hit.pages;
            hold.node = self.radix.take(hold.node, &request.block_hashes[from..hold.tree_pages as usize]);
        }
    }

    /// Counts the cached pages of a request that was not admitted as used.
    pub(super) fn count_as_used(&mut self, request: &Request, hit: Hit) {
        if hit.pages > 0 {
            let end = self.radix.take(ROOT, &request.block_hashes[..hit.pages as usize]);
            self.radix.unlock(end);
        }
    }

    /// Unlocks a request's pages in the tree and frees its other pages.
    pub(super) fn release(&mut self, id: RequestId) {
        let hold = std::mem::replace(&mut self.holds[id.index()], Hold::NONE);
        self.radix.unlock(hold.node);
        self.num_free += hold.own_pages;
    }

    pub(super) fn cached_prefix(&self, hashes: &[BlockHash]) -> u32 {
        self.radix.find(ROOT, hashes).pages
    }

    pub(super) fn record_events(&mut self, on: bool) {
        self.radix.events = on.then(KvEventLog::default);
    }

    /// Events recorded since they were last cleared. None while recording is off.
    pub(super) fn events(&self) -> Option<&KvEventLog> {
        self.radix.events.as_ref()
    }

    pub(super) fn clear_events(&mut self) {
        if let Some(events) = &mut self.radix.events {
            events.clear();
        }
    }
}
