//! Reads observations of real systems and of simulated runs.
//!
//! Every reader returns checked observations and the place of each in the file. A field that the source lacks stays
//! absent, with one exception: with [`MirrorOptions::lengths`], the length of an answer serves as its fingerprint.

mod aiperf;
mod exchange;
mod fields;
mod import;
mod literal;
mod log;
mod responses;
mod run;
mod sse;
mod stream;
mod table;

use std::io::{BufRead, Read as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use vcr_base::input::{Lines, Unpacked};
pub use vcr_trace::Format;
use vcr_trace::import::ImportError;
use vcr_trace::{FormatError, FormatOption, VcrOutput};

use crate::error::{GateError, Place, Problem, of_line};
use crate::observation::{OBSERVATION_VERSION, Observation, ObservationReader};
pub use table::{columns, is_column};

const PEEKED_BYTES: usize = 128 << 10;

/// The option that states the format of an input.
const FORMAT_OPTION: FormatOption = FormatOption { format: "--format", timestamp_unit: None };

/// Labels that [`MirrorOptions::set`] accepts.
pub const SETTABLE: [&str; 8] =
    ["model", "model_version", "backend", "backend_version", "accelerator", "tenant", "route", "scheduler"];

/// A file or folder, and the name of a run if it contains several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The file or folder.
    pub path: PathBuf,
    /// Name of the run; None if the input has only one.
    pub run: Option<String>,
}

impl Input {
    /// Reads `PATH` or `PATH#RUN`. The whole text is the path if that path exists.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.rsplit_once('#') {
            Some((path, run)) if !run.is_empty() && !Path::new(text).exists() => {
                Self { path: path.into(), run: Some(run.to_owned()) }
            }
            _ => Self { path: text.into(), run: None },
        }
    }

    /// The input's name in errors and reports.
    #[must_use]
    pub fn name(&self) -> String {
        let path = self.path.display();
        self.run.as_ref().map_or_else(|| path.to_string(), |run| format!("{path}#{run}"))
    }
}

/// Options of the readers.
#[derive(Clone, Debug, Default)]
pub struct MirrorOptions {
    /// The format; None to detect it.
    pub format: Option<Format>,
    /// Whether the length of an answer is its fingerprint if the source has no output.
    pub lengths: bool,
    /// Values for labels that observations lack: (one of [`SETTABLE`], value).
    pub set: Vec<(String, String)>,
    /// Names of a table's columns: (standard name, name in the table).
    pub columns: Vec<(String, String)>,
}

/// The summary of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrored {
    /// The format of the input.
    pub format: Format,
    pub observations: u64,
    /// Descriptions of the skipped items, with their counts.
    pub notes: Vec<(String, u64)>,
    /// A doubt about its times or answers, in words.
    pub doubt: Option<String>,
}

/// Receives the observations. Returns `Break` to stop the reader.
pub type Sink<'a> = dyn FnMut(&Observation<'_>, Place) -> Result<ControlFlow<()>, GateError> + 'a;

/// Reads an input as observations.
///
/// # Errors
/// If the input cannot be used. The error names the file, and the place and the field if they are known.
pub fn read(input: &Input, options: &MirrorOptions, sink: &mut Sink<'_>) -> Result<Mirrored, GateError> {
    let name = input.path.display().to_string();
    let requests = input.path.join("requests.jsonl");
    if input.path.is_dir() && input.path.join("report.json").is_file() && requests.is_file() {
        let name = requests.display().to_string();
        let reader = open(&requests, &name)?;
        return read_known(reader, &name, (Format::Requests, true), input.run.as_deref(), options, sink);
    }
    if input.path.is_dir() {
        return imported(&input.path, input, options, sink);
    }
    let mut reader = open(&input.path, &name)?;
    let start = reader.peek(PEEKED_BYTES).map_err(|source| GateError::Read { name: name.clone(), source })?;
    let format = match options.format {
        Some(format) => format,
        None if !options.columns.is_empty() => Format::Requests,
        None => match Format::detect(&name, start) {
            Err(FormatError::Empty { name }) => return Err(GateError::Empty { name }),
            detected => detected.map_err(|error| ImportError::from(error.with_option(Some(FORMAT_OPTION))))?,
        },
    };
    if is_imported(format, start, options) {
        drop(reader);
        return imported(&input.path, input, options, sink);
    }
    let is_run = is_run(start);
    read_known(reader, &name, (format, is_run), input.run.as_deref(), options, sink)
}

