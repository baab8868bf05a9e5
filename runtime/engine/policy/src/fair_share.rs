//! Distributes tokens to tenants in proportion to their weights.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;

use crate::error::checked_chunk;
use crate::{Algorithm, Arrival, InvalidConfig, PreferenceSink};

/// Virtual time per token at weight 1. It is fine enough for all [`WEIGHTS`], and coarse enough for a trillion
/// tokens at the smallest weight.
const VIRTUAL_PER_TOKEN: f64 = 65_536.0;
const WEIGHTS: (f64, f64) = (0.01, 100.0);
/// Number of waiting requests per tenant that get separate ranks. Each admission changes all ranks of its
/// tenant, so with more ranks, nearly every call would have to repeat them.
const WINDOW: usize = 4;
/// The rank of all other waiting requests, which are thus in the order of arrival.
const BEHIND: i64 = i64::MAX;

/// The settings of [`FairShare`].
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct FairShareConfig {
    /// Weights by tenant, from 0.01 to 100. A tenant of weight 2 gets twice the tokens of a tenant of weight 1, while
    /// both want more than there is.
    pub weights: BTreeMap<u64, f64>,
    /// The weight of all other tenants; 1 by default.
    pub default_weight: f64,
    /// Maximum number of tokens of a request in one step, so that long prompts leave room for others. None means no
    /// limit.
    pub max_chunk_tokens: Option<u32>,
}

impl Default for FairShareConfig {
    fn default() -> Self {
        Self { weights: BTreeMap::new(), default_weight: 1.0, max_chunk_tokens: None }
    }
}

impl FairShareConfig {
    /// Creates the policy of one engine.
    ///
    /// # Errors
    /// The invalid field, its value and the allowed values.
    pub fn build(&self) -> Result<FairShare, InvalidConfig> {
        let mut virtual_per_token = BTreeMap::new();
        for (&tenant, &weight) in &self.weights {
            let checked = virtual_of(weight, "weights", Some(tenant))?;
            virtual_per_token.insert(tenant, checked);
        }
        Ok(FairShare {
            virtual_per_token,
            default_virtual_per_token: virtual_of(self.default_weight, "default_weight", None)?,
            max_chunk_tokens: checked_chunk(self.max_chunk_tokens)?,
            by_number: BTreeMap::new(),
            tenants: Vec::new(),
            requests: Vec::new(),
            now: 0,
            num_arrived: 0,
            leader: None,
            changed: Vec::new(),
            unplaced: Vec::new(),
            admitted: Vec::new(),
        })
    }
}

/// Virtual time per token for `weight`, which comes from the field `field`, and if given, from the entry of `tenant`.
fn virtual_of(weight: f64, field: &'static str, tenant: Option<u64>) -> Result<i64, InvalidConfig> {
    let (least, greatest) = WEIGHTS;
    if !(least..=greatest).contains(&weight) {
        let subject = match tenant {
            Some(tenant) => format!("weight of tenant {tenant} in `{field}`"),
            None => format!("`{field}`"),
        };
        let text = format!("invalid {subject}: expected {least} to {greatest}, got {weight}");
        return Err(InvalidConfig { field, text });
    }
    Ok((VIRTUAL_PER_TOKEN / weight + 0.5) as i64)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Gone,
    Waiting,
    Running,
}

#[derive(Clone, Debug)]
struct Request {
    state: State,
    /// Index of the request's tenant.
    tenant: u32,
    arrival_ns: u64,
    sequence: u64,
    prompt_tokens: u32,
    /// Number of tokens, prompt and output, for which the tenant has been charged or that were free.
    served_tokens: u32,
    place: u32,
    /// The admission rank that was last returned.
    admission_rank: Option<i64>,
    gives_way: bool,
    is_capped: bool,
    in_window: bool,
}

#[derive(Clone, Debug)]
struct Tenant {
    virtual_per_token: i64,
    /// Served tokens in virtual time, including the time that passed while the tenant had no requests.
    served: i64,
    /// Slots of the waiting requests, in the order of arrival.
    waiting: BTreeMap<(u64, u64), u32>,
    /// The first [`WINDOW`] slots of `waiting`.
    window: Vec<u32>,
    running: Vec<u32>,
    is_changed: bool,
}

