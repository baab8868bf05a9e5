//! The requests that an engine knows, by slot, tag and ID.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashTable;
use vcr_core::{PromptItem, RequestId};
use vcr_transfer::{Description, Meeting, Peer, Room};
use vcr_wire::{EngineCoreEvent, EngineCoreRequest, EventType, MmFeature, SamplingParams};
use xxhash_rust::xxh3::xxh3_64;

use crate::faults::active::{EngineFault, PlannedFailure};
use crate::playback::capture::RecordedEnd;
use crate::routing::dispatcher::RouteHandle;

/// A request and the state of its answer.
#[derive(Debug)]
pub(crate) struct LiveRequest {
    /// The frontend's internal ID.
    pub(crate) id: Box<str>,
    /// The driver's number for the request in the engine.
    pub(crate) tag: u64,
    /// The engine's ID; `None` if the request is answered at recorded times.
    pub(crate) core: Option<RequestId>,
    /// The channel of the outputs. The first channels lead to this engine's API servers, later ones to those of other
    /// engines.
    pub(crate) client: u32,
    /// The router's handle, if the router chose this engine.
    pub(crate) handle: Option<RouteHandle>,
    pub(crate) prompt_tokens: u32,
    /// Number of output tokens so far.
    pub(crate) output_tokens: u32,
    /// Number of prompt tokens found in the engine's own cache.
    pub(crate) local_cached_tokens: u32,
    /// Number of prompt tokens that another engine computed.
    pub(crate) external_tokens: u32,
    /// The end-of-text token; other stop tokens are sent as stop reasons.
    pub(crate) eos_token: Option<u32>,
    /// Whether the next output is the first.
    pub(crate) is_first_output: bool,
    /// Events since the last output.
    pub(crate) events: Vec<EngineCoreEvent>,
    /// Properties that few requests have.
    pub(crate) extras: Option<Box<Extras>>,
}

#[derive(Debug, Default)]
pub(crate) struct Extras {
    /// Number of likeliest tokens to report for each output token.
    pub(crate) logprobs: Option<u32>,
    /// For logprobs of the prompt: the number of likeliest tokens, and the prompt.
    pub(crate) prompt_logprobs: Option<(u32, Vec<u32>)>,
    /// Whether the likeliest token is always taken.
    pub(crate) is_greedy: bool,
    /// Seed of the request's random draws.
    pub(crate) seed: u64,
    /// The embedding to return instead of tokens.
    pub(crate) embedding: Option<Vec<f32>>,
    /// Whether a decode engine will fetch the request's KV.
    pub(crate) is_prefill_only: bool,
    /// The room in which a decode engine waits for the KV, until the prompt is finished.
    pub(crate) room: Option<Room>,
    /// The room in which the request waits to learn where its KV is.
    pub(crate) meeting: Option<Meeting>,
    /// The engine that the KV comes from, as long as it holds the KV.
    pub(crate) remote: Option<RemoteKv>,
    /// Contents of the prompt's blocks by KV-cache group, if bytes are moved.
    pub(crate) contents: Vec<Vec<u64>>,
    /// Names that are part of the identity of the prompt's blocks.
    pub(crate) block_keys: Option<BlockKeys>,
    /// The outcome of the recorded answer.
    pub(crate) recorded_end: Option<RecordedEnd>,
    /// After how many output tokens the request fails, and how.
    pub(crate) failure: Option<PlannedFailure>,
    /// Number of output tokens that trigger a fault of the engine, and the fault.
    pub(crate) engine_fault: Option<(u32, EngineFault)>,
    /// Answers of a resumable request that have not begun.
    pub(crate) turns: Option<Box<Turns>>,
}

/// Answers of a resumable request that have not begun.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Answers to parts that have arrived.
    pub(crate) queued: VecDeque<Turn>,
    /// Whether the latest answer has ended, and no part has arrived since.
    pub(crate) waits: bool,
}

/// The answer to a part of a prompt.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) part: Vec<u32>,
    pub(crate) params: SamplingParams,
    pub(crate) structured_output: Arc<str>,
}

/// The engine that holds a prompt's KV.
#[derive(Clone, Debug)]
pub(crate) struct RemoteKv {
    /// Side channel and ID of the engine.
    pub(crate) peer: Peer,
    /// The engine's own ID of the request.
    pub(crate) request_id: String,
    /// The engine's blocks by KV-cache group, in the order of the prompt.
    pub(crate) blocks: Vec<Vec<u32>>,
    /// Whether the engine writes the blocks, instead of being read.
    pub(crate) is_pushed: bool,
}

impl From<Description> for RemoteKv {
    fn from(description: Description) -> Self {
        let Description { mut peer, request, blocks, is_pushed } = description;
        // 0 means that the peer moves no bytes, so it has no generation.
        peer.generation = peer.generation.filter(|generation| *generation != 0);
        Self { peer, request_id: request, blocks, is_pushed }
    }
}

impl RemoteKv {
    /// The address of the peer's side channel.
    pub(crate) fn address(&self) -> String {
        format!("tcp://{}", self.peer)
    }
}

/// Names that are part of the identity of a request's blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockKeys {
    /// Name, path and number of the adapter.
    pub(crate) lora: Option<(String, String, u64)>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) session_id: Option<String>,
    /// Images, audio and video in the order of their positions.
    pub(crate) media: Vec<Medium>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Medium {
    pub(crate) identifier: String,
    /// Position of the first placeholder token in the prompt.
    pub(crate) offset: u32,
    /// Number of placeholder tokens.
    pub(crate) tokens: u32,
    /// Positions that embeddings replace, if they do not replace all.
    pub(crate) embed_runs: Option<Vec<Range<u32>>>,
}

