//! The client of all engines in this process.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;
use vcr_live::{LiveConfig, LiveEngines, LiveError};
use vcr_wire::{EngineCoreRequest, LocalLink, LocalSink, ReadyResponse};

use super::EngineError;
use super::connection::current_connection;
use super::observer::{EngineObserver, RequestStart, ToolParsing};
use super::rank::{Rank, now_s};
use super::stream::RequestStream;
use crate::http::ConnectionControl;

/// Sends requests to engines and returns their outputs. Clones share the state.
#[derive(Clone)]
pub struct EngineClient(Arc<Inner>);

struct Inner {
    ranks: Arc<[Rank]>,
    observer: Option<Arc<dyn EngineObserver>>,
    /// The number of engines that have been ready.
    ready: watch::Receiver<usize>,
    /// Limit of requests in progress per engine.
    load_limit: OnceLock<usize>,
    admission: OnceLock<Admission>,
}

/// Limits of the Python frontend, over all engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// `--max-num-queued-reqs`: requests in progress.
    pub requests: Option<usize>,
    /// `--max-num-queued-tokens`: prompt tokens of requests without an output.
    pub prompt_tokens: Option<usize>,
}

impl EngineClient {
    /// Starts the engines of `config`. Each engine's thread handles its own messages and wakes the tasks of its
    /// requests directly.
    pub fn start(
        config: LiveConfig,
        observer: Option<Arc<dyn EngineObserver>>,
    ) -> Result<(LiveEngines, Self), LiveError> {
        let first = config.identity.first_rank;
        let ranks = first..first + config.identity.num_ranks;
        Self::before(ranks, observer, |sink| LiveEngines::start_local(config, sink))
    }

    /// Creates a client for engines that the caller starts. `start` returns one link per engine, in order of rank,
    /// and must send the engines' messages to the sink.
    pub fn before<T, E>(
        ranks: Range<u16>,
        observer: Option<Arc<dyn EngineObserver>>,
        start: impl FnOnce(&LocalSink) -> Result<(T, Vec<LocalLink>), E>,
    ) -> Result<(T, Self), E> {
        let first = ranks.start;
        let ranks: Arc<[Rank]> = ranks.map(Rank::new).collect();
        let (count, ready) = watch::channel(0);
        let (of_sink, heard) = (Arc::clone(&ranks), observer.clone());
        let sink = LocalSink::new(move |rank, event| {
            let Some(rank) = of_sink.get(usize::from(rank - first)) else { return };
            if rank.handle(event, heard.as_deref()) {
                count.send_modify(|count| *count += 1);
            }
        });
        let (engines, links) = start(&sink)?;
        for (rank, link) in ranks.iter().zip(links) {
            rank.connect(link);
        }
        Ok((
            engines,
            Self(Arc::new(Inner { ranks, observer, ready, load_limit: OnceLock::new(), admission: OnceLock::new() })),
        ))
    }

    /// Limits the requests in progress per engine. Further requests are refused. Only the first call has an effect.
    pub fn limit_load(&self, limit: usize) {
        _ = self.0.load_limit.set(limit);
    }

    /// Sets the admission limits. Only the first call has an effect.
    pub fn limit_admission(&self, admission: Admission) {
        _ = self.0.admission.set(admission);
    }

    /// Fails if the admission limits refuse a call with this number of requests.
    pub fn check_admission(&self, count: usize) -> Result<(), EngineError> {
        let Some(admission) = self.0.admission.get() else { return Ok(()) };
        let sum = |of: fn(&Rank) -> usize| self.ranks().iter().map(of).sum::<usize>();
        let is_over = admission.requests.is_some_and(|most| sum(Rank::load).saturating_add(count) > most);
        let (reason, error) = if is_over {
            ("max_num_queued_reqs", EngineError::Busy)
        } else if admission.prompt_tokens.is_some_and(|most| sum(Rank::prefilling_tokens) >= most) {
            ("max_num_queued_tokens", EngineError::Backlog)
        } else {
            return Ok(());
        };
        if let Some(observer) = &self.0.observer {
            observer.rejected(reason);
        }
        Err(error)
    }

    /// Reports to the observer that an answer was searched for tool calls.
    pub(crate) fn observe_tool_parser(&self, parsed: ToolParsing) {
        if let Some(observer) = &self.0.observer {
            observer.tools_parsed(parsed);
        }
    }

    /// Fails if a call has more requests than idle engines can take at once. A retry would not help, so the call is
    /// refused before any request is sent.
    pub fn check_fits(&self, count: usize) -> Result<(), EngineError> {
        let limit = self.0.load_limit.get().copied().unwrap_or(usize::MAX);
        let most = self.ranks().iter().fold(0_usize, |sum, rank| sum.saturating_add(rank.room().min(limit)));
        if count > most { Err(EngineError::TooMany { count, most }) } else { Ok(()) }
    }

    /// Waits until all engines have been ready. Returns `false` if they stopped before.
    pub async fn ready(&self) -> bool {
        let wanted = self.0.ranks.len();
        self.0.ready.clone().wait_for(|count| *count >= wanted).await.is_ok()
    }