fn is_run(start: &[u8]) -> bool {
    VcrOutput::detect(start) == Some(VcrOutput::RunRequests)
}

fn open(path: &Path, name: &str) -> Result<Unpacked<'static>, GateError> {
    Unpacked::open(path).map_err(|source| GateError::Read { name: name.to_owned(), source })
}

fn imported(path: &Path, input: &Input, options: &MirrorOptions, sink: &mut Sink<'_>) -> Result<Mirrored, GateError> {
    let mut out = Out::new(path.display().to_string(), options, sink);
    let (format, notes) = import::read(path, input.run.as_deref(), &mut out)?;
    out.finish(format, notes)
}

/// Whether a file is converted to a capture first. Lists of requests are converted unless they come from `vcr run`,
/// have ids or have mapped columns.
fn is_imported(format: Format, start: &[u8], options: &MirrorOptions) -> bool {
    match format {
        Format::Observations | Format::Sse | Format::Responses | Format::Log | Format::Aiperf => false,
        Format::Requests => match VcrOutput::detect(start) {
            Some(VcrOutput::RunRequests) => false,
            Some(VcrOutput::ReplayRequests) => true,
            _ => options.columns.is_empty() && !table::has_ids(start),
        },
        _ => true,
    }
}

/// Reads a stream of a known format that needs no conversion to a capture. Errors use `name` for the stream.
///
/// # Errors
/// See [`read`].
pub fn read_stream(
    mut reader: impl BufRead,
    name: &str,
    format: Format,
    run: Option<&str>,
    options: &MirrorOptions,
    sink: &mut Sink<'_>,
) -> Result<Mirrored, GateError> {
    let start = reader.fill_buf().map_err(|source| GateError::Read { name: name.to_owned(), source })?;
    let is_run = is_run(&start[..start.len().min(PEEKED_BYTES)]);
    read_known(reader, name, (format, is_run), run, options, sink)
}

/// Like [`read_stream`], with a flag for the lists of requests that `vcr run` writes.
fn read_known(
    reader: impl BufRead,
    name: &str,
    (format, is_run): (Format, bool),
    run: Option<&str>,
    options: &MirrorOptions,
    sink: &mut Sink<'_>,
) -> Result<Mirrored, GateError> {
    let mut out = Out::new(name.to_owned(), options, sink);
    let mut notes = Vec::new();
    let mut doubt = None;
    match format {
        Format::Observations => own(ObservationReader::new(reader, name), &mut out)?,
        Format::Requests if is_run => run::read(reader, run, &mut out)?,
        Format::Requests => table::read(reader, &mut out)?,
        Format::Sse => doubt = sse::read(reader, &mut out)?,
        Format::Responses => responses::read(reader, &mut out)?,
        Format::Log => notes = log::read(reader, &mut out)?,
        Format::Aiperf => aiperf::read(reader, &mut out)?,
        _ => {
            let text = "captures and the files of other tools are read by their path";
            return Err(Problem::new("", text).at(name, Place::File).into());
        }
    }
    Ok(Mirrored { doubt, ..out.finish(format, notes)? })
}

fn own<R: BufRead>(mut reader: ObservationReader<R>, out: &mut Out<'_, '_>) -> Result<(), GateError> {
    while let Some((line, observation)) = reader.next_observation()? {
        if out.checked(observation, Place::Line(line))?.is_break() {
            break;
        }
    }
    Ok(())
}

