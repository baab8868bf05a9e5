//! One router's knowledge of the requests in progress.
//!
//! A router books the requests that it sends to an engine, and removes them when they end. Other routers' changes
//! reach its books later, or never.

use super::active::{ActivePrompts, Chain};
use crate::config::KvRouterConfig;

#[derive(Clone, Debug)]
pub(super) enum Entry {
    /// A request was sent to an engine that must compute `prefill_tokens` of its prompt.
    Sent { request: u64, worker: u32, prefill_tokens: u64, chain: Chain },
    /// The first token of a request has arrived.
    Prefilled { request: u64 },
    /// The output of a request fills `blocks` blocks.
    Generated { request: u64, blocks: u64 },
    /// The request or its engine has ended.
    Over { request: u64 },
}

#[derive(Debug, Default)]
pub(super) struct Account {
    /// Outstanding prompt tokens.
    pub(super) prefill_tokens: u64,
    pub(super) requests: u64,
    /// Prompts in progress whose equal blocks count once.
    active: ActivePrompts,
    /// Number of blocks in progress that count once per request: outputs, and prompts if equal blocks do not count
    /// once.
    counted_blocks: u64,
}

#[derive(Debug)]
struct Request {
    worker: u32,
    prefill_tokens: u64,
    output_blocks: u64,
    chain: Chain,
}

#[derive(Debug, Default)]
pub(super) struct Books {
    accounts: Vec<Account>,
    /// Requests by number.
    requests: Vec<Option<Box<Request>>>,
    tracks_blocks: bool,
    tracks_prefill: bool,
    counts_once: bool,
}

impl Books {
    pub(super) fn new(config: &KvRouterConfig, workers: u32) -> Self {
        Self {
            accounts: (0..workers).map(|_| Account::default()).collect(),
            requests: Vec::new(),
            tracks_blocks: config.track_active_blocks,
            tracks_prefill: config.track_prefill_tokens,
            counts_once: config.assume_kv_reuse,
        }
    }

    pub(super) fn account(&self, worker: u32) -> &Account {
        &self.accounts[worker as usize]
    }

    /// Number of blocks in use on `worker` after adding a prompt.
    pub(super) fn blocks_with(&self, worker: u32, chain: &[u64]) -> u64 {
        if !self.tracks_blocks {
            return 0;
        }
        let account = self.account(worker);
        let shared = if self.counts_once { account.active.shared_blocks(chain) } else { 0 };
        account.active.distinct_blocks() + account.counted_blocks + (chain.len() - shared) as u64
    }

    pub(super) fn book(&mut self, entry: Entry) {
        match entry {
            Entry::Sent { request, worker, prefill_tokens, chain } => self.send(request, worker, prefill_tokens, chain),
            Entry::Prefilled { request } => {
                if let Some(own) = self.request(request) {
                    let (worker, tokens) = (own.worker, std::mem::take(&mut own.prefill_tokens));
                    self.accounts[worker as usize].prefill_tokens -= tokens;
                }
            }
            Entry::Generated { request, blocks } => {
                if let Some(own) = self.request(request) {
                    // The number can decrease: if the engine crashed, this router learns late of outputs that
                    // another router generated there.
                    let (worker, before) = (own.worker, std::mem::replace(&mut own.output_blocks, blocks));
                    let account = &mut self.accounts[worker as usize];
                    account.counted_blocks = account.counted_blocks + blocks - before;
                }
            }
            Entry::Over { request } => self.end(request),
        }
    }

    fn request(&mut self, request: u64) -> Option<&mut Request> {
        self.requests.get_mut(request as usize)?.as_deref_mut()
    }

    fn send(&mut self, request: u64, worker: u32, prefill_tokens: u64, chain: Chain) {
        // A request is sent again if its engine crashed.
        self.end(request);
        let prefill_tokens = if self.tracks_prefill { prefill_tokens } else { 0 };
        let account = &mut self.accounts[worker as usize];
        account.requests += 1;
        account.prefill_tokens += prefill_tokens;
        match (self.tracks_blocks, self.counts_once) {
            (true, true) => account.active.insert(chain.clone(), request),
            (true, false) => account.counted_blocks += chain.len() as u64,
            (false, _) => {}
        }
        if self.requests.len() <= request as usize {
            self.requests.resize_with(request as usize + 1, || None);
        }
        self.requests[request as usize] = Some(Box::new(Request { worker, prefill_tokens, output_blocks: 0, chain }));
    }

    fn end(&mut self, request: u64) {
        let Some(own) = self.requests.get_mut(request as usize).and_then(Option::take) else { return };
        let account = &mut self.accounts[own.worker as usize];
        account.requests -= 1;
        account.prefill_tokens -= own.prefill_tokens;
        account.counted_blocks -= own.output_blocks;
        match (self.tracks_blocks, self.counts_once) {
            (true, true) => account.active.remove(&own.chain, request),
            (true, false) => account.counted_blocks -= own.chain.len() as u64,
            (false, _) => {}
        }
    }
}
