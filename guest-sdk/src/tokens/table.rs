use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{TokenGuest, TokenRequest};

/// Words of a request that starts, and of a want.
const REQUEST_WORDS: usize = 8;
const WANT_WORDS: usize = 3;

/// The word of a request that no token ends.
const NO_TOKEN: u64 = u64::MAX;

/// A source as the interface calls it, and its requests by slot.
pub struct TokenTable<G: TokenGuest> {
    guest: G,
    requests: Vec<Option<Request<G::Request>>>,
}

/// The host, as a source remarks on requests to it.
pub trait Remarks {
    /// The request in `slot` cannot be served.
    fn refuse(&mut self, slot: u32, reason: &str);

    /// From this step on `count` drafts of the request in `slot` are accepted.
    fn accept(&mut self, slot: u32, count: u32);
}

enum Request<R> {
    Running {
        kept: R,
        /// Tokens given so far.
        given: u32,
        /// The number of accepted drafts that the host knows.
        accepted: Option<u32>,
    },
    /// Until the host ends it, it may still want tokens, which it throws away.
    Refused,
}

impl<G: TokenGuest> TokenTable<G> {
    /// A source without requests.
    #[must_use]
    pub fn new(guest: G) -> Self {
        Self { guest, requests: Vec::new() }
    }

    /// Returns the tokens of one step from the flat lists of the interface.
    /// `host` hears of each request that the guest cannot start, and of changes of the
    /// drafts that it accepts.
    ///
    /// # Errors
    /// An error of `next_token`, or a host that does not keep to the interface.
    pub fn step(
        &mut self,
        started: &[u64],
        request_tokens: &[u32],
        structured_outputs: &[String],
        ended: &[u32],
        wants: &[u32],
        host: &mut impl Remarks,
    ) -> Result<Vec<u32>, String> {
        for &slot in ended {
            let ended = self.requests.get_mut(slot as usize).and_then(Option::take);
            ended.ok_or_else(|| format!("the host ended slot {slot}, where no request is"))?;
        }
        let (started, rest) = started.as_chunks::<REQUEST_WORDS>();
        whole(rest, "requests")?;
        let mut lists = Lists { tokens: request_tokens, texts: structured_outputs.iter() };
        for words in started {
            self.start(words, &mut lists, host)?;
        }
        if !lists.tokens.is_empty() || lists.texts.next().is_some() {
            return Err(String::from("the host sent tokens or texts that belong to no request"));
        }
        let (wants, rest) = wants.as_chunks::<WANT_WORDS>();
        whole(rest, "wants")?;
        let mut tokens = Vec::with_capacity(wants.iter().map(|[_, _, count]| *count as usize).sum());
        for want in wants {
            self.give(*want, &mut tokens, host)?;
        }
        Ok(tokens)
    }

    fn start(
        &mut self,
        words: &[u64; REQUEST_WORDS],
        lists: &mut Lists<'_>,
        host: &mut impl Remarks,
    ) -> Result<(), String> {
        let [slot, seed, prompt_tokens, max_tokens, min_tokens, eos_token, stop_tokens, text_bytes] = *words;
        let number_of_slot = number(slot)?;
        let slot = number_of_slot as usize;
        let request = TokenRequest {
            seed,
            prompt: lists.tokens(prompt_tokens)?,
            max_tokens: number(max_tokens)?,
            min_tokens: number(min_tokens)?,
            eos_token: if eos_token == NO_TOKEN { None } else { Some(number(eos_token)?) },
            stop_tokens: lists.tokens(stop_tokens)?,
            structured_output: lists.text(text_bytes)?,
        };
        if self.requests.len() <= slot {
            self.requests.resize_with(slot + 1, || None);
        }
        if self.requests[slot].is_some() {
            return Err(format!("the host started a request in slot {slot}, where there is one"));
        }
        self.requests[slot] = Some(match self.guest.start(&request) {
            Ok(kept) => Request::Running { kept, given: 0, accepted: None },
            Err(reason) => {
                host.refuse(number_of_slot, &reason);
                Request::Refused
            }
        });
        Ok(())
    }

