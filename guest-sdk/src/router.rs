use alloc::string::String;
use alloc::vec::Vec;

use serde::de::DeserializeOwned;
use vcr_policy::routing::{Choice, EndedRequest, RouteRequest, WorkerLoad};

/// Chooses the engine of each request of one pool.
///
/// One value serves one pool and may keep state between calls. Equally configured values must give
/// equal answers to equal calls.
///
/// ```
/// use vcr_guest_sdk::{Choice, RouteRequest, RouterGuest, WorkerLoads, export_router, serde};
///
/// #[derive(serde::Deserialize)]
/// #[serde(crate = "vcr_guest_sdk::serde", deny_unknown_fields)]
/// struct Config {
///     max_waiting: u32,
/// }
///
/// /// The engine with the fewest waiting requests, unless those are too many.
/// struct Shortest(u32);
///
/// impl RouterGuest for Shortest {
///     type Config = Config;
///
///     fn configure(config: Config, _seed: u64) -> Result<Self, String> {
///         Ok(Self(config.max_waiting))
///     }
///
///     fn route(&mut self, request: &RouteRequest<'_>, workers: WorkerLoads<'_>) -> Result<Choice, String> {
///         let least_busy = workers.iter().min_by_key(|load| load.waiting_requests);
///         let load = least_busy.ok_or("there are no engines")?;
///         if request.may_refuse && load.waiting_requests > self.0 {
///             return Ok(Choice::Refuse);
///         }
///         Ok(Choice::Worker(load.worker))
///     }
/// }
///
/// export_router!(Shortest);
/// ```
pub trait RouterGuest: Sized + 'static {
    /// The router's config, read from the user's JSON. Use `#[serde(deny_unknown_fields)]`, so that an error names a
    /// misspelt key, and `#[serde(default)]` for optional fields.
    type Config: DeserializeOwned;

    /// Whether [`Self::route`] reads the fields of [`WorkerLoad`] from `host_prompt_blocks` on. If not, the host sends
    /// 0 for them, and calls cost less.
    const NEEDS_DETAILS: bool = true;

    /// Makes the router of one pool.
    ///
    /// # Errors
    /// When the config is invalid. The user sees the text: name the field, its value and what is allowed.
    fn configure(config: Self::Config, seed: u64) -> Result<Self, String>;

    /// Returns the index of an engine, the field `worker` of one of `workers`, or refuses the request if `may_refuse`
    /// is set.
    ///
    /// # Errors
    /// Ends the run. The user sees the text.
    fn route(&mut self, request: &RouteRequest<'_>, workers: WorkerLoads<'_>) -> Result<Choice, String>;

    /// Reports that a request routed by this router has ended. Called before the next request is routed.
    fn ended(&mut self, _request: &EndedRequest) {}
}

/// The running engines, at least one, by ascending index. The fields are columns; unread columns cost nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerLoads<'a> {
    columns: Columns<&'a [u32], &'a [u64]>,
}

/// Owned columns of engines, for tests.
#[derive(Clone, Debug, Default)]
pub struct WorkerColumns(Columns<Vec<u32>, Vec<u64>>);

/// One column for each field of a [`WorkerLoad`].
#[allow(missing_docs, reason = "they are those of `WorkerLoad`")]
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns<A, B> {
    pub worker: A,
    pub running_requests: A,
    pub waiting_requests: A,
    pub max_running_requests: A,
    pub active_blocks: A,
    pub total_blocks: A,
    pub outstanding_prefill_tokens: B,
    pub cached_prompt_blocks: A,
    pub host_prompt_blocks: A,
    pub disk_prompt_blocks: A,
    pub loading_requests: A,
    pub last_step_ns: B,
    pub preemption_count: B,
}

impl<'a> WorkerLoads<'a> {
    /// Makes the view; none if the columns differ in length.
    #[doc(hidden)]
    #[must_use]
    pub fn of_columns(columns: Columns<&'a [u32], &'a [u64]>) -> Option<Self> {
        let length = columns.worker.len();
        let lists = [
            columns.running_requests,
            columns.waiting_requests,
            columns.max_running_requests,
            columns.active_blocks,
            columns.total_blocks,
            columns.cached_prompt_blocks,
        ];
        let is_even = lists.iter().all(|list| list.len() == length);
        let is_even = is_even && columns.outstanding_prefill_tokens.len() == length;
        // The host sends these columns empty if all values are 0.
        let narrow = [columns.host_prompt_blocks, columns.disk_prompt_blocks, columns.loading_requests];
        let wide = [columns.last_step_ns, columns.preemption_count];
        let lengths = narrow.iter().map(|list| list.len()).chain(wide.iter().map(|list| list.len()));
        let is_even = is_even && lengths.into_iter().all(|other| other == 0 || other == length);
        is_even.then_some(Self { columns })
    }