/// Weighted start-time fair queueing (Goyal, Vin and Cheng, "Start-time fair queueing", 1996) over
/// tokens. A request is charged for its prompt at admission, and then for each output token. Cached tokens are free,
/// and recomputation after a preemption is not charged again.
///
/// Each tenant has a virtual time, which every token advances by the inverse of the tenant's weight. The
/// tenant that is furthest behind goes first. A tenant that returns after an idle time starts at
/// the virtual time of the tenants served last, so idle tenants save up nothing (Sheng et al., "Fairness in
/// serving large language models", 2024, lift counters in the same way). Within a tenant, arrival
/// order decides. When blocks run out, a request of the tenant furthest ahead is preempted.
#[derive(Clone, Debug)]
pub struct FairShare {
    virtual_per_token: BTreeMap<u64, i64>,
    default_virtual_per_token: i64,
    max_chunk_tokens: Option<u32>,
    by_number: BTreeMap<u64, u32>,
    tenants: Vec<Tenant>,
    requests: Vec<Request>,
    /// The virtual time of the latest admission.
    now: i64,
    num_arrived: u64,
    /// The tenant whose requests are preempted first, if there are running requests of several tenants.
    leader: Option<u32>,
    /// Tenants whose ranks may have changed since the last call.
    changed: Vec<u32>,
    /// Slots of requests that have begun to wait since the last call.
    unplaced: Vec<u32>,
    /// Slots of requests that have been admitted since the last call.
    admitted: Vec<u32>,
}

impl FairShare {
    fn tenant_index(&mut self, number: u64) -> u32 {
        if let Some(&index) = self.by_number.get(&number) {
            return index;
        }
        let index = self.tenants.len() as u32;
        let own = self.virtual_per_token.get(&number).copied();
        self.tenants.push(Tenant {
            virtual_per_token: own.unwrap_or(self.default_virtual_per_token),
            served: 0,
            waiting: BTreeMap::new(),
            window: Vec::new(),
            running: Vec::new(),
            is_changed: false,
        });
        self.by_number.insert(number, index);
        index
    }

    fn change(&mut self, tenant: u32) {
        if !core::mem::replace(&mut self.tenants[tenant as usize].is_changed, true) {
            self.changed.push(tenant);
        }
    }

    fn start_waiting(&mut self, slot: u32) {
        let request = &mut self.requests[slot as usize];
        (request.state, request.admission_rank) = (State::Waiting, None);
        let tenant = &mut self.tenants[request.tenant as usize];
        tenant.waiting.insert((request.arrival_ns, request.sequence), slot);
        self.unplaced.push(slot);
    }

    /// Removes a request from its tenant's waiting or running requests.
    fn leave(&mut self, slot: u32) {
        let request = &mut self.requests[slot as usize];
        let tenant = &mut self.tenants[request.tenant as usize];
        match request.state {
            State::Waiting => {
                tenant.waiting.remove(&(request.arrival_ns, request.sequence));
                tenant.window.retain(|other| *other != slot);
                request.in_window = false;
            }
            State::Running => {
                let place = request.place;
                tenant.running.swap_remove(place as usize);
                if let Some(&moved) = tenant.running.get(place as usize) {
                    self.requests[moved as usize].place = place;
                }
            }
            State::Gone => {}
        }
    }

    /// Charges a tenant for a request's tokens, up to `tokens` in total.
    fn serve(&mut self, slot: u32, tokens: u32) {
        let request = &mut self.requests[slot as usize];
        if tokens <= request.served_tokens {
            return;
        }
        let more = i64::from(tokens - request.served_tokens);
        request.served_tokens = tokens;
        let index = request.tenant;
        let tenant = &mut self.tenants[index as usize];
        tenant.served = tenant.served.saturating_add(more.saturating_mul(tenant.virtual_per_token));
        self.change(index);
    }

    /// Reports the ranks of a tenant's first waiting requests.
    fn rank(&mut self, index: u32, say: &mut impl PreferenceSink) {
        let Self { tenants, requests, .. } = self;
        let Tenant { virtual_per_token, served, waiting, window, .. } = &mut tenants[index as usize];
        for &slot in &*window {
            requests[slot as usize].in_window = false;
        }
        let mut rank = *served;
        for &slot in waiting.values().take(WINDOW) {
            let request = &mut requests[slot as usize];
            request.in_window = true;
            set_admission(request, slot, rank, say);
            let costs = i64::from(request.prompt_tokens.saturating_sub(request.served_tokens));
            rank = rank.saturating_add(costs.saturating_mul(*virtual_per_token));
        }
        // These requests were pushed out of the window by an earlier request that was preempted.
        for &slot in &*window {
            let request = &mut requests[slot as usize];
            if !request.in_window {
                set_admission(request, slot, BEHIND, say);
            }
        }
        window.clear();
        window.extend(waiting.values().take(WINDOW));
    }