    /// Whether all engines are healthy.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.0.ranks.iter().all(|rank| rank.is_up())
    }

    /// The number of engines.
    #[must_use]
    pub fn num_ranks(&self) -> usize {
        self.0.ranks.len()
    }

    /// The number of requests in progress, by engine.
    #[must_use]
    pub fn loads(&self) -> Vec<usize> {
        self.ranks().iter().map(Rank::load).collect()
    }

    /// The settings that the first engine reported when it became ready.
    #[must_use]
    pub fn settings(&self) -> Option<Box<ReadyResponse>> {
        self.0.ranks.first().and_then(|rank| rank.ready())
    }

    /// The settings that the engines reported when they became ready, by rank.
    #[must_use]
    pub fn all_settings(&self) -> Vec<ReadyResponse> {
        self.0.ranks.iter().filter_map(|rank| rank.ready()).map(|ready| *ready).collect()
    }

    /// Aborts requests by the ids that clients know. Without ids, aborts all requests.
    pub fn abort(&self, ids: &[String]) {
        for rank in self.ranks() {
            rank.abort_all(|internal| ids.is_empty() || ids.iter().any(|id| is_part_of(internal, id)));
        }
    }

    pub(super) fn ranks(&self) -> &[Rank] {
        &self.0.ranks
    }

    /// Reports to the observer that all engines sleep at this level, or are awake.
    pub(super) fn observe_sleep(&self, level: Option<u32>) {
        if let Some(observer) = &self.0.observer {
            observer.sleep_level(level);
        }
    }

    /// Sends a request to the engine that its `data_parallel_rank` (from 0) or its client's connection selects, or
    /// else to the engine with the fewest requests.
    ///
    /// # Errors
    /// When the engine does not exist or is not healthy, or its queue or mailbox is full.
    pub fn submit(&self, request: impl Into<Box<EngineCoreRequest>>) -> Result<RequestStream, EngineError> {
        let mut request = request.into();
        let ranks = self.ranks();
        let connection = current_connection();
        let rank = request.data_parallel_rank.or_else(|| connection.as_ref().and_then(ConnectionControl::rank));
        let place = match rank {
            Some(rank) if (rank as usize) < ranks.len() => rank as usize,
            Some(rank) => return Err(EngineError::UnknownRank { rank, ranks: ranks.len() as u32 }),
            None => {
                let up = (0..ranks.len()).filter(|place| ranks.len() == 1 || ranks[*place].is_up());
                up.min_by_key(|place| ranks[*place].load()).ok_or(EngineError::Dead)?
            }
        };
        let rank = &ranks[place];
        if let Some(limit) = self.0.load_limit.get().copied().filter(|limit| rank.load() >= *limit) {
            return Err(EngineError::QueueFull { limit });
        }
        request.client_index = 0;
        let params = request.sampling_params.as_ref();
        let observer = self.0.observer.as_ref().map(|observer| {
            observer.request(RequestStart {
                rank: rank.number,
                id: request.external_req_id.clone().unwrap_or_else(|| request.request_id.clone()),
                arrival_s: now_s(),
                prompt_tokens: request.prompt_token_ids.as_ref().map_or(0, Vec::len) as u64,
                max_tokens: params.and_then(|params| params.max_tokens).map(u64::from),
                temperature: params.map(|params| params.temperature),
                top_p: params.map(|params| params.top_p),
                n: params.map(|params| params.n),
                adapter: request.lora_request.as_ref().map(|lora| lora.name.clone()),
                media: request.mm_features.iter().flatten().map(|feature| feature.identifier.clone()).collect(),
            })
        });
        let id: Arc<str> = request.request_id.as_str().into();
        let collector = rank.submit(&id, request, observer, connection)?;
        Ok(RequestStream::new(Arc::clone(&self.0.ranks), place, id, collector))
    }
}

/// Whether an engine request belongs to the call `id`. Its request id is the call's id with a random suffix, and
/// may have an index before it.
fn is_part_of(internal: &str, id: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((name, _suffix)) = internal.rsplit_once('-') else { return false };
    let name = match name.split_once('_') {
        Some((place, rest)) if is_number(place) && name != id => rest,
        _ => name,
    };
    // Embedding requests have their index after the id.
    name == id || name.strip_prefix(id).and_then(|rest| rest.strip_prefix('-')).is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use super::is_part_of;

    #[test]
    fn requests_are_known_by_the_name_of_their_call() {
        for internal in ["cmpl-a-00ff", "0_cmpl-a-00ff", "12_cmpl-a-00ff", "cmpl-a-3-00ff"] {
            assert!(is_part_of(internal, "cmpl-a"), "{internal}");
        }
        for internal in ["cmpl-ab-00ff", "cmpl-a", "x_cmpl-a-00ff", "cmpl-a-b-00ff"] {
            assert!(!is_part_of(internal, "cmpl-a"), "{internal}");
        }
    }
}
