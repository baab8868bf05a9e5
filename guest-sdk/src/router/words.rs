use alloc::format;
use alloc::string::String;

use crate::{Choice, EndedRequest, RoutePhase, RouteRequest, RouterGuest, Workers};

/// Words of an ended request and of a request in the flat lists of the
/// interface.
const ENDED_WORDS: usize = 4;
const REQUEST_WORDS: usize = 10;

/// The word of a request without an adapter.
const NO_LORA: u64 = u64::MAX;

/// The answer that refuses a request.
const SHED: u32 = u32::MAX;

/// Has the guest route the request of the flat lists of the interface.
///
/// # Errors
/// What the guest says, or that the host does not keep to the interface.
pub(crate) fn route<G: RouterGuest>(
    guest: &mut G,
    now_ns: u64,
    ended: &[u64],
    request: &[u64],
    blocks: &[u64],
    workers: &[u64],
) -> Result<u32, String> {
    let (ended, rest) = ended.as_chunks::<ENDED_WORDS>();
    if !rest.is_empty() {
        return Err(String::from("the host did not send a whole number of ended requests"));
    }
    let words: &[u64; REQUEST_WORDS] = request
        .try_into()
        .map_err(|_| format!("the host sent {} words for a request, which has {REQUEST_WORDS}", request.len()))?;
    let Some(shown) = Workers::of_words(workers) else {
        return Err(format!("the host sent {} words, which is not a whole number of engines", workers.len()));
    };
    for words in ended {
        guest.ended(&EndedRequest {
            request: words[0],
            worker: number(words[1])?,
            output_tokens: number(words[2])?,
            failed: words[3] != 0,
        });
    }
    let request = RouteRequest {
        now_ns,
        request: words[0],
        prompt_tokens: number(words[1])?,
        max_tokens: number(words[2])?,
        priority: i32::try_from(words[3].cast_signed())
            .map_err(|_| format!("the host sent the priority {}", words[3].cast_signed()))?,
        lora: if words[4] == NO_LORA { None } else { Some(number(words[4])?) },
        tenant: words[5],
        session: words[6],
        block_size_tokens: number(words[7])?,
        phase: match words[8] {
            0 => RoutePhase::Whole,
            1 => RoutePhase::Prefill,
            2 => RoutePhase::Decode,
            phase => return Err(format!("the host sent the unknown phase {phase}")),
        },
        may_shed: words[9] != 0,
        blocks,
    };
    match guest.route(&request, shown)? {
        Choice::Worker(worker) => Ok(worker),
        Choice::Shed => Ok(SHED),
    }
}

fn number(word: u64) -> Result<u32, String> {
    u32::try_from(word).map_err(|_| format!("the host sent {word} where a number has 32 bits"))
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::WorkerLoad;

    /// Remembers its arguments, and answers as it is set.
    struct Checking {
        answer: Result<Choice, String>,
        ended: Vec<EndedRequest>,
    }

    impl RouterGuest for Checking {
        type Config = ();

        fn configure(_config: (), _seed: u64) -> Result<Self, String> {
            Ok(Self { answer: Ok(Choice::Shed), ended: Vec::new() })
        }

        fn route(&mut self, request: &RouteRequest<'_>, workers: Workers<'_>) -> Result<Choice, String> {
            assert_eq!(
                *request,
                RouteRequest {
                    now_ns: 99,
                    request: 5,
                    prompt_tokens: 40,
                    max_tokens: 20,
                    priority: -1,
                    lora: None,
                    tenant: 3,
                    session: 1 << 50,
                    block_size_tokens: 16,
                    phase: RoutePhase::Decode,
                    may_shed: false,
                    blocks: &[11, 12],
                }
            );
            let second = WorkerLoad {
                worker: 4,
                running_requests: 1,
                waiting_requests: 2,
                max_num_seqs: 3,
                active_blocks: 5,
                total_blocks: 6,
                outstanding_prefill_tokens: 1 << 40,
                overlap_blocks: 7,
            };
            assert_eq!((workers.len(), workers.is_empty(), workers.get(1)), (2, false, Some(second)));
            assert_eq!(workers.iter().map(|load| load.worker).collect::<Vec<_>>(), [0, 4]);
            self.answer.clone()
        }

        fn ended(&mut self, request: &EndedRequest) {
            self.ended.push(*request);
        }
    }

    const REQUEST: [u64; 10] = [5, 40, 20, u64::MAX, NO_LORA, 3, 1 << 50, 16, 2, 0];
    const WORKERS: [u64; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 2, 3, 5, 6, 1 << 40, 7];

    #[test]
    fn words_are_read_in_order_and_choices_written() {
        let mut guest = Checking { answer: Ok(Choice::Worker(4)), ended: Vec::new() };
        let ended = [1, 4, 9, 0, 2, 0, 0, 1];
        assert_eq!(route(&mut guest, 99, &ended, &REQUEST, &[11, 12], &WORKERS), Ok(4));
        let expected = [
            EndedRequest { request: 1, worker: 4, output_tokens: 9, failed: false },
            EndedRequest { request: 2, worker: 0, output_tokens: 0, failed: true },
        ];
        assert_eq!(guest.ended, expected);
        guest.answer = Ok(Choice::Shed);
        assert_eq!(route(&mut guest, 99, &[], &REQUEST, &[11, 12], &WORKERS), Ok(u32::MAX));
        guest.answer = Err("no".into());
        assert_eq!(route(&mut guest, 99, &[], &REQUEST, &[11, 12], &WORKERS), Err("no".into()));
    }

    #[test]
    fn a_host_that_does_not_keep_to_the_interface_is_reported() {
        let changed = |index: usize, word: u64| {
            let mut words = REQUEST.to_vec();
            words[index] = word;
            words
        };
        let all = WORKERS.as_slice();
        let cases = [
            (&[1, 2][..], REQUEST.to_vec(), all, "whole number of ended requests"),
            (&[], vec![1, 2, 3], all, "3 words for a request, which has 10"),
            (&[], REQUEST.to_vec(), &WORKERS[..9], "9 words, which is not a whole number of engines"),
            (&[], changed(8, 3), all, "unknown phase 3"),
            (&[], changed(3, 1 << 40), all, "the priority 1099511627776"),
            (&[], changed(1, 1 << 32), all, "sent 4294967296 where"),
        ];
        for (ended, request, workers, expected) in cases {
            let mut guest = Checking { answer: Ok(Choice::Shed), ended: Vec::new() };
            let error = route(&mut guest, 99, ended, &request, &[11, 12], workers).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