    /// Number of engines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.worker.len()
    }

    /// Whether there are no engines, which the host never sends.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns.worker.is_empty()
    }

    /// The engine at a position.
    #[must_use]
    pub fn get(&self, position: usize) -> Option<WorkerLoad> {
        self.iter().nth(position)
    }

    /// All engines, in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = WorkerLoad> + Clone + 'a {
        let columns = self.columns;
        // An empty column stands for zeros.
        let at = |column: &[u32], index: usize| column.get(index).copied().unwrap_or(0);
        let wide_at = |column: &[u64], index: usize| column.get(index).copied().unwrap_or(0);
        columns.worker.iter().enumerate().map(move |(index, worker)| WorkerLoad {
            worker: *worker,
            running_requests: at(columns.running_requests, index),
            waiting_requests: at(columns.waiting_requests, index),
            max_running_requests: at(columns.max_running_requests, index),
            active_blocks: at(columns.active_blocks, index),
            total_blocks: at(columns.total_blocks, index),
            outstanding_prefill_tokens: wide_at(columns.outstanding_prefill_tokens, index),
            cached_prompt_blocks: at(columns.cached_prompt_blocks, index),
            host_prompt_blocks: at(columns.host_prompt_blocks, index),
            disk_prompt_blocks: at(columns.disk_prompt_blocks, index),
            loading_requests: at(columns.loading_requests, index),
            last_step_ns: wide_at(columns.last_step_ns, index),
            preemption_count: wide_at(columns.preemption_count, index),
        })
    }
}

impl FromIterator<WorkerLoad> for WorkerColumns {
    fn from_iter<I: IntoIterator<Item = WorkerLoad>>(loads: I) -> Self {
        let mut columns = Columns::<Vec<u32>, Vec<u64>>::default();
        for load in loads {
            columns.worker.push(load.worker);
            columns.running_requests.push(load.running_requests);
            columns.waiting_requests.push(load.waiting_requests);
            columns.max_running_requests.push(load.max_running_requests);
            columns.active_blocks.push(load.active_blocks);
            columns.total_blocks.push(load.total_blocks);
            columns.outstanding_prefill_tokens.push(load.outstanding_prefill_tokens);
            columns.cached_prompt_blocks.push(load.cached_prompt_blocks);
            columns.host_prompt_blocks.push(load.host_prompt_blocks);
            columns.disk_prompt_blocks.push(load.disk_prompt_blocks);
            columns.loading_requests.push(load.loading_requests);
            columns.last_step_ns.push(load.last_step_ns);
            columns.preemption_count.push(load.preemption_count);
        }
        Self(columns)
    }
}

impl WorkerColumns {
    /// The columns as a guest gets them.
    #[must_use]
    pub fn view(&self) -> WorkerLoads<'_> {
        let Self(columns) = self;
        WorkerLoads {
            columns: Columns {
                worker: &columns.worker,
                running_requests: &columns.running_requests,
                waiting_requests: &columns.waiting_requests,
                max_running_requests: &columns.max_running_requests,
                active_blocks: &columns.active_blocks,
                total_blocks: &columns.total_blocks,
                outstanding_prefill_tokens: &columns.outstanding_prefill_tokens,
                cached_prompt_blocks: &columns.cached_prompt_blocks,
                host_prompt_blocks: &columns.host_prompt_blocks,
                disk_prompt_blocks: &columns.disk_prompt_blocks,
                loading_requests: &columns.loading_requests,
                last_step_ns: &columns.last_step_ns,
                preemption_count: &columns.preemption_count,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_read_as_they_were_written() {
        let load = |worker| WorkerLoad {
            worker,
            running_requests: 1,
            waiting_requests: 2,
            max_running_requests: 3,
            active_blocks: 4,
            total_blocks: 5,
            outstanding_prefill_tokens: 1 << 40,
            cached_prompt_blocks: 7,
            host_prompt_blocks: 8,
            disk_prompt_blocks: 9,
            loading_requests: 10,
            last_step_ns: 1 << 42,
            preemption_count: 1 << 41,
        };
        let columns: WorkerColumns = [load(3), load(9)].into_iter().collect();
        let workers = columns.view();
        assert_eq!((workers.len(), workers.get(1), workers.get(2)), (2, Some(load(9)), None));
        assert!(workers.iter().eq([load(3), load(9)]));
        let without_tiers = Columns { host_prompt_blocks: &[][..], disk_prompt_blocks: &[][..], ..workers.columns };
        let seen = WorkerLoads::of_columns(without_tiers).and_then(|workers| workers.get(1));
        assert_eq!(seen, Some(WorkerLoad { host_prompt_blocks: 0, disk_prompt_blocks: 0, ..load(9) }));
        let ragged = Columns { loading_requests: &[1][..], ..workers.columns };
        assert!(WorkerLoads::of_columns(ragged).is_none(), "the others are longer");
        let ragged = Columns { worker: &[1][..], ..Columns::default() };
        assert!(WorkerLoads::of_columns(ragged).is_none(), "the others are shorter");
    }
}
