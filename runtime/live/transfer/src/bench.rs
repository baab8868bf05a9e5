//! Measures a plane between two processes, and compares it with a plain stream of bytes between them.
//!
//! One process is the [`Responder`], which holds a prompt of the measured size. The other one calls [`measure`],
//! which reads the prompt and receives the plain stream alternately.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::error::{ErrorKind, TransferError};
use crate::geometry::{Geometry, GeometryInput, HeadOrder, Regions};
use crate::pattern;
use crate::plane::{BlockPair, Held, Hold, Peer, Plane, PlaneContext, PlaneEvent, PlaneFactory, Transfer, Wake};
use crate::statistics::{Direction, Moved};
use crate::tcp::{TcpPlane, TcpSettings};

const REQUEST: &str = "kv-bench";
const PLAIN_BUFFER_BYTES: usize = 256 << 10;

/// The size of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchSize {
    /// Number of bytes in all pages.
    pub total_bytes: u64,
    pub page_bytes: u32,
}

impl BenchSize {
    /// The geometry of an engine with this many bytes. Each block has a page for K and one for V of a single layer.
    ///
    /// # Errors
    /// The bytes are not an even number of pages.
    pub fn geometry(&self) -> Result<Geometry, TransferError> {
        let of_block = u64::from(self.page_bytes) * 2;
        let blocks = self.total_bytes.checked_div(of_block).unwrap_or(0);
        let error = |message: String| TransferError::new(ErrorKind::Local, message);
        if blocks == 0 || blocks * of_block != self.total_bytes {
            let Self { total_bytes, page_bytes } = self;
            return Err(error(format!(
                "invalid total of {total_bytes} bytes: expected an even number of pages of {page_bytes} bytes"
            )));
        }
        let input = GeometryInput {
            layers: 1,
            kv_heads: 1,
            slice_bytes: self.page_bytes,
            ranks: 1,
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
            block_tokens: 16,
            order: HeadOrder::HeadsFirst,
            regions: Regions::Apart,
        };
        Geometry::new(input).map_err(|cause| error(cause.to_string()))
    }
}

/// A factory of TCP planes.
#[must_use]
pub fn tcp(settings: TcpSettings) -> PlaneFactory {
    // The plain stream has normal niceness too.
    let settings = TcpSettings { niceness: 0, ..settings };
    Arc::new(move |context| Ok(Box::new(TcpPlane::new(context, settings.clone())?) as Box<dyn Plane>))
}

fn plane(
    size: BenchSize,
    generation: u64,
    factory: &PlaneFactory,
    memory_limit_bytes: Option<u64>,
    wake: Wake,
) -> Result<(Box<dyn Plane>, Arc<Arena>), TransferError> {
    let arena = Arena::new(size.geometry()?, memory_limit_bytes)
        .map_err(|error| TransferError::new(ErrorKind::Local, error.to_string()))?;
    let arena = Arc::new(arena);
    let context = PlaneContext { engine_id: REQUEST.to_owned(), rank: 0, generation, arena: Arc::clone(&arena), wake };
    Ok((factory(context)?, arena))
}

fn content(block: u32) -> u64 {
    pattern::mix(u64::from(block) + 1)
}

/// The process that the other one reads from.
pub struct Responder {
    plane: Box<dyn Plane>,
    plain_port: u16,
}

impl Responder {
    /// Writes the pages, and listens: the plane at its factory's address, plain streams at `host` and `plain_port`.
    ///
    /// # Errors
    /// The sizes do not fit, the memory is too small, or an address cannot be used.
    pub fn start(
        size: BenchSize,
        (host, plain_port): (&str, u16),
        factory: &PlaneFactory,
        memory_limit_bytes: Option<u64>,
    ) -> Result<Self, TransferError> {
        let listener = TcpListener::bind((host, plain_port)).map_err(|error| {
            TransferError::new(
                ErrorKind::Local,
                format!("cannot listen at {host}:{plain_port} for plain streams: {error}"),
            )
        })?;
        let plain_port = listener.local_addr().map_or(plain_port, |address| address.port());
        let (mut plane, arena) = plane(size, 1, factory, memory_limit_bytes, Arc::new(|| ()))?;
        let held: Vec<_> =
            (0..arena.geometry().blocks()).map(|block| Held { block, content: content(block) }).collect();
        held.iter().for_each(|held| arena.fill(held.block, held.content));
        plane.hold(Hold { request: REQUEST.to_owned(), blocks: held });
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A reader that disconnects only ends its stream.
                _ = send_plain(stream, size.total_bytes);
            }
        });
        Ok(Self { plane, plain_port })
    }

    /// The port of the plane.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.plane.port()
    }

    /// The port of plain streams.
    #[must_use]
    pub fn plain_port(&self) -> u16 {
        self.plain_port
    }
}

