use super::*;

/// The latest preferences of a policy, by slot. Checks that none is given twice in a call.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) admission: BTreeMap<u32, i64>,
    pub(crate) eviction: BTreeMap<u32, i64>,
    pub(crate) caps: BTreeMap<u32, u32>,
    in_call: Vec<(u8, u32)>,
}

impl Said {
    fn once(&mut self, kind: u8, slot: u32) {
        assert!(!self.in_call.contains(&(kind, slot)), "kind {kind} was said twice of slot {slot}");
        self.in_call.push((kind, slot));
    }

    fn decide(&mut self, policy: &mut impl Algorithm) {
        self.in_call.clear();
        policy.decide(self);
    }

    fn order(&self, slots: &[u32]) -> Vec<u32> {
        let mut order: Vec<u32> = slots.to_vec();
        order.sort_by_key(|slot| (self.admission[slot], *slot));
        order
    }
}

impl PreferenceSink for Said {
    fn admission_rank(&mut self, slot: u32, rank: i64) {
        self.once(0, slot);
        self.admission.insert(slot, rank);
    }

    fn eviction_rank(&mut self, slot: u32, rank: i64) {
        self.once(1, slot);
        self.eviction.insert(slot, rank);
    }

    fn chunk_cap(&mut self, slot: u32, tokens: u32) {
        self.once(2, slot);
        self.caps.insert(slot, tokens);
    }
}

fn policy(weights: &[(u64, f64)]) -> FairShare {
    let weights = weights.iter().copied().collect();
    FairShareConfig { weights, ..FairShareConfig::default() }.build().expect("valid")
}

fn arrive(policy: &mut FairShare, slot: u32, tenant: u64, prompt_tokens: u32) {
    policy.arrived(&Arrival { slot, arrival_ns: u64::from(slot), prompt_tokens, tenant });
}

#[test]
fn a_tenant_that_comes_passes_the_queue_of_one_that_was_served() {
    let mut policy = policy(&[]);
    let mut said = Said::default();
    (0..20).for_each(|slot| arrive(&mut policy, slot, 1, 100));
    said.decide(&mut policy);
    assert_eq!(said.order(&[0, 1, 2, 3, 4, 19]), [0, 1, 2, 3, 4, 19], "one tenant is served as it came");
    policy.admitted(0, 0);
    policy.admitted(1, 0);
    arrive(&mut policy, 30, 2, 5_000);
    said.decide(&mut policy);
    assert_eq!(said.order(&[2, 3, 19, 30])[0], 30);
    // Tokens are charged only once.
    policy.admitted(30, 0);
    arrive(&mut policy, 31, 2, 10);
    said.decide(&mut policy);
    assert_eq!(said.order(&[2, 3, 31]), [2, 3, 31]);
}

#[test]
fn nobody_saves_up_while_it_wants_nothing() {
    let mut policy = policy(&[]);
    let mut said = Said::default();
    for slot in 0..100 {
        arrive(&mut policy, slot, 1, 1_000);
        policy.admitted(slot, 0);
    }
    (200..300).for_each(|slot| arrive(&mut policy, slot, 2, 1_000));
    (300..400).for_each(|slot| arrive(&mut policy, slot, 1, 1_000));
    said.decide(&mut policy);
    // Tenant 2 goes first, and then both alternate.
    assert_eq!(said.order(&[200, 201, 300, 301]), [200, 201, 300, 301]);
    policy.admitted(200, 0);
    policy.admitted(201, 0);
    said.decide(&mut policy);
    assert_eq!(said.order(&[202, 300])[0], 300);
}

