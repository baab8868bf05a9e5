//! Multimodal items at their positions in a prompt.

use vcr_core::{Prompt, seed};
use vcr_trace::MediaItem;

/// The remaining items of a prompt while its content is added.
pub(super) struct PlacedMedia<'a> {
    items: &'a [MediaItem],
    /// Distinguishes equal hashes of different traces and copies, whose contents differ.
    salt: u64,
    /// Position of the next content, in tokens.
    begin_tokens: u32,
    /// Number of the next content's tokens that are placeholders of an item that was already pushed.
    ahead_tokens: u32,
}

impl<'a> PlacedMedia<'a> {
    pub(super) fn new(items: &'a [MediaItem], salt: u64) -> Self {
        Self { items, salt, begin_tokens: 0, ahead_tokens: 0 }
    }

    /// Adds the next `len_tokens` tokens to a prompt. They have the content `content`, except for the placeholders
    /// of items.
    #[inline]
    pub(super) fn push_run(&mut self, content: u64, len_tokens: u32, prompt: &mut Prompt) {
        if self.items.is_empty() && self.ahead_tokens == 0 {
            prompt.push_run(content, 0, len_tokens);
        } else {
            self.push_around_items(content, len_tokens, prompt);
        }
    }

    fn push_around_items(&mut self, content: u64, len_tokens: u32, prompt: &mut Prompt) {
        let begin = self.begin_tokens;
        let end = begin + len_tokens;
        let mut at = begin + self.ahead_tokens;
        while let Some((item, rest)) = self.items.split_first()
            && item.offset < end
        {
            prompt.push_run(content, at - begin, item.offset.saturating_sub(at));
            self.push_item(item, prompt);
            self.items = rest;
            at = item.offset + item.tokens;
        }
        prompt.push_run(content, at - begin, end.saturating_sub(at));
        self.begin_tokens = end;
        self.ahead_tokens = at.saturating_sub(end);
    }

    fn push_item(&self, item: &MediaItem, prompt: &mut Prompt) {
        let identity = seed::mix(item.identity() ^ self.salt);
        match &item.embeds {
            None => prompt.push_item(identity, item.tokens),
            Some(runs) => {
                prompt.push_item_of_runs(identity, item.tokens, runs.iter().map(|&[start, end]| start..end));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 8;

    fn item(hash: &str, offset: u32, tokens: u32) -> MediaItem {
        MediaItem { hash: hash.to_owned(), offset, tokens, ..MediaItem::default() }
    }

    /// A prompt of 30 tokens in blocks of 2 tokens, with the contents 0 to 3.
    fn prompt(items: &[MediaItem], salt: u64) -> Prompt {
        let mut prompt = Prompt::new(2, 0);
        let mut media = PlacedMedia::new(items, salt);
        for (content, len_tokens) in [(0, BLOCK), (1, BLOCK), (2, BLOCK), (3, 6)] {
            media.push_run(content, len_tokens, &mut prompt);
        }
        prompt
    }

    fn shared(one: &Prompt, other: &Prompt) -> usize {
        one.block_hashes().iter().zip(other.block_hashes()).take_while(|(one, other)| one == other).count()
    }

    #[test]
    fn items_take_the_place_of_content() {
        let runs = MediaItem { embeds: Some(vec![[1, 2]]), ..item("c", 28, 2) };
        for items in [
            vec![],
            vec![item("a", 0, 30)],
            vec![item("a", 3, 2), item("a", 5, 3), item("b", 8, 8), item("b", 16, 1)],
            vec![item("a", 6, 20), runs],
            vec![item("a", 7, 9), item("b", 24, 6)],
        ] {
            let prompt = prompt(&items, 1);
            assert_eq!((prompt.len_tokens(), prompt.block_hashes().len()), (30, 15), "{items:?}");
            let places: Vec<_> = prompt
                .items()
                .iter()
                .map(|item| (item.offset_tokens(), item.len_tokens(), item.num_embeds()))
                .collect();
            let embeds = |item: &MediaItem| {
                item.embeds.as_ref().map_or(item.tokens, |runs| runs.iter().map(|[start, end]| end - start).sum())
            };
            let expected: Vec<_> = items.iter().map(|item| (item.offset, item.tokens, embeds(item))).collect();
            assert_eq!(places, expected);
        }
    }

    #[test]
    fn blocks_are_shared_up_to_the_first_item_that_differs() {
        let plain = prompt(&[], 1);
        let one = prompt(&[item("cat", 5, 6), item("dog", 20, 3)], 1);
        assert_eq!(shared(&plain, &one), 2);
        assert_eq!(shared(&one, &prompt(&[item("cat", 5, 6), item("dog", 20, 3)], 1)), 15);
        assert_eq!(shared(&one, &prompt(&[item("cat", 5, 6), item("cow", 20, 3)], 1)), 10);
        assert_eq!(shared(&one, &prompt(&[item("cow", 5, 6), item("dog", 20, 3)], 1)), 2);
        assert_eq!(shared(&one, &prompt(&[item("cat", 5, 7), item("dog", 20, 3)], 1)), 5);
        assert_eq!(shared(&one, &prompt(&[item("cat", 5, 6), item("dog", 20, 3)], 2)), 2, "another copy");
    }
}
