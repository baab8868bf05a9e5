//! A thread that drives many connections.

use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use vcr_core::seed::{derive, mix};

use super::connection::{Connection, Shape, request};
use crate::Failure;

/// Maximum number of connections handled at once.
const EVENTS_AT_ONCE: usize = 512;
/// Longer than a server is silent while it has work.
const PATIENCE_S: i64 = 60;

/// Connections to one server.
pub(crate) struct Clients {
    connections: Vec<Connection>,
    epoll: OwnedFd,
    buffer: Vec<u8>,
    model: String,
    seed: u64,
    sent: u64,
}

impl Clients {
    pub(crate) fn open(port: u16, count: usize, model: &str, seed: u64) -> Result<Self, Failure> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::with_capacity(count);
        for place in 0..count {
            let connection = Connection::open(port)?;
            epoll::add(&epoll, &connection.socket, epoll::EventData::new_u64(place as u64), epoll::EventFlags::IN)?;
            connections.push(connection);
        }
        Ok(Self {
            connections,
            epoll,
            buffer: vec![0; 65_536],
            model: model.to_owned(),
            seed: derive(seed, "bench.http", 0),
            sent: 0,
        })
    }

    fn ask(&mut self, place: usize, shape: Shape) -> Result<(), Failure> {
        let request = request(&self.model, mix(self.seed ^ self.sent), shape);
        self.sent += 1;
        self.connections[place].ask(&request)
    }

    /// Waits for bytes, and calls `take` for each connection that has some.
    fn wait(
        &mut self,
        mut take: impl FnMut(&mut Connection, usize, &mut [u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut ready = Vec::with_capacity(EVENTS_AT_ONCE);
        let patience = Timespec { tv_sec: PATIENCE_S, tv_nsec: 0 };
        epoll::wait(&self.epoll, spare_capacity(&mut ready), Some(&patience))?;
        if ready.is_empty() {
            return Err(format!("the server was silent for {PATIENCE_S} s").into());
        }
        for event in &ready {
            let place = event.data.u64() as usize;
            take(&mut self.connections[place], place, &mut self.buffer)?;
        }
        Ok(())
    }

    /// Sends requests, each when an earlier one has ended, and waits for all of them.
    pub(crate) fn closed_loop(&mut self, requests: u64, shape: Shape) -> Result<(), Failure> {
        let first = requests.min(self.connections.len() as u64);
        for place in 0..first as usize {
            self.ask(place, shape)?;
        }
        let (mut to_send, mut left) = (requests - first, requests);
        let mut over = Vec::new();
        while left > 0 {
            over.clear();
            self.wait(|connection, place, buffer| {
                if connection.read(buffer)?.is_over {
                    connection.check(shape.output_tokens)?;
                    over.push(place);
                }
                Ok(())
            })?;
            for place in &over {
                left -= 1;
                if to_send > 0 {
                    to_send -= 1;
                    self.ask(*place, shape)?;
                }
            }
        }
        Ok(())
    }

    /// Runs a stream on each connection and returns the arrival times of all tokens. `on_way` is called once, when
    /// all streams have begun.
    pub(crate) fn paced(
        &mut self,
        shape: Shape,
        on_way: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<Tokens, Failure> {
        let count = self.connections.len();
        self.connections.iter().try_for_each(Connection::take_times)?;
        for place in 0..count {
            self.ask(place, shape)?;
        }
        let wanted = shape.output_tokens as usize;
        let mut streams = vec![Vec::with_capacity(wanted); count];
        let (mut begun, mut left) = (0, count);
        while left > 0 {
            let before = begun;
            self.wait(|connection, place, buffer| {
                let arrived = connection.read(buffer)?;
                let stream: &mut Vec<u64> = &mut streams[place];
                begun += usize::from(stream.is_empty() && arrived.events > 0);
                // Later events are the finish reason, the usage and the end of the stream.
                for _ in 0..arrived.events.min((wanted - stream.len()) as u32) {
                    stream.push(arrived.at_ns);
                }
                if arrived.is_over {
                    connection.check(shape.output_tokens)?;
                    left -= 1;
                }
                Ok(())
            })?;
            if before < count && begun == count {
                on_way()?;
            }
        }
        Ok(Tokens(streams))
    }
}

/// Arrival time of each token of each stream, in nanoseconds.
pub(crate) struct Tokens(Vec<Vec<u64>>);

impl Tokens {
    /// Gaps between tokens while all streams ran, in ascending order.
    pub(crate) fn gaps(&self) -> Vec<u64> {
        let last_begin = self.0.iter().filter_map(|stream| stream.first()).max().copied().unwrap_or(0);
        let first_end = self.0.iter().filter_map(|stream| stream.last()).min().copied().unwrap_or(0);
        let inside = |pair: &&[u64]| pair[0] >= last_begin && pair[1] <= first_end;
        let gaps = self.0.iter().flat_map(|stream| stream.windows(2).filter(inside).map(|pair| pair[1] - pair[0]));
        let mut gaps: Vec<u64> = gaps.collect();
        gaps.sort_unstable();
        gaps
    }
}

/// Differences between the gaps and the interval, in ascending order.
pub(crate) fn errors(gaps: &[u64], interval_ns: u64) -> Vec<u64> {
    let mut errors: Vec<u64> = gaps.iter().map(|gap| gap.abs_diff(interval_ns)).collect();
    errors.sort_unstable();
    errors
}

/// A quantile of sorted values, in milliseconds.
pub(crate) fn quantile_ms(sorted: &[u64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1) as f64;
    sorted.get((last * share) as usize).map_or(f64::NAN, |value| *value as f64 / 1e6)
}
