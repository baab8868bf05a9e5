//! The engines of one pool of a run, in this process.

use std::net::TcpListener;
use std::sync::Arc;

use vcr_cluster::{FaultConfig, PoolConfig, PoolRole, RunConfig, TargetError};
use vcr_frontend::EngineClient;
use vcr_frontend::engine::EngineObserver;
use vcr_live::{EnginesHandle, LiveEngines, LiveError};
use vcr_wire::VllmMinor;

use super::book::{Book, BookObserver};
use super::config::live_config;
use super::steps::RunSteps;
use super::totals::Totals;

/// The default vocabulary size, for prompts and outputs.
pub(crate) const VOCAB_SIZE: u32 = 32_000;
/// Maximum number of searches for consecutive free ports.
const PORT_ATTEMPTS: usize = 64;

/// The running engines of a pool, and their reports about requests.
pub(crate) struct EnginePool {
    role: PoolRole,
    config: PoolConfig,
    /// The index of the first engine in the report.
    first_engine: u32,
    engines: LiveEngines,
    book: Book,
}

impl EnginePool {
    /// Starts the engines of the pool in `role` and a client for them. Returns when they are ready. Events also go
    /// to `observer`, and steps to `steps`.
    pub(crate) async fn start(
        run: &RunConfig,
        role: PoolRole,
        vocab_size: u32,
        observer: Option<Box<dyn EngineObserver>>,
        steps: &RunSteps,
    ) -> Result<(Self, EngineClient), TargetError> {
        let Place { config, first_engine, port } = Place::of(run, role)?;
        let book = Book::new(first_engine);
        let booking = Arc::new(BookObserver { book: book.clone(), next: observer });
        let live = live_config(run, role, vocab_size, port, &book, steps)?;
        let (engines, client) = EngineClient::start(live, Some(booking)).map_err(engine_error)?;
        let pool = Self { role, config, first_engine, engines, book };
        if !client.ready().await {
            pool.end()?;
            return Err(TargetError::Failed("the engines ended before they were ready".to_owned()));
        }
        Ok((pool, client))
    }

    /// Starts the engines of the pool in `role` for a vLLM frontend of this version, which waits at this address.
    pub(crate) fn behind(
        run: &RunConfig,
        role: PoolRole,
        (address, version): (String, Option<VllmMinor>),
        steps: &RunSteps,
    ) -> Result<Self, TargetError> {
        let Place { config, first_engine, port } = Place::of(run, role)?;
        let book = Book::new(first_engine);
        let mut live = live_config(run, role, VOCAB_SIZE, port, &book, steps)?;
        live.identity.handshake_address = address;
        live.identity.version = version;
        let engines = LiveEngines::start(live).map_err(engine_error)?;
        Ok(Self { role, config, first_engine, engines, book })
    }

    pub(crate) fn handle(&self) -> (PoolRole, EnginesHandle) {
        (self.role, self.engines.handle())
    }

    pub(crate) fn book(&self) -> &Book {
        &self.book
    }

    /// The totals of the engines, which must have been idle for [`SNAPSHOT_AGE`](super::totals::SNAPSHOT_AGE).
    pub(crate) fn totals(&self, steps: &RunSteps, faults: &[FaultConfig], duration_ns: u64) -> Totals {
        let faults: Vec<_> = faults.iter().filter(|fault| fault.pool == self.role).cloned().collect();
        let mut totals = Totals::of(&self.engines.handle(), &self.config, (&self.book, steps), &faults, duration_ns);
        for engine in &mut totals.engines {
            engine.worker += self.first_engine;
            if self.role == PoolRole::Decode {
                // Prefill engines computed the prompts.
                engine.computed_tokens -= engine.prefill_tokens;
                engine.prefill_tokens = 0;
            }
        }
        totals
    }

    /// Stops the engines and joins their threads. Returns the error of the first engine that failed.
    pub(crate) fn end(self) -> Result<(), TargetError> {
        self.engines.handle().shut_down();
        self.engines.wait().map_err(engine_error)
    }
}

struct Place {
    config: PoolConfig,
    first_engine: u32,
    /// The first of the ports for notices of fetched KV. Only used by prefill engines.
    port: u16,
}

impl Place {
    fn of(run: &RunConfig, role: PoolRole) -> Result<Self, TargetError> {
        let pools = run.topology.pools();
        let config = pools[role.index()].clone();
        let port = match role {
            PoolRole::Prefill => free_ports(config.most_ranks() as u16)?,
            PoolRole::Aggregated | PoolRole::Decode => 0,
        };
        let first_engine = pools[..role.index()].iter().map(|pool| pool.most_ranks()).sum();
        Ok(Self { config, first_engine, port })
    }
}

fn engine_error(error: LiveError) -> TargetError {
    TargetError::Failed(crate::client::pool::with_causes(&error))
}

/// Finds consecutive free ports and returns the first. Another program may take one before it is used.
fn free_ports(count: u16) -> Result<u16, TargetError> {
    let failed = |error: std::io::Error| TargetError::Failed(format!("no free ports for KV transfers: {error}"));
    let mut last = std::io::Error::other("too few in a row");
    for _ in 0..PORT_ATTEMPTS {
        let first = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
        let port = first.local_addr().map_err(failed)?.port();
        let Some(end) = port.checked_add(count) else { continue };
        let others: Result<Vec<_>, _> = (port + 1..end).map(|port| TcpListener::bind(("127.0.0.1", port))).collect();
        match others {
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_in_a_row_are_free() {
        let first = free_ports(8).unwrap();
        let listeners: Vec<_> =
            (first..first + 8).map(|port| TcpListener::bind(("127.0.0.1", port)).unwrap()).collect();
        assert_eq!(listeners.len(), 8);
    }
}