    /// The tenant furthest ahead, if several tenants have running requests.
    fn furthest_ahead(&self) -> Option<u32> {
        let mut running = (0..).zip(&self.tenants).filter(|(_, tenant)| !tenant.running.is_empty());
        let two = [running.next()?, running.next()?];
        let leader = two.into_iter().chain(running).max_by_key(|(index, tenant)| (tenant.served, *index));
        leader.map(|(index, _)| index)
    }

    /// Reports the ranks of preemption victims, if they have changed.
    fn rank_evictions(&mut self, say: &mut impl PreferenceSink) {
        let leader = self.furthest_ahead();
        let former = core::mem::replace(&mut self.leader, leader);
        let Self { tenants, requests, admitted, .. } = self;
        let mut charge = |slot: u32| {
            let request = &mut requests[slot as usize];
            let gives_way = leader == Some(request.tenant);
            if request.state == State::Running && request.gives_way != gives_way {
                request.gives_way = gives_way;
                say.eviction_rank(slot, gives_way.into());
            }
        };
        if leader != former {
            for index in former.into_iter().chain(leader) {
                tenants[index as usize].running.iter().for_each(|&slot| charge(slot));
            }
        }
        admitted.drain(..).for_each(charge);
    }
}

impl Algorithm for FairShare {
    const NAME: &'static str = "fair-share";

    fn arrived(&mut self, arrival: &Arrival) {
        let index = self.tenant_index(arrival.tenant);
        let tenant = &mut self.tenants[index as usize];
        if tenant.waiting.is_empty() {
            tenant.served = tenant.served.max(self.now);
        }
        let request = Request {
            state: State::Waiting,
            tenant: index,
            arrival_ns: arrival.arrival_ns,
            sequence: self.num_arrived,
            prompt_tokens: arrival.prompt_tokens,
            served_tokens: 0,
            place: 0,
            admission_rank: None,
            gives_way: false,
            is_capped: false,
            in_window: false,
        };
        self.num_arrived += 1;
        let slot = arrival.slot as usize;
        while self.requests.len() <= slot {
            self.requests.push(Request { state: State::Gone, ..request.clone() });
        }
        self.requests[slot] = request;
        self.start_waiting(arrival.slot);
        self.change(index);
    }

    fn admitted(&mut self, slot: u32, cached_tokens: u32) {
        self.leave(slot);
        let request = &mut self.requests[slot as usize];
        request.state = State::Running;
        request.served_tokens = request.served_tokens.max(cached_tokens);
        let (index, prompt_tokens) = (request.tenant, request.prompt_tokens);
        let tenant = &mut self.tenants[index as usize];
        request.place = tenant.running.len() as u32;
        tenant.running.push(slot);
        self.now = self.now.max(tenant.served);
        self.admitted.push(slot);
        self.change(index);
        self.serve(slot, prompt_tokens);
    }

    fn preempted(&mut self, slot: u32) {
        self.leave(slot);
        self.start_waiting(slot);
        self.change(self.requests[slot as usize].tenant);
    }

    fn ended(&mut self, slot: u32, output_tokens: u32) {
        self.progressed(slot, output_tokens);
        self.leave(slot);
        let request = &mut self.requests[slot as usize];
        request.state = State::Gone;
        let tenant = request.tenant;
        self.change(tenant);
    }

    fn progressed(&mut self, slot: u32, output_tokens: u32) {
        let request = &self.requests[slot as usize];
        if output_tokens > 0 {
            self.serve(slot, request.prompt_tokens.saturating_add(output_tokens));
        }
    }

    fn decide(&mut self, say: &mut impl PreferenceSink) {
        let mut changed = core::mem::take(&mut self.changed);
        for index in changed.drain(..) {
            self.tenants[index as usize].is_changed = false;
            self.rank(index, say);
        }
        self.changed = changed;
        let mut unplaced = core::mem::take(&mut self.unplaced);
        for slot in unplaced.drain(..) {
            let request = &mut self.requests[slot as usize];
            if request.state == State::Waiting && !request.in_window {
                set_admission(request, slot, BEHIND, say);
            }
            if let Some(tokens) = self.max_chunk_tokens
                && request.state != State::Gone
                && !core::mem::replace(&mut request.is_capped, true)
            {
                say.chunk_cap(slot, tokens);
            }
        }
        self.unplaced = unplaced;
        self.rank_evictions(say);
    }
}

fn set_admission(request: &mut Request, slot: u32, rank: i64, say: &mut impl PreferenceSink) {
    if request.admission_rank != Some(rank) {
        request.admission_rank = Some(rank);
        say.admission_rank(slot, rank);
    }
}

#[cfg(test)]
pub(crate) mod tests;
