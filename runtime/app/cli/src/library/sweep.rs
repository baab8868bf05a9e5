//! Sweeps whose points are executed one by one, by threads or other machines.
//!
//! The result of a point is JSON, in the format of shard files. The table of all results has the same bytes as that
//! of a sweep in one process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::value::RawValue;
use vcr_scenario::{Reporter, SourceFile};
use vcr_trace::import::table::Column;

use super::{Refusal, Source, command};
use crate::args::Command;
use crate::exit::Exit;
use crate::merge;
use crate::pack::{merged, pack_for_sweep};
use crate::replay::sweep as replay;
use crate::run::args::QuestionArgs;
use crate::run::measured::Measured;
use crate::run::points::{self, Point, Points};
use crate::run::search::{FoundRow, SearchSpec, search_once};
use crate::run::sweep::point;
use crate::sweep::part::{Header, Part, SweepKind};
use crate::sweep::shard::Shard;
use crate::sweep::{Axis, axes, combinations, label};

/// A planned grid of executions, with the data that all points share.
pub struct Sweep {
    header: Header,
    combinations: Vec<Vec<String>>,
    file: Option<PathBuf>,
    /// Text of a scenario that is not in a file.
    text: Option<String>,
    kind: Kind,
    /// The reason why points that were executed here are infeasible, by point number.
    infeasible: Mutex<BTreeMap<usize, Refusal>>,
}

enum Kind {
    Run { points: Box<Points>, repetitions: u64 },
    Search { points: Box<Points>, search: Box<Search> },
    Replay { points: Box<replay::Points> },
}

struct Search {
    asked: SearchSpec,
    questions: QuestionArgs,
}

/// A file that points read, and its contents.
#[derive(Clone, Debug)]
pub struct InputFile {
    /// The command-line argument that names the file.
    pub word: String,
    /// Names and contents of the file and of other files in its folder that it needs.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Sweep {
    /// Plans the sweep on the command line of `vcr run` or `vcr replay`. `source` replaces the scenario on the
    /// command line.
    ///
    /// # Errors
    /// The errors of the commands, and a command line without `--sweep`.
    pub fn plan(words: &[OsString], source: Option<Source>) -> Result<Self, Refusal> {
        match command(words)? {
            Command::Run(args) => {
                let args = args.into_inner();
                let options = crate::run::options(&args)?;
                let questions = args.questions.clone();
                let axes = some_axes(&questions.sweeps)?;
                let asked =
                    questions.search.as_ref().map(|text| SearchSpec::of(&questions, text, &axes)).transpose()?;
                let searched = asked.iter().map(|asked| asked.name.as_str());
                let names: Vec<&str> = searched.chain(axes.iter().map(|axis| axis.name.as_str())).collect();
                let settings = points::settings(&args, &options);
                let (file, text) = match source {
                    Some(Source { name, text }) => (PathBuf::from(name), Some(text)),
                    None => (args.file.clone(), None),
                };
                let points = Box::new(Points::new(&file, text.as_deref(), options, &names, true)?);
                let kind = match asked {
                    Some(asked) => {
                        Kind::Search { points, search: Box::new(Search { asked, questions: questions.clone() }) }
                    }
                    None => Kind::Run { points, repetitions: questions.repeat.unwrap_or(1) },
                };
                let of = if questions.search.is_some() { SweepKind::Search } else { SweepKind::Run };
                let is_repeated = questions.repeat.is_some() && of == SweepKind::Run;
                let sweep = Self::new(of, &axes, is_repeated, &settings, Some(file), kind)?;
                Ok(Self { text, ..sweep })
            }
            Command::Replay(args) => {
                let axes = some_axes(&args.sweep.sweeps)?;
                let points = Box::new(replay::Points::new(*args.into_inner(), axes.clone())?);
                let settings = points.settings();
                Self::new(SweepKind::Replay, &axes, false, &settings, None, Kind::Replay { points })
            }
            _ => Err(Refusal::input("expected the options of `vcr run` or `vcr replay`")),
        }
    }

