use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{PolicyBatch, PolicyEvent, PolicyGuest, Preference, Progress};

/// Words of an event, of a running request and of a preference in the flat lists
/// of the interface.
const EVENT_WORDS: usize = 8;
const PROGRESS_WORDS: usize = 3;
const PREFERENCE_WORDS: usize = 3;

/// The word of a request without an adapter, and that of no cap.
const NONE: u64 = u64::MAX;

/// A policy with the lists of its calls, kept so that most calls allocate
/// nothing but their answer.
pub struct Policy<G> {
    guest: G,
    events: Vec<PolicyEvent>,
    progress: Vec<Progress>,
    preferences: Vec<Preference>,
}

/// The numbers of a call, as those of [`PolicyBatch`].
#[allow(missing_docs, reason = "they are those of the batch")]
#[derive(Clone, Copy, Debug, Default)]
pub struct PolicyNumbers {
    pub now_ns: u64,
    pub budget_tokens: u32,
    pub running_slots: u32,
    pub free_blocks: u32,
    pub total_blocks: u32,
}

impl<G: PolicyGuest> Policy<G> {
    /// A policy before its first call.
    #[must_use]
    pub fn new(guest: G) -> Self {
        Self { guest, events: Vec::new(), progress: Vec::new(), preferences: Vec::new() }
    }

    /// Has the guest decide upon the flat lists of the interface.
    ///
    /// # Errors
    /// What the guest says, or that the host does not keep to the interface.
    pub fn decide(&mut self, numbers: PolicyNumbers, events: &[u64], progress: &[u32]) -> Result<Vec<u64>, String> {
        let (event_words, rest) = events.as_chunks::<EVENT_WORDS>();
        let (progress_words, more) = progress.as_chunks::<PROGRESS_WORDS>();
        if !rest.is_empty() || !more.is_empty() {
            let (events, progress) = (events.len(), progress.len());
            return Err(format!("the host sent {events} and {progress} words, which is not a whole number of events"));
        }
        self.events.clear();
        for words in event_words {
            self.events.push(event(words)?);
        }
        self.progress.clear();
        self.progress.extend(progress_words.iter().map(|&[slot, computed_tokens, output_tokens]| Progress {
            slot,
            computed_tokens,
            output_tokens,
        }));
        let PolicyNumbers { now_ns, budget_tokens, running_slots, free_blocks, total_blocks } = numbers;
        let (events, progress) = (&*self.events, &*self.progress);
        let batch = PolicyBatch { now_ns, budget_tokens, running_slots, free_blocks, total_blocks, events, progress };
        self.preferences.clear();
        self.guest.decide(&batch, &mut self.preferences)?;
        let mut answer = Vec::with_capacity(self.preferences.len() * PREFERENCE_WORDS);
        self.preferences.iter().for_each(|preference| answer.extend(words_of(preference)));
        Ok(answer)
    }
}

fn event(words: &[u64; EVENT_WORDS]) -> Result<PolicyEvent, String> {
    let number = |index: usize| {
        u32::try_from(words[index]).map_err(|_| format!("the host sent {} in word {index} of an event", words[index]))
    };
    let slot = number(1)?;
    Ok(match words[0] {
        0 => PolicyEvent::Arrived {
            slot,
            arrival_ns: words[2],
            prompt_tokens: number(3)?,
            max_tokens: number(4)?,
            priority: i32::try_from(words[5].cast_signed())
                .map_err(|_| format!("the host sent the priority {}", words[5].cast_signed()))?,
            lora: if words[6] == NONE { None } else { Some(number(6)?) },
            tenant: words[7],
        },
        1 => PolicyEvent::Admitted { slot, cached_tokens: number(2)? },
        2 => PolicyEvent::Preempted { slot },
        3 => PolicyEvent::Ended { slot, computed_tokens: number(2)?, output_tokens: number(3)? },
        kind => return Err(format!("the host sent an event of the unknown kind {kind}")),
    })
}

