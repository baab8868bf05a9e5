use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use vcr_policy::tokens::{TokenRequest, TokenWant};

use crate::TokenGuest;

/// A token source and its requests by slot.
pub struct TokenTable<G: TokenGuest> {
    guest: G,
    requests: Vec<Option<Request<G::Request>>>,
}

/// Callbacks from a token source to the host.
pub trait Remarks {
    /// Reports that the request in `slot` cannot be served.
    fn refuse(&mut self, slot: u32, reason: &str);

    /// Reports that from this step on `count` drafts of the request in `slot` are accepted.
    fn accept(&mut self, slot: u32, count: u32);
}

enum Request<R> {
    Running {
        kept: R,
        /// Number of tokens returned so far.
        given: u32,
        /// Number of accepted drafts last reported to the host.
        accepted: Option<u32>,
    },
    /// The host may still ask for tokens until it ends the request; it discards them.
    Refused,
}

impl<G: TokenGuest> TokenTable<G> {
    /// Makes a table without requests.
    #[must_use]
    pub fn new(guest: G) -> Self {
        Self { guest, requests: Vec::new() }
    }

    /// Returns the tokens of one step. Reports to `host` each request that the guest cannot start, and changes of the
    /// accepted drafts.
    ///
    /// # Errors
    /// An error of `next_token`, or that the host violates the interface.
    pub fn step<'a>(
        &mut self,
        started: impl IntoIterator<Item = TokenRequest<'a>>,
        ended: &[u32],
        wants: impl ExactSizeIterator<Item = TokenWant> + Clone,
        host: &mut impl Remarks,
    ) -> Result<Vec<u32>, String> {
        for &slot in ended {
            let ended = self.requests.get_mut(slot as usize).and_then(Option::take);
            ended.ok_or_else(|| format!("the host ended slot {slot}, where no request is"))?;
        }
        for request in started {
            self.start(&request, host)?;
        }
        let mut tokens = Vec::with_capacity(wants.clone().map(|want| want.count as usize).sum());
        for want in wants {
            self.give(want, &mut tokens, host)?;
        }
        Ok(tokens)
    }

    fn start(&mut self, request: &TokenRequest<'_>, host: &mut impl Remarks) -> Result<(), String> {
        let slot = request.slot as usize;
        if self.requests.len() <= slot {
            self.requests.resize_with(slot + 1, || None);
        }
        if self.requests[slot].is_some() {
            return Err(format!("the host started a request in slot {slot}, where there is one"));
        }
        self.requests[slot] = Some(match self.guest.start(request) {
            Ok(kept) => Request::Running { kept, given: 0, accepted: None },
            Err(reason) => {
                host.refuse(request.slot, &reason);
                Request::Refused
            }
        });
        Ok(())
    }

    fn give(
        &mut self,
        TokenWant { slot, first_index, count }: TokenWant,
        tokens: &mut Vec<u32>,
        host: &mut impl Remarks,
    ) -> Result<(), String> {
        let (kept, given, accepted) = match self.requests.get_mut(slot as usize) {
            Some(Some(Request::Running { kept, given, accepted })) => (kept, given, accepted),
            Some(Some(Request::Refused)) => {
                tokens.resize(tokens.len() + count as usize, 0);
                return Ok(());
            }
            Some(None) | None => return Err(format!("the host wants tokens for slot {slot}, where no request is")),
        };
        if first_index != *given {
            return Err(format!("the host wants tokens from {first_index} on for slot {slot}, which has {given}"));
        }
        for _ in 0..count {
            tokens.push(self.guest.next_token(kept, *given)?);
            *given += 1;
        }
        if let Some(count) = self.guest.accepted_drafts(kept) {
            // The host remembers the number, so only changes are reported.
            if accepted.replace(count) != Some(count) {
                host.accept(slot, count);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;
    use alloc::vec;

    use super::*;

    /// The test source refuses requests with this seed.
    const REFUSED_SEED: u64 = 13;

    /// Returns the sum of the lengths of the prompt, the text and the stop tokens, and the index.
    struct Sums;

    impl TokenGuest for Sums {
        type Config = ();
        type Request = u32;

        fn configure(_config: (), _seed: u64) -> Result<Self, String> {
            Ok(Self)
        }

        fn start(&mut self, request: &TokenRequest<'_>) -> Result<u32, String> {
            if request.seed == REFUSED_SEED {
                return Err("the seed is 13".into());
            }
            let lengths = request.prompt.len() + 10 * request.stop_tokens.len() + request.structured_output.len();
            Ok(lengths as u32 + request.eos_token.unwrap_or(0))
        }

        fn next_token(&mut self, request: &mut u32, index: u32) -> Result<u32, String> {
            if index == 9 { Err("nine is too many".into()) } else { Ok(*request * 100 + index) }
        }
    }

    /// Records the reports.
    #[derive(Default)]
    struct Heard {
        refused: Vec<(u32, String)>,
        accepted: Vec<(u32, u32)>,
    }

    impl Remarks for Heard {
        fn refuse(&mut self, slot: u32, reason: &str) {
            self.refused.push((slot, reason.to_owned()));
        }

        fn accept(&mut self, slot: u32, count: u32) {
            self.accepted.push((slot, count));
        }
    }

    fn want(slot: u32, first_index: u32, count: u32) -> TokenWant {
        TokenWant { slot, first_index, count }
    }

    fn step(
        table: &mut TokenTable<Sums>,
        started: &[TokenRequest<'_>],
        ended: &[u32],
        wants: &[TokenWant],
    ) -> Result<Vec<u32>, String> {
        let mut heard = Heard::default();
        let answer = table.step(started.iter().copied(), ended, wants.iter().copied(), &mut heard);
        assert_eq!((heard.refused, heard.accepted), (vec![], vec![]));
        answer
    }

    const PLAIN: TokenRequest<'_> = TokenRequest {
        slot: 0,
        seed: 7,
        prompt: &[0, 0, 0],
        max_tokens: 100,
        min_tokens: 0,
        eos_token: None,
        stop_tokens: &[],
        structured_output: "",
        thinking_token_budget: None,
    };
    const FULL: TokenRequest<'_> = TokenRequest {
        slot: 1,
        prompt: &[0],
        eos_token: Some(5),
        stop_tokens: &[0, 0],
        structured_output: "{}",
        ..PLAIN
    };
    const BARE: TokenRequest<'_> = TokenRequest { slot: 1, prompt: &[0], ..PLAIN };

    #[test]
    fn requests_start_get_tokens_and_end() {
        let mut table = TokenTable::new(Sums);
        let wants = [want(1, 0, 2), want(0, 0, 1)];
        assert_eq!(step(&mut table, &[PLAIN, FULL], &[], &wants), Ok(vec![2_800, 2_801, 300]));
        assert_eq!(step(&mut table, &[], &[], &[want(1, 2, 1)]), Ok(vec![2_802]));
        assert_eq!(step(&mut table, &[BARE], &[1], &[want(1, 0, 1)]), Ok(vec![100]), "its slot goes to another");
        assert_eq!(step(&mut table, &[], &[0, 1], &[]), Ok(vec![]));
    }

    #[test]
    fn what_the_guest_says_is_passed_on() {
        let mut table = TokenTable::new(Sums);
        assert_eq!(step(&mut table, &[PLAIN], &[], &[want(0, 0, 10)]), Err("nine is too many".into()));
    }

    #[test]
    fn a_request_that_cannot_start_is_refused_and_the_others_go_on() {
        let mut table = TokenTable::new(Sums);
        let unfit = TokenRequest { seed: REFUSED_SEED, prompt: &[], ..BARE };
        let mut heard = Heard::default();
        let mut step = |started: &[TokenRequest<'_>], ended: &[u32], wants: &[TokenWant]| {
            table.step(started.iter().copied(), ended, wants.iter().copied(), &mut heard)
        };
        assert_eq!(step(&[PLAIN, unfit], &[], &[want(1, 0, 2), want(0, 0, 1)]), Ok(vec![0, 0, 300]));
        let wants = [want(1, 5, 1), want(0, 1, 1)];
        assert_eq!(step(&[], &[], &wants), Ok(vec![0, 301]), "whatever is wanted of it");
        assert_eq!(step(&[BARE], &[1], &[want(1, 0, 1)]), Ok(vec![100]), "its slot goes to another");
        assert_eq!(heard.refused, [(1, "the seed is 13".to_owned())]);
    }

    /// Accepted drafts by number of tokens so far: none, 2, 2, 1, none.
    struct Accepting;

    impl TokenGuest for Accepting {
        type Config = ();
        type Request = u32;

        fn configure(_config: (), _seed: u64) -> Result<Self, String> {
            Ok(Self)
        }

        fn start(&mut self, _request: &TokenRequest<'_>) -> Result<u32, String> {
            Ok(0)
        }

        fn next_token(&mut self, given: &mut u32, index: u32) -> Result<u32, String> {
            *given = index + 1;
            Ok(0)
        }

        fn accepted_drafts(&mut self, given: &mut u32) -> Option<u32> {
            [None, Some(2), Some(2), Some(1), None][*given as usize - 1]
        }
    }

    #[test]
    fn the_host_hears_of_accepted_drafts_that_change() {
        let mut table = TokenTable::new(Accepting);
        let mut heard = Heard::default();
        let mut accepted = |started: &[TokenRequest<'_>], ended: &[u32], wants: &[TokenWant]| {
            table.step(started.iter().copied(), ended, wants.iter().copied(), &mut heard).expect("it answers");
            core::mem::take(&mut heard.accepted)
        };
        assert_eq!(accepted(&[PLAIN], &[], &[want(0, 0, 1)]), []);
        assert_eq!(accepted(&[], &[], &[want(0, 1, 1)]), [(0, 2)]);
        assert_eq!(accepted(&[], &[], &[want(0, 2, 1)]), [], "the host knows");
        assert_eq!(accepted(&[], &[], &[want(0, 3, 1)]), [(0, 1)]);
        assert_eq!(accepted(&[], &[], &[want(0, 4, 1)]), []);
        assert_eq!(
            accepted(&[PLAIN], &[0], &[want(0, 0, 2)]),
            [(0, 2)],
            "another request has the slot, and is asked once a want"
        );
    }

    #[test]
    fn a_host_that_does_not_keep_to_the_interface_is_reported() {
        type Sent<'a> = (&'a [TokenRequest<'a>], &'a [u32], &'a [TokenWant]);
        let cases: &[(Sent<'_>, &str)] = &[
            ((&[], &[5], &[]), "ended slot 5"),
            ((&[PLAIN], &[], &[]), "started a request in slot 0, where there is one"),
            ((&[], &[], &[want(4, 0, 1)]), "wants tokens for slot 4"),
            ((&[], &[], &[want(0, 3, 1)]), "wants tokens from 3 on for slot 0, which has 0"),
        ];
        for ((started, ended, wants), expected) in cases {
            let mut table = TokenTable::new(Sums);
            step(&mut table, &[PLAIN], &[], &[]).expect("it starts");
            let error = step(&mut table, started, ended, wants).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