    fn new(
        of: SweepKind,
        axes: &[Axis],
        is_repeated: bool,
        settings: &str,
        file: Option<PathBuf>,
        kind: Kind,
    ) -> Result<Self, Refusal> {
        let combinations = combinations(axes).map_err(Refusal::input)?;
        let mut header = Header::new(of, axes, combinations.len(), Shard::WHOLE, settings);
        header.is_repeated = is_repeated;
        Ok(Self { header, combinations, file, text: None, kind, infeasible: Mutex::default() })
    }

    /// Number of points.
    #[must_use]
    pub fn points(&self) -> usize {
        self.combinations.len()
    }

    /// Names of the swept parameters.
    #[must_use]
    pub fn axes(&self) -> Vec<&str> {
        self.header.axes.iter().map(|axis| axis.name.as_str()).collect()
    }

    /// The values of a point, one for each axis.
    #[must_use]
    pub fn values(&self, point: usize) -> &[String] {
        &self.combinations[point]
    }

    /// Checks all points without executing them, and returns the files that they read.
    ///
    /// # Errors
    /// The first invalid point, or a file that cannot be read.
    pub fn check(&mut self) -> Result<Vec<InputFile>, Refusal> {
        let (inputs, files) = match &self.kind {
            Kind::Run { points, .. } => self.run_inputs(points, None)?,
            Kind::Search { points, search } => self.run_inputs(points, Some(&search.asked))?,
            Kind::Replay { points } => {
                for values in &self.combinations {
                    points.setup(values)?;
                }
                let inputs = points.inputs();
                let files = inputs.iter().map(|path| replay_input(path)).collect::<Result<Vec<_>, _>>()?;
                (inputs, files)
            }
        };
        self.header.digest_inputs(&inputs).map_err(|error| Refusal::input(error.to_string()))?;
        if let (Some(file), Some(text)) = (&self.file, &self.text) {
            self.header.digest_text(&file.display().to_string(), text);
        }
        Ok(files)
    }