impl Medium {
    fn of(feature: &MmFeature) -> Self {
        let place = &feature.mm_position;
        let bounded = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            identifier: feature.identifier.clone(),
            offset: bounded(place.offset),
            tokens: bounded(place.length),
            embed_runs: place.embed_runs(),
        }
    }

    /// Stands for the medium's content in hashes.
    pub(crate) fn content(&self) -> u64 {
        xxh3_64(self.identifier.as_bytes())
    }
}

impl BlockKeys {
    pub(crate) fn of(request: &EngineCoreRequest) -> Self {
        let mut media: Vec<_> = request.mm_features.iter().flatten().map(Medium::of).collect();
        media.sort_by_key(|medium| medium.offset);
        Self {
            lora: request.lora_request.as_ref().map(|lora| (lora.name.clone(), lora.path.clone(), lora.int_id)),
            cache_salt: request.cache_salt.clone().filter(|salt| !salt.is_empty()),
            session_id: request.session_id.clone(),
            media,
        }
    }

    /// The media as marks of the prompt. A mark distinguishes the first block with a token of the medium, and all
    /// later blocks.
    pub(crate) fn marks(&self) -> Vec<(u32, u64)> {
        self.media.iter().map(|medium| (medium.offset, medium.content())).collect()
    }

    /// The media as items that the engine's encoder computes. Items without a valid position, which vLLM's frontends
    /// never send, count only as tokens. If a decoder reads the items by cross attention, none has a position.
    pub(crate) fn items(&self, prompt_tokens: u32, have_places: bool) -> Vec<PromptItem> {
        let mut end = 0;
        let mut items = Vec::with_capacity(self.media.len());
        for medium in &self.media {
            let item = PromptItem::new(medium.content(), medium.offset, medium.tokens);
            let is_placed = medium.offset >= end && item.end_tokens() <= prompt_tokens;
            if medium.tokens == 0 || have_places && !is_placed {
                continue;
            }
            end = item.end_tokens();
            let item = match &medium.embed_runs {
                Some(runs) => item.with_embed_runs(runs.iter().cloned()),
                None => item,
            };
            items.push(if have_places { item } else { item.without_place() });
        }
        items
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lora.is_none() && self.cache_salt.is_none() && self.session_id.is_none() && self.media.is_empty()
    }
}

/// Requests by slot. Slots are reused, tags are not.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    slots: Vec<Option<LiveRequest>>,
    free: Vec<u32>,
    by_id: HashTable<u32>,
    /// Incremented with every request; the upper half of its tag.
    generation: u32,
    prompt_tokens: u64,
}

fn hash_of(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

#[inline]
pub(crate) fn slot_of(tag: u64) -> usize {
    tag as u32 as usize
}

impl Requests {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    pub(crate) fn next_tag(&self) -> u64 {
        let slot = self.free.last().copied().unwrap_or(self.slots.len() as u32);
        u64::from(self.generation) << 32 | u64::from(slot)
    }

    /// Adds a request, whose tag must be [`Requests::next_tag`].
    pub(crate) fn insert(&mut self, request: LiveRequest) {
        debug_assert_eq!(request.tag, self.next_tag());
        self.generation = self.generation.wrapping_add(1);
        self.prompt_tokens += u64::from(request.prompt_tokens);
        let slot = slot_of(request.tag) as u32;
        let slots = &mut self.slots;
        let hash = hash_of(&request.id);
        if self.free.pop().is_some() {
            slots[slot as usize] = Some(request);
        } else {
            slots.push(Some(request));
        }
        self.by_id.insert_unique(hash, slot, |&slot| {
            let known = slots[slot as usize].as_ref();
            hash_of(&known.expect("slots in the table are taken").id)
        });
    }

    pub(crate) fn remove(&mut self, tag: u64) -> Option<LiveRequest> {
        let slot = slot_of(tag) as u32;
        let request = self.slots.get_mut(slot as usize)?.take_if(|request| request.tag == tag)?;
        self.prompt_tokens -= u64::from(request.prompt_tokens);
        if let Ok(entry) = self.by_id.find_entry(hash_of(&request.id), |&other| other == slot) {
            entry.remove();
        }
        self.free.push(slot);
        Some(request)
    }

    #[inline]
    pub(crate) fn get(&self, tag: u64) -> Option<&LiveRequest> {
        self.slots.get(slot_of(tag))?.as_ref().filter(|request| request.tag == tag)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, tag: u64) -> Option<&mut LiveRequest> {
        self.slots.get_mut(slot_of(tag))?.as_mut().filter(|request| request.tag == tag)
    }

    pub(crate) fn find(&self, id: &str) -> Option<&LiveRequest> {
        let of_slot = |slot: u32| self.slots[slot as usize].as_ref();
        let slot = self.by_id.find(hash_of(id), |&slot| of_slot(slot).is_some_and(|request| &*request.id == id))?;
        of_slot(*slot)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LiveRequest> {
        self.slots.iter().flatten()
    }
}

impl LiveRequest {
    pub(crate) fn event(&mut self, kind: EventType, timestamp: f64) {
        self.events.push(EngineCoreEvent { kind, timestamp });
    }

    /// The answers that have not begun, if further parts of the prompt may come.
    pub(crate) fn turns(&mut self) -> Option<&mut Turns> {
        self.extras.as_mut()?.turns.as_deref_mut()
    }

    pub(crate) fn is_resumable(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.turns.is_some())
    }

    /// Whether the next output has nothing but tokens.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        !self.is_first_output && self.extras.is_none() && self.events.is_empty()
    }
}