#[test]
fn tokens_are_in_proportion_to_weights() {
    let mut policy = policy(&[(7, 3.0)]);
    let mut said = Said::default();
    let (numbers, prompt_tokens, output_tokens) = ([7, 8], [90, 300], [200, 10]);
    let mut waiting: Vec<(u32, usize)> = (0..20).map(|slot| (slot, slot as usize % 2)).collect();
    waiting.iter().for_each(|&(slot, tenant)| arrive(&mut policy, slot, numbers[tenant], prompt_tokens[tenant]));
    let mut served = [0u32; 2];
    for next in 20..2_000 {
        said.decide(&mut policy);
        let slots: Vec<u32> = waiting.iter().map(|&(slot, _)| slot).collect();
        let first = said.order(&slots)[0];
        let at = slots.iter().position(|slot| *slot == first).expect("it waits");
        let (_, tenant) = waiting.remove(at);
        policy.admitted(first, 0);
        policy.progressed(first, 1);
        policy.ended(first, output_tokens[tenant]);
        served[tenant] += prompt_tokens[tenant] + output_tokens[tenant];
        arrive(&mut policy, next, numbers[tenant], prompt_tokens[tenant]);
        waiting.push((next, tenant));
    }
    let ratio = f64::from(served[0]) / f64::from(served[1]);
    assert!((2.95..3.05).contains(&ratio), "{served:?}: {ratio}");
}

#[test]
fn a_request_of_the_tenant_furthest_ahead_gives_way() {
    let mut policy = policy(&[]);
    let mut said = Said::default();
    (0..3).for_each(|slot| arrive(&mut policy, slot, 1, 100));
    arrive(&mut policy, 3, 2, 50);
    said.decide(&mut policy);
    (0..4).for_each(|slot| policy.admitted(slot, 0));
    said.decide(&mut policy);
    assert_eq!(said.eviction, BTreeMap::from([(0, 1), (1, 1), (2, 1)]));
    policy.preempted(2);
    policy.progressed(3, 1_000);
    said.decide(&mut policy);
    // The waiting request has no preference.
    assert_eq!(said.eviction, BTreeMap::from([(0, 0), (1, 0), (2, 1), (3, 1)]));
    policy.admitted(2, 0);
    said.decide(&mut policy);
    assert_eq!(said.eviction[&2], 0);
    policy.ended(3, 1_000);
    said.decide(&mut policy);
    assert_eq!(said.eviction[&0], 0, "alone no tenant is ahead");
}

#[test]
fn what_is_computed_again_or_cached_is_not_paid_for() {
    let mut policy = policy(&[]);
    arrive(&mut policy, 0, 1, 100);
    policy.admitted(0, 40);
    policy.progressed(0, 20);
    policy.preempted(0);
    policy.admitted(0, 0);
    policy.ended(0, 30);
    assert_eq!(policy.tenants[0].served, (60 + 30) * 65_536);
}

#[test]
fn caps_are_said_once_of_each_request() {
    let config = FairShareConfig { max_chunk_tokens: Some(256), ..FairShareConfig::default() };
    let mut policy = config.build().expect("valid");
    let mut said = Said::default();
    arrive(&mut policy, 0, 1, 100);
    arrive(&mut policy, 1, 1, 100);
    policy.ended(1, 0);
    arrive(&mut policy, 1, 2, 100);
    said.decide(&mut policy);
    assert_eq!(said.caps, BTreeMap::from([(0, 256), (1, 256)]));
    policy.admitted(0, 0);
    policy.preempted(0);
    said.caps.clear();
    said.decide(&mut policy);
    assert!(said.caps.is_empty());
}

#[test]
fn weights_that_make_no_sense_are_named() {
    let error = |config: FairShareConfig| {
        let error = config.build().expect_err("no sense");
        (error.field(), alloc::string::ToString::to_string(&error))
    };
    let weights = BTreeMap::from([(3, 0.0)]);
    let (field, text) = error(FairShareConfig { weights, ..FairShareConfig::default() });
    assert_eq!(text, "invalid weight of tenant 3 in `weights`: expected 0.01 to 100, got 0");
    assert_eq!(field, "weights");
    let (field, text) = error(FairShareConfig { default_weight: f64::INFINITY, ..FairShareConfig::default() });
    assert!(text.starts_with("invalid `default_weight`: expected"), "{text}");
    assert_eq!(field, "default_weight");
}