    /// Puts the files of a scenario into one pack.
    fn run_inputs(
        &self,
        points: &Points,
        asked: Option<&SearchSpec>,
    ) -> Result<(Vec<PathBuf>, Vec<InputFile>), Refusal> {
        let path = self.file.clone().unwrap_or_default();
        let mut sources = Vec::new();
        let mut first_refusal = None;
        let mut has_checked = false;
        for values in &self.combinations {
            let mut point = point(&self.header.axes, values, 0);
            if let Some(asked) = asked {
                point.parameters.push((asked.name.clone(), asked.first()));
            }
            match points.check_one(&point) {
                Ok(found) => {
                    has_checked = true;
                    sources = merged(sources.into_iter().chain(found));
                }
                // An infeasible point is a result, unless all points are infeasible.
                Err(refusal) if refusal.exit == Exit::BadInput => {
                    first_refusal.get_or_insert(refusal);
                }
                Err(refusal) => return Err(refusal),
            }
        }
        if let Some(refusal) = first_refusal.filter(|_| !has_checked) {
            return Err(refusal);
        }
        let mut files: Vec<PathBuf> = self.text.is_none().then(|| path.clone()).into_iter().collect();
        let word = vcr_base::input::remote::named(&path).display().to_string();
        if points.is_packed() {
            let file = read_named(&path)?;
            return Ok((files, vec![InputFile { word, files: vec![file] }]));
        }
        for source in &sources {
            let found = source.files().map_err(|error| unreadable(&source.path, &error))?;
            files.extend(found.into_iter().map(|(_, path)| path));
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let pack = (format!("{name}.vcr"), pack_for_sweep(&path, self.text.as_deref(), &sources)?);
        Ok((files, vec![InputFile { word, files: vec![pack] }]))
    }

    /// The first line of a file of results.
    #[must_use]
    pub fn header(&self) -> String {
        serde_json::to_string(&self.header).unwrap_or_default()
    }

    /// Executes a point and returns its result, or none if it was stopped.
    pub fn execute(
        &self,
        number: usize,
        threads: usize,
        reporter: &Arc<dyn Reporter>,
    ) -> Result<Option<String>, Refusal> {
        let values = self.combinations.get(number).ok_or_else(|| {
            Refusal::input(format!("invalid point {number}: expected a number below {}", self.combinations.len()))
        })?;
        let json = match &self.kind {
            Kind::Run { points, repetitions } => {
                let one = |repetition| {
                    points.execute_one(&point(&self.header.axes, values, repetition), threads, Arc::clone(reporter))
                };
                let measured = (0..*repetitions).map(one).collect::<Result<Option<Vec<_>>, _>>()?;
                measured.map(|mut measured| {
                    self.note_infeasible(number, Measured::whole_refusal(&mut measured));
                    serde_json::to_string(&measured)
                })
            }
            Kind::Search { points, search } => {
                let Search { asked, questions } = &**search;
                let execute = |all: &[Point]| {
                    all.iter().map(|point| points.execute_one(point, threads, Arc::clone(reporter))).collect()
                };
                let mut searched =
                    search_once(questions, asked, (&self.header.axes, values), &execute, points.is_in_real_time())?;
                self.note_infeasible(number, searched.refusal.take());
                searched.has_ended.then(|| serde_json::to_string(&FoundRow::of(&searched)))
            }
            Kind::Replay { points } => {
                let measured = points.execute(values, &**reporter)?;
                measured.map(|measured| {
                    let label = label(&self.header.axes, values);
                    let refusal = measured.infeasible.as_ref().map(|why| Refusal::input(why.clone()).of(&label));
                    self.note_infeasible(number, refusal);
                    serde_json::to_string(&measured)
                })
            }
        };
        let unwritable = |error: serde_json::Error| {
            let label = label(&self.header.axes, values);
            Refusal::input(format!("--sweep, {label}: the result cannot be written: {error}"))
        };
        json.transpose().map_err(unwritable)
    }

    fn note_infeasible(&self, number: usize, refusal: Option<Refusal>) {
        let mut infeasible = self.infeasible.lock().unwrap_or_else(PoisonError::into_inner);
        infeasible.extend(refusal.map(|refusal| (number, refusal)));
    }

    /// Makes the table from results and their point numbers. Points may be missing.
    ///
    /// # Errors
    /// A result of another sweep, or that all points are infeasible and were executed here.
    pub fn columns(&self, results: Vec<(usize, String)>) -> Result<Vec<Column>, Refusal> {
        {
            let infeasible = self.infeasible.lock().unwrap_or_else(PoisonError::into_inner);
            if infeasible.len() == self.combinations.len()
                && let Some(first) = infeasible.values().next()
            {
                return Err(first.clone());
            }
        }
        let raw = |(point, text): (usize, String)| {
            let value = RawValue::from_string(text);
            value.map(|value| (point, value)).map_err(|error| Refusal::input(format!("point {point}: {error}")))
        };
        let results = results.into_iter().map(raw).collect::<Result<BTreeMap<_, _>, _>>()?;
        let part = Part::of(PathBuf::from("results"), self.header.clone(), results);
        merge::columns(&[part]).map_err(Refusal::input)
    }
}

fn some_axes(sweeps: &[String]) -> Result<Vec<Axis>, Refusal> {
    if sweeps.is_empty() {
        return Err(Refusal::input("the grid is empty: expected a name and its values, such as rate=1..16"));
    }
    axes(sweeps).map_err(Refusal::input)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Refusal {
    Refusal::input(format!("cannot read `{}`: {error}", path.display()))
}

fn read_named(path: &Path) -> Result<(String, Vec<u8>), Refusal> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok((name, fs::read(path).map_err(|error| unreadable(path, &error))?))
}

/// A trace file of a replay, and the later parts of a rotated capture.
fn replay_input(path: &Path) -> Result<InputFile, Refusal> {
    let word = vcr_base::input::remote::named(path).display().to_string();
    let source = SourceFile { kind: "trace", name: path.display().to_string(), path: path.to_owned(), parts: None };
    let mut files = vec![read_named(path)?];
    for (_, part) in source.files().map_err(|error| unreadable(path, &error))? {
        if part != path {
            files.push(read_named(&part)?);
        }
    }
    Ok(InputFile { word, files })
}
