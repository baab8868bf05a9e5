//! The tracks of a trace, independent of the format.

use std::io;

pub(crate) struct Slice<'a> {
    pub(super) name: &'a str,
    /// Whether many slices have this name.
    #[cfg_attr(not(feature = "formats"), expect(dead_code, reason = "JSON repeats names"))]
    pub(super) is_common: bool,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) args: &'a [(&'a str, u64)],
}

pub(crate) trait TrackSink {
    /// Names a group of threads and counters.
    fn process(&mut self, process: u64, name: &str) -> io::Result<()>;
    fn name_thread(&mut self, process: u64, thread: u64, name: &str) -> io::Result<()>;
    /// Writes a slice and the slices inside it.
    fn slice(&mut self, process: u64, thread: u64, slice: &Slice<'_>, parts: &[Slice<'_>]) -> io::Result<()>;
    fn instant(&mut self, process: u64, thread: u64, name: &str, at_ns: u64) -> io::Result<()>;
    /// Writes the value of a counter from this time on.
    fn counter(&mut self, process: u64, name: &str, at_ns: u64, value: f64) -> io::Result<()>;
    fn finish(&mut self) -> io::Result<()>;
}
