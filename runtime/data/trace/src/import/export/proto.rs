//! The part of Perfetto's own format that vcr writes.
//!
//! The messages are those of `perfetto_trace.proto`, with only the fields that are used. A name is written once;
//! after that, it is referred to by number.

use std::collections::BTreeMap;
use std::io::{self, Write};

use prost::Message;

use super::tracks::{Slice, TrackSink};

/// One message of a trace. A trace is a sequence of messages, each in field 1.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    /// In nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub(super) trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub(super) track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(super) interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub(super) sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub(super) track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub(super) debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    pub(super) r#type: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub(super) name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub(super) track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    pub(super) name: Option<String>,
    #[prost(double, optional, tag = "44")]
    pub(super) double_counter_value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, optional, tag = "1")]
    pub(super) name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub(super) uint_value: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "2")]
    pub(super) event_names: Vec<InternedName>,
    #[prost(message, repeated, tag = "3")]
    pub(super) debug_annotation_names: Vec<InternedName>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedName {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub(super) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(super) counter: Option<CounterDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub(super) process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CounterDescriptor {}

pub(super) const SLICE_BEGIN: i32 = 1;
pub(super) const SLICE_END: i32 = 2;
pub(super) const INSTANT: i32 = 3;
pub(super) const COUNTER: i32 = 4;
/// States that no names were written before.
const STATE_CLEARED: u32 = 1;
/// States that the packet refers to names written before.
const NEEDS_STATE: u32 = 2;
const SEQUENCE: u32 = 1;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Track {
    Process(u64),
    Thread(u64, u64),
    Counter(u64, String),
}

struct ProtoSink<W: Write> {
    out: W,
    bytes: Vec<u8>,
    has_begun: bool,
    tracks: BTreeMap<Track, u64>,
    event_names: BTreeMap<String, u64>,
    argument_names: BTreeMap<String, u64>,
}

pub(super) fn sink<'a>(out: impl Write + 'a) -> io::Result<Box<dyn TrackSink + 'a>> {
    Ok(Box::new(ProtoSink::new(out)))
}

impl<W: Write> ProtoSink<W> {
    fn new(out: W) -> Self {
        Self {
            out,
            bytes: Vec::new(),
            has_begun: false,
            tracks: BTreeMap::new(),
            event_names: BTreeMap::new(),
            argument_names: BTreeMap::new(),
        }
    }

    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let first = if std::mem::replace(&mut self.has_begun, true) { 0 } else { STATE_CLEARED };
        let packet = TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(first | NEEDS_STATE),
            ..packet
        };
        self.bytes.clear();
        prost::encoding::message::encode(1, &packet, &mut self.bytes);
        self.out.write_all(&self.bytes)
    }

    fn event(&mut self, at_ns: u64, event: TrackEvent, interned: InternedData) -> io::Result<()> {
        let is_new = !interned.event_names.is_empty() || !interned.debug_annotation_names.is_empty();
        self.packet(TracePacket {
            timestamp: Some(at_ns),
            track_event: Some(event),
            interned_data: is_new.then_some(interned),
            ..TracePacket::default()
        })
    }

    /// Returns the number of a track, and whether the track is new.
    fn track(&mut self, track: Track) -> (u64, bool) {
        let next = self.tracks.len() as u64 + 1;
        let uuid = *self.tracks.entry(track).or_insert(next);
        (uuid, uuid == next)
    }

    fn describe(&mut self, descriptor: TrackDescriptor) -> io::Result<()> {
        self.packet(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })
    }
}

impl<W: Write> ProtoSink<W> {
    fn begin(&mut self, process: u64, thread: u64, slice: &Slice<'_>) -> io::Result<()> {
        let (track_uuid, _) = self.track(Track::Thread(process, thread));
        let mut interned = InternedData::default();
        let mut event = TrackEvent { r#type: Some(SLICE_BEGIN), track_uuid: Some(track_uuid), ..TrackEvent::default() };
        if slice.is_common {
            event.name_iid = Some(intern(&mut self.event_names, slice.name, &mut interned.event_names));
        } else {
            event.name = Some(slice.name.to_owned());
        }
        for (name, value) in slice.args {
            let name_iid = intern(&mut self.argument_names, name, &mut interned.debug_annotation_names);
            event.debug_annotations.push(DebugAnnotation { name_iid: Some(name_iid), uint_value: Some(*value) });
        }
        self.event(slice.start_ns, event, interned)
    }

    fn end(&mut self, process: u64, thread: u64, at_ns: u64) -> io::Result<()> {
        let (track_uuid, _) = self.track(Track::Thread(process, thread));
        let event = TrackEvent { r#type: Some(SLICE_END), track_uuid: Some(track_uuid), ..TrackEvent::default() };
        self.event(at_ns, event, InternedData::default())
    }
}

/// Returns the number of a name. A new name is added to `new`.
fn intern(names: &mut BTreeMap<String, u64>, name: &str, new: &mut Vec<InternedName>) -> u64 {
    if let Some(iid) = names.get(name) {
        return *iid;
    }
    let iid = names.len() as u64 + 1;
    names.insert(name.to_owned(), iid);
    new.push(InternedName { iid: Some(iid), name: Some(name.to_owned()) });
    iid
}

impl<W: Write> TrackSink for ProtoSink<W> {
    fn process(&mut self, process: u64, name: &str) -> io::Result<()> {
        let (uuid, _) = self.track(Track::Process(process));
        let process = ProcessDescriptor { pid: i32::try_from(process).ok(), process_name: Some(name.to_owned()) };
        self.describe(TrackDescriptor { uuid: Some(uuid), process: Some(process), ..TrackDescriptor::default() })
    }

    fn name_thread(&mut self, process: u64, thread: u64, name: &str) -> io::Result<()> {
        let (parent, _) = self.track(Track::Process(process));
        let (uuid, _) = self.track(Track::Thread(process, thread));
        let name = Some(name.to_owned());
        self.describe(TrackDescriptor {
            uuid: Some(uuid),
            name,
            parent_uuid: Some(parent),
            ..TrackDescriptor::default()
        })
    }

    fn slice(&mut self, process: u64, thread: u64, slice: &Slice<'_>, parts: &[Slice<'_>]) -> io::Result<()> {
        self.begin(process, thread, slice)?;
        for part in parts {
            self.begin(process, thread, part)?;
            self.end(process, thread, part.end_ns)?;
        }
        self.end(process, thread, slice.end_ns)
    }

    fn instant(&mut self, process: u64, thread: u64, name: &str, at_ns: u64) -> io::Result<()> {
        let (track_uuid, _) = self.track(Track::Thread(process, thread));
        let (kind, name) = (Some(INSTANT), Some(name.to_owned()));
        let event = TrackEvent { r#type: kind, name, track_uuid: Some(track_uuid), ..TrackEvent::default() };
        self.event(at_ns, event, InternedData::default())
    }

    fn counter(&mut self, process: u64, name: &str, at_ns: u64, value: f64) -> io::Result<()> {
        let (parent, _) = self.track(Track::Process(process));
        let (uuid, is_new) = self.track(Track::Counter(process, name.to_owned()));
        if is_new {
            self.describe(TrackDescriptor {
                uuid: Some(uuid),
                name: Some(name.to_owned()),
                parent_uuid: Some(parent),
                counter: Some(CounterDescriptor {}),
                ..TrackDescriptor::default()
            })?;
        }
        let event = TrackEvent {
            r#type: Some(COUNTER),
            track_uuid: Some(uuid),
            double_counter_value: Some(value),
            ..TrackEvent::default()
        };
        self.event(at_ns, event, InternedData::default())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