    fn give(
        &mut self,
        [slot, first_index, count]: [u32; WANT_WORDS],
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
            // The host keeps the number, so only a change is worth a call.
            if accepted.replace(count) != Some(count) {
                host.accept(slot, count);
            }
        }
        Ok(())
    }
}

/// Rest of the lists from which starting requests take their parts.
struct Lists<'a> {
    tokens: &'a [u32],
    texts: core::slice::Iter<'a, String>,
}

impl<'a> Lists<'a> {
    fn tokens(&mut self, count: u64) -> Result<&'a [u32], String> {
        let split = usize::try_from(count).ok().and_then(|count| self.tokens.split_at_checked(count));
        let (taken, rest) = split.ok_or("the host sent fewer tokens than its requests have")?;
        self.tokens = rest;
        Ok(taken)
    }

    fn text(&mut self, bytes: u64) -> Result<&'a str, String> {
        if bytes == 0 {
            return Ok("");
        }
        let text = self.texts.next().filter(|text| text.len() as u64 == bytes);
        text.map(String::as_str).ok_or_else(|| String::from("the host sent another text than its requests have"))
    }
}

fn whole<T>(rest: &[T], what: &str) -> Result<(), String> {
    if rest.is_empty() { Ok(()) } else { Err(format!("the host sent no whole number of {what}")) }
}

