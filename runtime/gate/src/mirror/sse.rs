//! OpenAI's streams, chunk by chunk.
//!
//! A line is one chunk, `{"request_id", "at_ms", "data"}`, or a whole request with `chunks` of
//! `{"at_ms", "data"}`. Times count from when the request was sent, in any unit that the name
//! says; a request without any has no times. `data` is the JSON of an event, as an object or as the
//! text after `data:`, or `[DONE]`. Labels may stand on any line of a request. A stream without
//! `[DONE]` was cut off. Other files are the streams themselves: see `dump`.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::ops::ControlFlow;

use super::fields::{needed_text, object};
use super::stream::Stream;
use super::{Out, dump, each_line, peek_first};
use crate::error::{GateError, Place, Problem};

pub(super) fn read(reader: impl BufRead, out: &mut Out<'_, '_>) -> Result<(), GateError> {
    let (first, reader) = peek_first(reader, &out.name)?;
    if first.is_some_and(|byte| byte != b'{') {
        return dump::read(reader, out);
    }
    let mut open: BTreeMap<String, Stream> = BTreeMap::new();
    let mut wants_more = ControlFlow::Continue(());
    let name = out.name.clone();
    each_line(reader, &name, |line, bytes| {
        let place = Place::Line(line);
        let parsed = object(bytes).and_then(|row| Ok((needed_text(&row, "request_id")?, row)));
        let (id, row) = parsed.map_err(|problem| out.problem(problem, place))?;
        let is_whole = row.contains_key("chunks");
        if is_whole && open.contains_key(&id) {
            let text = "the request has single chunks before, too; keep one of the two";
            return Err(out.problem(Problem::new("request_id", text), place));
        }
        let mut stream = open.remove(&id).unwrap_or_else(|| Stream::new(line));
        stream.add_row(row).map_err(|problem| out.problem(problem, place))?;
        if stream.is_done() || is_whole {
            wants_more = stream.finish(id, out)?;
        } else {
            open.insert(id, stream);
        }
        Ok(wants_more)
    })?;
    let mut cut: Vec<(String, Stream)> = open.into_iter().collect();
    cut.sort_by_key(|(_, stream)| stream.line());
    for (id, stream) in cut {
        if wants_more.is_break() {
            break;
        }
        wants_more = stream.finish(id, out)?;
    }
    Ok(())
}
