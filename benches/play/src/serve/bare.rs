//! A server that only writes. Its gap errors are the smallest that this machine allows.
//!
//! One thread per core has a share of the connections, and writes the next event to each of them in turn when it is
//! due.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;

/// Length of a `vcr serve` event for one token of a text completion, including the chunk's frame.
const EVENT_BYTES: usize = 134;
/// Time from the last request to the first event.
const HEAD_START: Duration = Duration::from_millis(100);

/// Streams that the server writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) count: u64,
    pub(crate) interval_ns: u64,
    pub(crate) tokens: u32,
}

/// Opens a port and serves `streams` there once, from another thread. The answers look like a server's answers to
/// [`Clients`](super::Clients).
pub(crate) fn serve_once(streams: Written) -> Result<u16, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        // After an error here, the clients report their own error.
        if let Err(error) = accept_and_write(&listener, streams) {
            eprintln!("the bare writer has stopped: {error}");
        }
    });
    Ok(port)
}

fn accept_and_write(listener: &TcpListener, streams: Written) -> Result<(), Failure> {
    let mut connections = Vec::new();
    for _ in 0..streams.count {
        let (connection, _) = listener.accept()?;
        connection.set_nodelay(true)?;
        connections.push(connection);
    }
    for connection in &mut connections {
        read_request(connection)?;
    }
    let begin = Instant::now() + HEAD_START;
    let threads = thread::available_parallelism()?.get();
    let share = connections.len().div_ceil(threads);
    thread::scope(|scope| {
        let writers: Vec<_> =
            connections.chunks_mut(share).map(|share| scope.spawn(move || write_all(share, streams, begin))).collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("a writer does not panic"))
    })?;
    // The clients close the connections.
    for connection in &mut connections {
        io::copy(connection, &mut io::sink())?;
    }
    Ok(())
}

/// Reads up to the end of the JSON body.
fn read_request(connection: &mut TcpStream) -> Result<(), Failure> {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !request.ends_with(b"}}") {
        match connection.read(&mut buffer)? {
            0 => return Err("a client has closed its connection".into()),
            count => request.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(())
}

fn write_all(connections: &mut [TcpStream], streams: Written, begin: Instant) -> io::Result<()> {
    let Written { interval_ns, tokens, .. } = streams;
    let event = format!("data: {}\n\n", "-".repeat(EVENT_BYTES - 8));
    let first = format!("HTTP/1.1 200 OK\r\n\r\n{event}");
    for step in 0..tokens {
        let due = begin + Duration::from_nanos(interval_ns) * step;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let bytes = if step == 0 { &first } else { &event };
        connections.iter_mut().try_for_each(|connection| connection.write_all(bytes.as_bytes()))?;
    }
    let end = format!("data: \"completion_tokens\":{tokens}\r\n0\r\n\r\n");
    connections.iter_mut().try_for_each(|connection| connection.write_all(end.as_bytes()))
}