fn number(word: u64) -> Result<u32, String> {
    u32::try_from(word).map_err(|_| format!("the host sent {word} for a number below 2^32"))
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;
    use alloc::vec;

    use super::*;

    /// The seed of requests that are refused.
    const REFUSED_SEED: u64 = 13;

    /// Answers the length of the prompt, of the text and of the stop tokens,
    /// then its index, added up.
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

    /// Keeps remarks as a host would.
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

    fn step(table: &mut TokenTable<Sums>, started: &[u64], ended: &[u32], wants: &[u32]) -> Result<Vec<u32>, String> {
        let tokens: u64 = started.chunks(REQUEST_WORDS).map(|words| words[2] + words[6]).sum();
        let texts: Vec<String> =
            started.chunks(REQUEST_WORDS).filter(|words| words[7] == 2).map(|_| "{}".to_owned()).collect();
        let mut heard = Heard::default();
        let answer = table.step(started, &vec![0; tokens as usize], &texts, ended, wants, &mut heard);
        assert_eq!((heard.refused, heard.accepted), (vec![], vec![]));
        answer
    }

    const PLAIN: [u64; REQUEST_WORDS] = [0, 7, 3, 100, 0, NO_TOKEN, 0, 0];
    const FULL: [u64; REQUEST_WORDS] = [1, 7, 1, 100, 0, 5, 2, 2];

    #[test]
    fn requests_start_get_tokens_and_end() {
        let mut table = TokenTable::new(Sums);
        let both = [PLAIN, FULL].concat();
        assert_eq!(step(&mut table, &both, &[], &[1, 0, 2, 0, 0, 1]), Ok(vec![2_800, 2_801, 300]));
        assert_eq!(step(&mut table, &[], &[], &[1, 2, 1]), Ok(vec![2_802]));
        let again = [1, 7, 1, 100, 0, NO_TOKEN, 0, 0];
        assert_eq!(step(&mut table, &again, &[1], &[1, 0, 1]), Ok(vec![100]), "its slot goes to another");
        assert_eq!(step(&mut table, &[], &[0, 1], &[]), Ok(vec![]));
    }

    #[test]
    fn what_the_guest_says_is_passed_on() {
        let mut table = TokenTable::new(Sums);
        assert_eq!(step(&mut table, &PLAIN, &[], &[0, 0, 10]), Err("nine is too many".into()));
    }

    #[test]
    fn a_request_that_cannot_start_is_refused_and_the_others_go_on() {
        let mut table = TokenTable::new(Sums);
        let unfit = [1, REFUSED_SEED, 0, 100, 0, NO_TOKEN, 0, 0];
        let mut heard = Heard::default();
        let mut step = |started: &[u64], ended: &[u32], wants: &[u32]| {
            let tokens: Vec<u32> = started.chunks(REQUEST_WORDS).flat_map(|words| vec![0; words[2] as usize]).collect();
            table.step(started, &tokens, &[], ended, wants, &mut heard)
        };
        assert_eq!(step(&[PLAIN, unfit].concat(), &[], &[1, 0, 2, 0, 0, 1]), Ok(vec![0, 0, 300]));
        assert_eq!(step(&[], &[], &[1, 5, 1, 0, 1, 1]), Ok(vec![0, 301]), "whatever is wanted of it");
        let again = [1, 7, 1, 100, 0, NO_TOKEN, 0, 0];
        assert_eq!(step(&again, &[1], &[1, 0, 1]), Ok(vec![100]), "its slot goes to another");
        assert_eq!(heard.refused, [(1, "the seed is 13".to_owned())]);
    }

    /// Accepts drafts by the number of tokens given so far: none is said, 2, 2, 1, none is said.
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
        let bare = [0, 7, 0, 100, 0, NO_TOKEN, 0, 0];
        let mut accepted = |started: &[u64], ended: &[u32], wants: &[u32]| {
            table.step(started, &[], &[], ended, wants, &mut heard).expect("it answers");
            core::mem::take(&mut heard.accepted)
        };
        assert_eq!(accepted(&bare, &[], &[0, 0, 1]), []);
        assert_eq!(accepted(&[], &[], &[0, 1, 1]), [(0, 2)]);
        assert_eq!(accepted(&[], &[], &[0, 2, 1]), [], "the host knows");
        assert_eq!(accepted(&[], &[], &[0, 3, 1]), [(0, 1)]);
        assert_eq!(accepted(&[], &[], &[0, 4, 1]), []);
        assert_eq!(
            accepted(&bare, &[0], &[0, 0, 2]),
            [(0, 2)],
            "another request has the slot, and is asked once a want"
        );
    }

    #[test]
    fn a_host_that_does_not_keep_to_the_interface_is_reported() {
        type Sent<'a> = (&'a [u64], &'a [u32], &'a [u32]);
        let cases: &[(Sent<'_>, &str)] = &[
            ((&[], &[5], &[]), "ended slot 5"),
            ((&PLAIN, &[], &[]), "started a request in slot 0, where there is one"),
            ((&[], &[], &[4, 0, 1]), "wants tokens for slot 4"),
            ((&[], &[], &[0, 3, 1]), "wants tokens from 3 on for slot 0, which has 0"),
            ((&[], &[], &[0, 0]), "no whole number of wants"),
            ((&[1, 2], &[], &[]), "no whole number of requests"),
            ((&[1, 0, 0, 1 << 32, 0, 0, 0, 0], &[], &[]), "sent 4294967296 for a number below 2^32"),
            ((&[1, 0, 0, 1, 0, 0, 0, 9], &[], &[]), "another text"),
        ];
        for ((started, ended, wants), expected) in cases {
            let mut table = TokenTable::new(Sums);
            step(&mut table, &PLAIN, &[], &[]).expect("it starts");
            let chunks = started.len() / REQUEST_WORDS * REQUEST_WORDS;
            let error = if chunks == started.len() {
                step(&mut table, started, ended, wants)
            } else {
                table.step(started, &[], &[], ended, wants, &mut Heard::default())
            };
            let error = error.expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
        let mut table = TokenTable::new(Sums);
        let error = table.step(&PLAIN, &[1], &[], &[], &[], &mut Heard::default()).expect_err("two tokens are missing");
        assert!(error.contains("fewer tokens"), "{error}");
        let error = table.step(&[], &[1], &[], &[], &[], &mut Heard::default()).expect_err("one is too many");
        assert!(error.contains("belong to no request"), "{error}");
    }
}
