//! Requests of the sessions of synthetic workloads.
//!
//! Each optional property has its own random stream, so setting one does not change the others.

use vcr_base::random::{Stream, Weights};
use vcr_core::{Prompt, seed};

use super::turn::{DrawnSession, FollowUp, Turn};
use crate::config::{Documents, Media, RequestClass, whole};

/// The classes of a workload, from which sessions are drawn.
pub(super) struct Sessions<'a> {
    pub(super) classes: &'a [RequestClass],
    /// Shares of the classes; None if there is one class.
    pub(super) shares: Option<&'a Weights>,
    pub(super) seed: u64,
    pub(super) priority: i32,
}

impl Sessions<'_> {
    /// Session `number` before its first turn. `empty_prompt` makes an empty prompt with a given salt.
    pub(super) fn begin(&self, number: u64, empty_prompt: impl FnOnce(u64) -> Prompt) -> DrawnSession {
        let session_seed = seed::derive(self.seed, "session", number);
        let mut rng = Stream::new(session_seed, "draws");
        let class = self.shares.map_or(0, |shares| shares.draw(&mut Stream::new(session_seed, "class")) as u32);
        let RequestClass { mix, adapters, .. } = &self.classes[class as usize];
        let adapter = adapters.as_ref().map(|adapters| {
            adapters.first.saturating_add(adapters.popularity.draw(&mut Stream::new(session_seed, "adapter")) as u32)
        });
        // Requests with different adapters cannot share KV, so the adapter salts the prompt.
        let salt = adapter.map_or(0, |adapter| seed::derive(0, "adapter", u64::from(adapter)));
        let mut conversation = empty_prompt(salt);
        if mix.shared_prefix_tokens > 0 {
            let group = seed::mix(session_seed) % u64::from(mix.prefix_groups);
            let purpose = if class == 0 { "shared prefix".to_owned() } else { format!("shared prefix {class}") };
            conversation.push_run(seed::derive(self.seed, &purpose, group), 0, mix.shared_prefix_tokens);
        }
        let (dialogue, turns) = match &mix.conversations {
            None => (0, whole(mix.turns.draw(&mut rng))),
            Some(known) => {
                let count = known.turns.len();
                let at_random = || (Stream::new(session_seed, "conversation").unit() * count as f64) as usize;
                let dialogue = if known.in_order { (number % count as u64) as usize } else { at_random() };
                (dialogue as u32, known.turns[dialogue].len() as u32)
            }
        };
        DrawnSession { rng, number, next_turn: 0, turns, conversation, class, adapter, dialogue }
    }

    pub(super) fn turn(&self, mut session: DrawnSession) -> Turn {
        let RequestClass { mix, priority, .. } = &self.classes[session.class as usize];
        let (number, turn) = (session.number, session.next_turn);
        let (new_tokens, max_tokens) = match &mix.conversations {
            Some(known) => known.turns[session.dialogue as usize][turn as usize],
            None => {
                let new_tokens = mix.prompt_tokens.draw(&mut session.rng);
                (new_tokens, mix.output_tokens.draw(&mut session.rng))
            }
        };
        let content = seed::derive(seed::derive(self.seed, "user", number), "turn", u64::from(turn));
        if let Some(documents) = &mix.documents {
            self.push_documents(documents, session.class, content, &mut session.conversation);
        }
        if let Some(media) = &mix.media {
            self.push_media(media, session.class, content, &mut session.conversation);
        }
        let known = mix.conversations.as_ref().and_then(|known| known.prompts.get(session.dialogue as usize));
        let known = known.map_or(&[][..], |prompts| &prompts[turn as usize]);
        session.conversation.push_tokens(known.iter().copied());
        // A prompt has at least one token, even if its text has none.
        let drawn_tokens = new_tokens.saturating_sub(known.len() as u32);
        if known.is_empty() || drawn_tokens > 0 {
            session.conversation.push_run(content, 0, drawn_tokens);
        }
        let stop_after = mix.stop_after.as_ref().map(|lengths| lengths.draw(&mut Stream::new(content, "stop")));
        session.next_turn += 1;
        let (class, adapter) = (session.class, session.adapter);
        let prompt = session.conversation.clone();
        let follow_up =
            if session.next_turn < session.turns { FollowUp::Drawn(Box::new(session)) } else { FollowUp::None };
        Turn {
            prompt,
            max_tokens,
            stop_after: stop_after.filter(|tokens| *tokens < max_tokens),
            priority: self.priority.saturating_add(*priority),
            strict_priority: 0,
            policy_class: None,
            class,
            adapter,
            session: number,
            turn,
            earlier: None,
            follow_up,
            played_row: None,
        }
    }

    /// Adds the media items of a turn, before its text.
    fn push_media(&self, media: &Media, class: u32, content: u64, prompt: &mut Prompt) {
        let most = (u32::MAX / 4).checked_div(media.tokens_per_item).unwrap_or(0);
        let items = media.items.draw(&mut Stream::new(content, "media")).round().clamp(0.0, f64::from(most)) as u64;
        let pool = seed::derive(self.seed, "media", u64::from(class));
        let mut stream = Stream::new(content, "media items");
        for item in 0..items {
            let identity = match media.distinct {
                Some(count) => seed::derive(pool, "item", (stream.unit() * f64::from(count)) as u64),
                None => seed::derive(content, "media", item),
            };
            match media.in_prompt {
                true => prompt.push_item(identity, media.tokens_per_item),
                false => prompt.set_encoder_input(identity, media.tokens_per_item),
            }
        }
    }

    /// Adds the documents of a question, before the question and without duplicates.
    fn push_documents(&self, documents: &Documents, class: u32, content: u64, prompt: &mut Prompt) {
        let mut stream = Stream::new(content, "documents");
        let wanted = documents.per_question.draw(&mut stream).round().max(0.0) as usize;
        let wanted = wanted.min(documents.popularity.count());
        let pool = seed::derive(self.seed, "documents", u64::from(class));
        let mut taken: Vec<usize> = Vec::with_capacity(wanted);
        while taken.len() < wanted {
            let mut document = documents.popularity.draw(&mut stream);
            // Takes the next document that is not taken yet: redrawing would take long with few documents.
            while taken.contains(&document) {
                document = (document + 1) % documents.popularity.count();
            }
            taken.push(document);
            let content = seed::derive(pool, "document", document as u64);
            let tokens = documents.tokens.draw(&mut Stream::new(content, "length"));
            prompt.push_run(content, 0, tokens);
        }
    }
}