fn send_plain(mut stream: TcpStream, bytes: u64) -> std::io::Result<()> {
    let buffer = vec![0x5a; PLAIN_BUFFER_BYTES];
    let mut go = [0];
    // The reader requests one stream after the other.
    while stream.read(&mut go)? == 1 {
        let mut left = bytes;
        while left > 0 {
            let len = left.min(buffer.len() as u64) as usize;
            stream.write_all(&buffer[..len])?;
            left -= len as u64;
        }
    }
    Ok(())
}

/// The times of one repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repetition {
    /// Sizes and times of the transfer, as the plane reports them.
    pub moved: Moved,
    /// Time from the start of the transfer until its report.
    pub transfer_ns: u64,
    /// Time of the plain stream with the same number of bytes.
    pub plain_ns: u64,
}

/// Reads the prompt and the plain stream `repetitions` times, after one warm-up of each. Calls `after_each` with
/// each repetition.
///
/// # Errors
/// The responder cannot be reached or has other sizes, or a byte is wrong.
pub fn measure(
    size: BenchSize,
    (host, port, plain_port): (&str, u16, u16),
    factory: &PlaneFactory,
    (repetitions, memory_limit_bytes): (u32, Option<u64>),
    mut after_each: impl FnMut(&Repetition),
) -> Result<Vec<Repetition>, TransferError> {
    let bell = Arc::new((Mutex::new(false), Condvar::new()));
    let ring = Arc::clone(&bell);
    let wake = move || {
        *ring.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        ring.1.notify_all();
    };
    // NIXL agents that connect must have different names, which include the generation.
    let (mut plane, arena) = plane(size, 2, factory, memory_limit_bytes, Arc::new(wake))?;
    let lost = |error: std::io::Error| {
        TransferError::new(ErrorKind::PeerLost, format!("the plain stream from {host}:{plain_port} failed: {error}"))
    };
    let mut plain = TcpStream::connect((host, plain_port)).map_err(lost)?;
    let mut buffer = vec![0; PLAIN_BUFFER_BYTES];
    let mut measured = Vec::new();
    for number in 0..=repetitions {
        let began = Instant::now();
        receive_plain(&mut plain, &mut buffer, size.total_bytes).map_err(lost)?;
        let plain_ns = began.elapsed().as_nanos() as u64;
        let blocks = (0..arena.geometry().blocks())
            .map(|block| BlockPair { local: block, remote: block, content: content(block) })
            .collect();
        let began = Instant::now();
        plane.start(Transfer {
            id: u64::from(number) + 1,
            direction: Direction::Read,
            peer: Peer { host: host.to_owned(), port, engine_id: String::new(), generation: None },
            request: REQUEST.to_owned(),
            blocks,
            notice: None,
            timeout: Duration::from_secs(600),
            corrupts: false,
        });
        let moved = outcome(&mut *plane, &bell)?;
        let transfer_ns = began.elapsed().as_nanos() as u64;
        if number > 0 {
            let repetition = Repetition { moved, transfer_ns, plain_ns };
            after_each(&repetition);
            measured.push(repetition);
        }
    }
    Ok(measured)
}

fn receive_plain(stream: &mut TcpStream, buffer: &mut [u8], bytes: u64) -> std::io::Result<()> {
    stream.write_all(&[1])?;
    let mut left = bytes;
    while left > 0 {
        match stream.read(buffer)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => left = left.saturating_sub(read as u64),
        }
    }
    Ok(())
}

fn outcome(plane: &mut dyn Plane, bell: &(Mutex<bool>, Condvar)) -> Result<Moved, TransferError> {
    let mut events = Vec::new();
    loop {
        plane.poll(&mut events);
        for event in events.drain(..) {
            if let PlaneEvent::Finished { outcome, .. } = event {
                return outcome;
            }
        }
        let mut rang = bell.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*rang {
            rang = bell.1.wait(rang).unwrap_or_else(PoisonError::into_inner);
        }
        *rang = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_move_in_each_repetition() {
        let size = BenchSize { total_bytes: 1 << 20, page_bytes: 16 << 10 };
        let factory = tcp(TcpSettings::default());
        let responder = Responder::start(size, ("127.0.0.1", 0), &factory, None).expect("it is small");
        let address = ("127.0.0.1", responder.port(), responder.plain_port());
        let mut seen = 0;
        let measured = measure(size, address, &factory, (2, None), |_| seen += 1).expect("it listens");
        assert_eq!((measured.len(), seen), (2, 2));
        assert!(measured.iter().all(|one| one.moved.bytes == 1 << 20 && one.moved.pages == 64 && one.plain_ns > 0));
        let other = BenchSize { page_bytes: 32 << 10, ..size };
        let error = measure(other, address, &factory, (1, None), |_| ()).expect_err("pages differ");
        assert_eq!(error.kind, ErrorKind::Mismatch);
    }

    #[test]
    fn an_uneven_number_of_pages_is_refused() {
        for (total_bytes, page_bytes) in [(0, 1), (3, 1), (100, 0), (1 << 20, 3)] {
            assert!(BenchSize { total_bytes, page_bytes }.geometry().is_err(), "{total_bytes} in {page_bytes}");
        }
    }
}