fn words_of(preference: &Preference) -> [u64; PREFERENCE_WORDS] {
    match *preference {
        Preference::AdmissionRank { slot, rank } => [0, slot.into(), rank.cast_unsigned()],
        Preference::EvictionRank { slot, rank } => [1, slot.into(), rank.cast_unsigned()],
        Preference::ChunkCap { slot, tokens } => [2, slot.into(), tokens.map_or(NONE, u64::from)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expects a certain batch and answers preferences of all kinds.
    struct Checking;

    const EVENTS: [PolicyEvent; 4] = [
        PolicyEvent::Arrived {
            slot: 7,
            arrival_ns: 1 << 40,
            prompt_tokens: 10,
            max_tokens: u32::MAX,
            priority: -2,
            lora: None,
            tenant: u64::MAX,
        },
        PolicyEvent::Admitted { slot: 7, cached_tokens: 16 },
        PolicyEvent::Preempted { slot: 7 },
        PolicyEvent::Ended { slot: 6, computed_tokens: 30, output_tokens: 20 },
    ];

    impl PolicyGuest for Checking {
        type Config = ();

        fn configure(_config: (), _seed: u64) -> Result<Self, String> {
            Ok(Self)
        }

        fn decide(&mut self, batch: &PolicyBatch<'_>, preferences: &mut Vec<Preference>) -> Result<(), String> {
            let PolicyBatch { now_ns, budget_tokens, running_slots, free_blocks, total_blocks, events, progress } =
                *batch;
            assert_eq!((now_ns, budget_tokens, running_slots, free_blocks, total_blocks), (9, 8, 7, 6, 5));
            assert_eq!(events, EVENTS);
            assert_eq!(progress, [Progress { slot: 3, computed_tokens: 4, output_tokens: 2 }]);
            preferences.extend([
                Preference::AdmissionRank { slot: 7, rank: -1 },
                Preference::EvictionRank { slot: 3, rank: i64::MIN },
                Preference::ChunkCap { slot: 7, tokens: Some(256) },
                Preference::ChunkCap { slot: 3, tokens: None },
            ]);
            Ok(())
        }
    }

    const NUMBERS: PolicyNumbers =
        PolicyNumbers { now_ns: 9, budget_tokens: 8, running_slots: 7, free_blocks: 6, total_blocks: 5 };

    #[test]
    fn words_are_read_and_written_in_order() {
        let (no_lora, minus_two) = (u64::MAX, (-2i64).cast_unsigned());
        let events = [
            [0, 7, 1 << 40, 10, u64::from(u32::MAX), minus_two, no_lora, u64::MAX],
            [1, 7, 16, 0, 0, 0, 0, 0],
            [2, 7, 0, 0, 0, 0, 0, 0],
            [3, 6, 30, 20, 0, 0, 0, 0],
        ];
        let answer = Policy::new(Checking).decide(NUMBERS, &events.concat(), &[3, 4, 2]).expect("it answers");
        let expected = [[0, 7, u64::MAX], [1, 3, 1 << 63], [2, 7, 256], [2, 3, u64::MAX]];
        assert_eq!(answer, expected.concat());
    }

    #[test]
    fn a_host_that_does_not_keep_to_the_interface_is_reported() {
        let cases: &[(&[u64], &[u32], &str)] = &[
            (&[1, 2, 3], &[], "3 and 0 words, which is not a whole number of events"),
            (&[], &[1], "0 and 1 words"),
            (&[9, 0, 0, 0, 0, 0, 0, 0], &[], "unknown kind 9"),
            (&[2, 1 << 32, 0, 0, 0, 0, 0, 0], &[], "sent 4294967296 in word 1"),
            (&[0, 0, 0, 0, 0, 1 << 40, 0, 0], &[], "the priority 1099511627776"),
        ];
        for (events, progress, expected) in cases {
            let error = Policy::new(Checking).decide(NUMBERS, events, progress).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