struct Out<'a, 's> {
    name: String,
    options: &'a MirrorOptions,
    sink: &'a mut Sink<'s>,
    observations: u64,
}

impl<'a, 's> Out<'a, 's> {
    fn new(name: String, options: &'a MirrorOptions, sink: &'a mut Sink<'s>) -> Self {
        Self { name, options, sink, observations: 0 }
    }

    /// Completes an observation of another tool, checks it and passes it to the sink. `tokens` is the length of the
    /// answer, if known.
    fn add(
        &mut self,
        mut observation: Observation<'_>,
        tokens: Option<u64>,
        place: Place,
    ) -> Result<ControlFlow<()>, GateError> {
        observation.version = OBSERVATION_VERSION;
        if observation.latency_ns.is_none() {
            // The answer ends with its last event.
            observation.latency_ns = observation.event_ns.as_ref().and_then(|events| events.last().copied());
        }
        if observation.provenance.is_none() {
            observation.provenance = Some(format!("{}, {place}", self.name).into());
        }
        let has_output = observation.token_ids.is_some() || observation.text.is_some();
        let has_output = has_output || observation.fingerprint.is_some() || observation.vector.is_some();
        if let Some(tokens) = tokens.filter(|_| self.options.lengths && observation.ok && !has_output) {
            observation.fingerprint = Some(length(tokens).into());
        } else if observation.ok && !has_output {
            let text = "a successful observation needs output material, which its source does not have: record \
                        outputs, or compare lengths of answers with --lengths";
            return Err(Problem::new("", text).at(&self.name, place).into());
        }
        observation.check().map_err(|problem| problem.at(&self.name, place))?;
        self.checked(observation, place)
    }

    /// Passes a checked observation to the sink, with the labels of the options.
    fn checked(&mut self, mut observation: Observation<'_>, place: Place) -> Result<ControlFlow<()>, GateError> {
        for (label, value) in &self.options.set {
            let field = fields::label(&mut observation, label);
            if let Some(field) = field.filter(|field| field.is_none()) {
                *field = Some(value.clone().into());
            }
        }
        self.observations += 1;
        (self.sink)(&observation, place)
    }

    fn problem(&self, problem: Problem, place: Place) -> GateError {
        problem.at(&self.name, place).into()
    }

    fn finish(self, format: Format, notes: Vec<(String, u64)>) -> Result<Mirrored, GateError> {
        if self.observations == 0 {
            return Err(GateError::Empty { name: self.name });
        }
        Ok(Mirrored { format, observations: self.observations, notes, doubt: None })
    }
}

/// The fingerprint of an answer of which only the length is known.
fn length(tokens: u64) -> String {
    format!("length {tokens}")
}

/// Returns the first byte that is not white space, and the stream from its beginning.
fn peek_first<R: BufRead>(mut reader: R, name: &str) -> Result<(Option<u8>, impl BufRead + use<R>), GateError> {
    let unreadable = |source| GateError::Read { name: name.to_owned(), source };
    let (mut blank, mut first) = (Vec::new(), None);
    while first.is_none() {
        let mut byte = [0];
        if reader.read(&mut byte).map_err(unreadable)? == 0 {
            break;
        }
        blank.push(byte[0]);
        first = Some(byte[0]).filter(|byte| !byte.is_ascii_whitespace() && !b"\xef\xbb\xbf".contains(byte));
    }
    Ok((first, std::io::Cursor::new(blank).chain(reader)))
}

fn each_line(
    reader: impl BufRead,
    name: &str,
    mut each: impl FnMut(u64, &[u8]) -> Result<ControlFlow<()>, GateError>,
) -> Result<(), GateError> {
    let mut lines = Lines::new(reader);
    while let Some((number, line)) = lines.next_row().map_err(|error| of_line(name, error))? {
        if each(number, line)?.is_break() {
            break;
        }
    }
    Ok(())
}
