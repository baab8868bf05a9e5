use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{FaultAction, FaultBatch, FaultEvent, FaultGuest};

/// Words of an event, and of an action, in the flat lists of the interface.
const EVENT_WORDS: usize = 6;
const ACTION_WORDS: usize = 3;

/// The word of a request without an adapter.
const NO_LORA: u64 = u64::MAX;

/// Has the guest decide upon the flat lists of the interface.
///
/// # Errors
/// What the guest says, or that the host does not keep to the interface.
pub(crate) fn decide<G: FaultGuest>(
    guest: &mut G,
    now_ns: u64,
    step: u64,
    events: &[u64],
    texts: &[String],
) -> Result<Vec<u64>, String> {
    let (words, rest) = events.as_chunks::<EVENT_WORDS>();
    if !rest.is_empty() {
        return Err(format!("the host sent {} words, which is not a whole number of events", events.len()));
    }
    let mut texts = texts.iter();
    let events = words.iter().map(|words| event(words, &mut texts)).collect::<Result<Vec<_>, _>>()?;
    if texts.next().is_some() {
        return Err(String::from("the host sent texts that belong to no event"));
    }
    let mut actions = Vec::new();
    guest.decide(&FaultBatch { now_ns, step, events: &events }, &mut actions)?;
    Ok(actions.iter().flat_map(words_of).collect())
}

fn event<'a>(
    words: &[u64; EVENT_WORDS],
    texts: &mut impl Iterator<Item = &'a String>,
) -> Result<FaultEvent<'a>, String> {
    let number = |index: usize| {
        u32::try_from(words[index]).map_err(|_| format!("the host sent {} in word {index} of an event", words[index]))
    };
    let mut text = || texts.next().map(String::as_str).ok_or("the host sent fewer texts than events that have one");
    Ok(match words[0] {
        0 => FaultEvent::Arrived {
            slot: number(1)?,
            request_id: text()?,
            prompt_tokens: number(2)?,
            max_tokens: number(3)?,
            priority: i32::try_from(words[4].cast_signed())
                .map_err(|_| format!("the host sent the priority {}", words[4].cast_signed()))?,
            lora: if words[5] == NO_LORA { None } else { Some(number(5)?) },
        },
        1 => FaultEvent::Emitted { slot: number(1)?, output_tokens: number(2)? },
        2 => FaultEvent::Ended { slot: number(1)? },
        3 => FaultEvent::Utility { method: text()? },
        kind => return Err(format!("the host sent an event of the unknown kind {kind}")),
    })
}

fn words_of(action: &FaultAction) -> [u64; ACTION_WORDS] {
    match *action {
        FaultAction::FailRequest { slot } => [0, slot.into(), 0],
        FaultAction::Stall { duration_ns } => [1, duration_ns, 0],
        FaultAction::Crash { restart_after_ns: None } => [2, 0, 0],
        FaultAction::Crash { restart_after_ns: Some(delay_ns) } => [2, delay_ns, 1],
        FaultAction::DropMessage => [3, 0, 0],
        FaultAction::DuplicateMessage => [4, 0, 0],
        FaultAction::CorruptMessage => [5, 0, 0],
        FaultAction::DelayMessage { by_ns } => [6, by_ns, 0],
        FaultAction::LoseKvEvents => [7, 0, 0],
        FaultAction::FailUtility => [8, 0, 0],
    }
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;

    use super::*;

    /// Expects certain events and answers all actions.
    struct Checking(&'static [FaultEvent<'static>]);

    const ALL: [FaultAction; 10] = [
        FaultAction::FailRequest { slot: 7 },
        FaultAction::Stall { duration_ns: 5 },
        FaultAction::Crash { restart_after_ns: None },
        FaultAction::Crash { restart_after_ns: Some(6) },
        FaultAction::DropMessage,
        FaultAction::DuplicateMessage,
        FaultAction::CorruptMessage,
        FaultAction::DelayMessage { by_ns: 8 },
        FaultAction::LoseKvEvents,
        FaultAction::FailUtility,
    ];

    impl FaultGuest for Checking {
        type Config = ();

        fn configure(_config: (), _seed: u64) -> Result<Self, String> {
            Ok(Self(&[]))
        }

        fn decide(&mut self, batch: &FaultBatch<'_>, actions: &mut Vec<FaultAction>) -> Result<(), String> {
            assert_eq!((batch.now_ns, batch.step, batch.events), (99, 3, self.0));
            actions.extend(ALL);
            Ok(())
        }
    }

    #[test]
    fn words_are_read_and_written_in_order() {
        let mut guest = Checking(&[
            FaultEvent::Arrived {
                slot: 7,
                request_id: "a",
                prompt_tokens: 10,
                max_tokens: 20,
                priority: -1,
                lora: None,
            },
            FaultEvent::Emitted { slot: 7, output_tokens: 2 },
            FaultEvent::Ended { slot: 7 },
            FaultEvent::Utility { method: "sleep" },
        ]);
        let events = [
            [0, 7, 10, 20, u64::MAX, NO_LORA], //
            [1, 7, 2, 0, 0, 0],
            [2, 7, 0, 0, 0, 0],
            [3, 0, 0, 0, 0, 0],
        ]
        .concat();
        let answer = decide(&mut guest, 99, 3, &events, &["a".to_owned(), "sleep".to_owned()]).expect("it decides");
        let expected = [
            [0, 7, 0],
            [1, 5, 0],
            [2, 0, 0],
            [2, 6, 1],
            [3, 0, 0],
            [4, 0, 0],
            [5, 0, 0],
            [6, 8, 0],
            [7, 0, 0],
            [8, 0, 0],
        ];
        assert_eq!(answer, expected.concat());
    }

    #[test]
    fn a_host_that_does_not_keep_to_the_interface_is_reported() {
        let text = ["a".to_owned()];
        let cases: &[(&[u64], &[String], &str)] = &[
            (&[1, 2, 3], &[], "3 words, which is not a whole number of events"),
            (&[9, 0, 0, 0, 0, 0], &[], "unknown kind 9"),
            (&[3, 0, 0, 0, 0, 0], &[], "fewer texts"),
            (&[], &text, "texts that belong to no event"),
            (&[1, 1 << 32, 0, 0, 0, 0], &[], "sent 4294967296 in word 1"),
            (&[0, 0, 0, 0, 1 << 40, 0], &text, "the priority 1099511627776"),
        ];
        for (events, texts, expected) in cases {
            let error = decide(&mut Checking(&[]), 99, 3, events, texts).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
