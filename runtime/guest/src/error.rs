use std::path::PathBuf;
use std::time::Duration;

use vcr_core::policy::PreferenceProblem;
use vcr_core::scale::DESIRED_ENGINES_MAX;

use crate::api_version::{ApiVersion, supported_list};
use crate::wasi::granting;
use crate::world::World;

/// What went wrong with a guest. [`GuestError::hint`] says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The file could not be read.
    #[error("cannot read guest `{}`: {source}", path.display())]
    Read {
        /// The path as it was given.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is no guest that this build can run.
    #[error("cannot load guest `{guest}`: {problem}")]
    Load {
        /// The path or name of the guest.
        guest: String,
        /// Why not.
        problem: LoadProblem,
    },
    /// The guest failed in a call. Its instance is gone; the module can still
    /// make new ones.
    #[error("guest `{guest}` failed in `{call}`: {fault}")]
    Call {
        /// The name of the guest.
        guest: String,
        /// The call as `wit/` names it.
        call: &'static str,
        /// What it did.
        fault: CallFault,
        /// The example configuration that the component brings, where it brings one.
        example: Option<String>,
    },
    /// This machine did not give what the guest needs; the guest is not to blame.
    #[error("this machine cannot run guest `{guest}`: {reason}; {HOST_HINT}")]
    Host {
        /// The name of the guest.
        guest: String,
        /// What the operating system refused.
        reason: String,
    },
    /// The sandbox itself could not be set up: our fault, or the machine's.
    #[error("the WebAssembly sandbox cannot be set up: {reason}")]
    Sandbox {
        /// What wasmtime says.
        reason: String,
    },
}

/// Why a file cannot be loaded as a guest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadProblem {
    /// The file is larger than the limit.
    #[error("{}", too_large(*.size_bytes, *.limit_bytes))]
    TooLarge {
        /// Size of the file; none where it is a device or a pipe, which has none.
        size_bytes: Option<u64>,
        /// [`Limits::component_bytes`](crate::Limits::component_bytes).
        limit_bytes: u64,
    },
    /// The file does not begin like WebAssembly.
    #[error("it is not a WebAssembly file")]
    NotWebAssembly,
    /// The file holds nothing.
    #[error("the file is empty")]
    Empty,
    /// The file begins like a component but does not go on like one.
    #[error("the component is damaged: {reason}")]
    Damaged {
        /// What the parser says.
        reason: String,
    },
    /// A core module, as a compiler makes it, rather than a component.
    #[error("it is a core module, not a component")]
    CoreModule,
    /// The component wants something from the host that it is not given.
    #[error("it imports {}, which it is not given", quoted(.imports))]
    Imports {
        /// Names of those imports.
        imports: Vec<String>,
    },
    /// The component belongs to none of our worlds.
    #[error("it is no guest: it exports none of {}, only {}", interfaces(), quoted(.exports))]
    NoWorld {
        /// Names of the exports.
        exports: Vec<String>,
    },
    /// The component would belong to several worlds.
    #[error("it is both a {first} and a {second}, but a guest is of one world")]
    SeveralWorlds {
        /// One of them.
        first: World,
        /// Another one.
        second: World,
    },
    /// The component belongs to another world than is needed of it.
    #[error(
        "it is a {found} (world `{}`), but a {expected} (world `{}`) is needed",
        .found.name(),
        .expected.name()
    )]
    OtherWorld {
        /// The world it belongs to.
        found: World,
        /// The one it should belong to.
        expected: World,
    },
    /// The component was made for an interface that this build does not know.
    #[error("it declares guest API {declared}, but this build supports {}", supported_list())]
    UnsupportedVersion {
        /// The version in the name of the export.
        declared: ApiVersion,
    },
    /// The component does not compile.
    #[error("it does not compile: {reason}")]
    Compile {
        /// What the compiler says.
        reason: String,
    },
    /// The component's functions have other types than its interface.
    #[error("it does not fit the interface that it declares: {reason}")]
    Unfit {
        /// What the linker says.
        reason: String,
    },
}

/// What a guest did wrong in a call.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallFault {
    /// The guest returned an error in words.
    #[error("{reason}")]
    Rejected {
        /// The guest's own text.
        reason: String,
    },
    /// The operating system refused memory or another resource.
    #[error("this machine refused what the call needs, which is not the guest's fault: {reason}")]
    Host {
        /// What the operating system refused.
        reason: String,
    },
    /// The guest used up its fuel.
    #[error("it looped for ever, or worked too long: used its {fuel} fuel")]
    OutOfFuel {
        /// The fuel it had.
        fuel: u64,
    },
    /// The guest took more real time than a call may, in a live engine.
    #[error("it took longer than the {limit:?} that a call may take")]
    TimedOut {
        /// [`Limits::wall_time_per_call`](crate::Limits::wall_time_per_call).
        limit: Duration,
    },
    /// The guest told too much in one call.
    #[error("it called functions of `observe` more than {limit} times in one call")]
    TooManyObservations {
        /// [`Limits::observe_calls_per_call`](crate::Limits::observe_calls_per_call).
        limit: u32,
    },
    /// The guest asked for more memory than it may have.
    #[error("it asked for {asked_bytes} bytes of memory, but may have {limit_bytes}")]
    Memory {
        /// What the memory would have grown to.
        asked_bytes: usize,
        /// [`Limits::memory_bytes`](crate::Limits::memory_bytes).
        limit_bytes: usize,
    },
    /// The guest asked for more memory than its own declaration, or
    /// WebAssembly, allows.
    #[error("it asked for more memory than it can address, and may have {limit_bytes} bytes")]
    MemoryBeyondType {
        /// [`Limits::memory_bytes`](crate::Limits::memory_bytes).
        limit_bytes: usize,
    },
    /// The guest asked for larger tables than it may have.
    #[error("it asked for a table of {asked} elements, but may have {limit}")]
    Table {
        /// What the table would have grown to.
        asked: usize,
        /// [`Limits::table_elements`](crate::Limits::table_elements).
        limit: usize,
    },
    /// The guest nested calls too deeply.
    #[error("it nested calls too deeply and overflowed its stack")]
    StackOverflow,
    /// The guest gave up.
    #[error("it gave up: a panic, a failed assertion or memory that ran out")]
    Panicked,
    /// Any other trap.
    #[error("it trapped: {reason}")]
    Trapped {
        /// What wasmtime says.
        reason: String,
    },
    /// The answer is larger than the host copies.
    #[error("its answer is larger than the {limit_bytes} bytes that an answer may have")]
    AnswerTooLarge {
        /// [`Limits::answer_bytes`](crate::Limits::answer_bytes).
        limit_bytes: usize,
    },
    /// A pricing call answered no duration at all.
    #[error("it answered no duration for {steps} steps")]
    NoDurations {
        /// Steps in the call.
        steps: usize,
    },
    /// A pricing call answered more durations than there were steps.
    #[error("it answered {durations} durations for {steps} steps")]
    TooManyDurations {
        /// Durations in the answer.
        durations: usize,
        /// Steps in the call.
        steps: usize,
    },
    /// A duration that no step can have.
    #[error("it priced the step starting at {start_ns} ns at {value} ns, which is {complaint}")]
    BadDuration {
        /// Virtual time at which the step starts.
        start_ns: u64,
        /// What the guest answered.
        value: f64,
        /// Why that cannot be.
        complaint: &'static str,
    },
    /// A step was priced that would start after something may have changed.
    #[error("it priced a step starting at {start_ns} ns, at or after the horizon {horizon_ns} ns")]
    PastHorizon {
        /// Virtual time at which the step would start.
        start_ns: u64,
        /// The horizon of the call.
        horizon_ns: u64,
    },
    /// A call for tokens answered too few or too many.
    #[error("it answered {given} tokens, but {wanted} were wanted")]
    TokenCount {
        /// Tokens in the answer.
        given: usize,
        /// Tokens of all wants.
        wanted: usize,
    },
    /// A request was refused in another call than `step`.
    #[error("it called `refuse` outside of `step`")]
    RefusedOutsideStep,
    /// A slot was refused that no request has.
    #[error("it refused the request in slot {slot}, where none has started and not ended")]
    RefusedNoRequest {
        /// The slot.
        slot: u32,
    },
    /// Too many requests were refused in one call.
    #[error("it called `refuse` more than {limit} times in one call")]
    TooManyRefusals {
        /// [`Limits::refusals_per_call`](crate::Limits::refusals_per_call).
        limit: usize,
    },
    /// An answer is no list of actions.
    #[error("it answered {words} words, but an action has 3")]
    RaggedActions {
        /// Words in the answer.
        words: usize,
    },
    /// An action that cannot be.
    #[error("its action {index}, the words {words:?}, {problem}")]
    BadAction {
        /// Index of the action in the answer.
        index: usize,
        /// The action as it was answered.
        words: [u64; 3],
        /// Why that cannot be.
        problem: ActionProblem,
    },
    /// An answer is no list of preferences.
    #[error("it answered {words} words, but a preference has 3")]
    RaggedPreferences {
        /// Words in the answer.
        words: usize,
    },
    /// A preference that cannot be.
    #[error("its preference {index}, the words {words:?}, {problem}")]
    BadPreference {
        /// Index of the preference in the answer.
        index: usize,
        /// The preference as it was answered.
        words: [u64; 3],
        /// Why that cannot be.
        problem: PreferenceFault,
    },
    /// A router chose an engine that it was not shown.
    #[error("it chose the engine {chosen} for request {request}, but those that are up are {up}")]
    NoSuchWorker {
        /// The index that it answered.
        chosen: u32,
        /// Number of the request.
        request: u64,
        /// Indices of the engines that it was shown, in words.
        up: String,
    },
    /// A router refused a request that it had to take.
    #[error("it refused request {request}, which has been with an engine before")]
    MustBeServed {
        /// Number of the request.
        request: u64,
    },
    /// An autoscaler wants more engines than anybody has.
    #[error("it wants {desired} engines, but at most {DESIRED_ENGINES_MAX} can be wanted")]
    TooManyEngines {
        /// The number that it answered.
        desired: u32,
    },
    /// The instance was called again after it had failed.
    #[error("it had failed before: {first}")]
    FailedBefore {
        /// What happened the first time.
        first: String,
    },
}

/// What is wrong with an action of a failure injector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActionProblem {
    /// Its kind means nothing.
    #[error("is of no kind: kinds are 0 to 8")]
    UnknownKind,
    /// It fails a request that is not there.
    #[error("fails a request that is not there: none in that slot has arrived and neither ended nor been failed")]
    NoSuchRequest,
    /// It takes longer than time lasts.
    #[error("takes longer than 1e18 ns")]
    TooLong,
    /// It does not say whether the engine comes back.
    #[error("does not say whether the engine comes back: word 2 is 1, or words 1 and 2 are 0")]
    NoRestart,
    /// It fails a utility call where there is none.
    #[error("fails a utility call, but none was announced")]
    NoUtilityCall,
    /// It has words beyond its arguments.
    #[error("has a word that is not 0 beyond those of its kind")]
    UnusedWord,
}

/// What is wrong with a preference of a scheduler policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreferenceFault {
    /// Its kind means nothing.
    #[error("is of no kind: kinds are 0 to 2")]
    UnknownKind,
    /// It is none that any policy may have.
    #[error(transparent)]
    Unfit(#[from] PreferenceProblem),
}

impl GuestError {
    /// What to do about the error, where there is something to do.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Some("build the guest first: `vcr guest build`".into())
            }
            Self::Read { .. } => None,
            Self::Load { problem, .. } => problem.hint(),
            Self::Call { fault: CallFault::Rejected { .. }, example: Some(example), .. } => Some(example_hint(example)),
            Self::Call { fault, .. } => fault.hint(),
            // Says itself what to do, as it is often quoted in other errors.
            Self::Host { .. } => None,
            Self::Sandbox { .. } => Some(HOST_HINT.into()),
        }
    }
}

impl LoadProblem {
    /// What to do about the problem.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::TooLarge { .. } => "build the guest in release mode, without what it does not use",
            Self::NotWebAssembly | Self::Empty | Self::Damaged { .. } => {
                "give the path of a component; `vcr guest build` writes them to `guests/dist`"
            }
            Self::CoreModule => "make a component of it: `vcr guest build`",
            Self::Imports { imports } => return Some(imports_hint(imports)),
            Self::NoWorld { .. } | Self::SeveralWorlds { .. } => {
                let names: Vec<String> = World::ALL.iter().map(|world| format!("`{}`", world.sdk_macro())).collect();
                return Some(format!("export one world of `wit/`; with the SDK: {}", one_of(&names)));
            }
            Self::OtherWorld { expected, .. } => {
                return Some(format!(
                    "give a guest that exports the world `{}`; with the SDK: `{}`",
                    expected.name(),
                    expected.sdk_macro()
                ));
            }
            Self::UnsupportedVersion { .. } => {
                "rebuild the guest with the `wit/` of this build, or update the simulator"
            }
            Self::Compile { .. } | Self::Unfit { .. } => "rebuild the guest: `vcr guest build`",
        };
        Some(hint.into())
    }
}

impl CallFault {
    /// What to do about the fault, where there is something to do.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Rejected { .. } | Self::FailedBefore { .. } | Self::Trapped { .. } => {
                return None;
            }
            Self::Host { .. } => HOST_HINT,
            Self::OutOfFuel { .. } => "look for a loop that does not end; if the work is honest, raise its `fuel`",
            Self::TimedOut { .. } => "look for a loop that does not end; if the work is honest, raise the time",
            Self::TooManyObservations { .. } => "sum up what is told, and tell it once a call",
            Self::Memory { .. } | Self::MemoryBeyondType { .. } => "keep less state, or raise its `memory`",
            Self::Table { .. } => "tables hold functions and references: have fewer of them",
            Self::StackOverflow => "look for a recursion that does not end",
            Self::Panicked => "run the guest's own tests natively; to say why it fails, return an error",
            Self::AnswerTooLarge { .. } => "answer what was asked for and no more",
            Self::NoDurations { .. } | Self::TooManyDurations { .. } | Self::PastHorizon { .. } => {
                "answer one duration for each step that starts before the horizon, and at least one"
            }
            Self::TokenCount { .. } => "answer exactly `count` tokens for each want, those of one want after another",
            Self::RefusedOutsideStep | Self::RefusedNoRequest { .. } => {
                "refuse requests that `started` has named and `ended` has not, during `step`"
            }
            Self::TooManyRefusals { .. } => "refuse each request once",
            Self::RaggedActions { .. } | Self::BadAction { .. } => {
                "`wit/` lists the kinds of actions and their words; the SDK makes them of a `FaultAction`"
            }
            Self::RaggedPreferences { .. } | Self::BadPreference { .. } => {
                "`wit/` lists the kinds of preferences and their words; the SDK makes them of a `Preference`"
            }
            Self::NoSuchWorker { .. } => "answer the index of one of `workers`, or 2^32 - 1 to refuse the request",
            Self::MustBeServed { .. } => "refuse a request only where word 9 of `request` is 1",
            Self::TooManyEngines { .. } => "answer how many engines are to be up or on their way",
            Self::BadDuration { .. } => "a duration is a finite number of nanoseconds from 0 to 1e18",
        };
        Some(hint.into())
    }

    /// Whether it is an answer that cannot be, rather than a call that failed.
    pub(crate) fn is_about_answer(&self) -> bool {
        matches!(
            self,
            Self::NoDurations { .. }
                | Self::TooManyDurations { .. }
                | Self::BadDuration { .. }
                | Self::PastHorizon { .. }
                | Self::TokenCount { .. }
                | Self::RefusedOutsideStep
                | Self::RefusedNoRequest { .. }
                | Self::TooManyRefusals { .. }
                | Self::RaggedActions { .. }
                | Self::BadAction { .. }
                | Self::RaggedPreferences { .. }
                | Self::BadPreference { .. }
                | Self::NoSuchWorker { .. }
                | Self::MustBeServed { .. }
                | Self::TooManyEngines { .. }
        )
    }

    /// The fault and its hint in one line.
    pub(crate) fn with_hint(&self) -> String {
        match self.hint() {
            Some(hint) => format!("{self}; {hint}"),
            None => self.to_string(),
        }
    }
}

/// What to do where the machine has too little.
const HOST_HINT: &str = "raise the limits of the process (`ulimit -v` for address space, `ulimit -u` for threads) or of its \
                         container, or run fewer engines at once";

/// Longer examples are not printed into a hint.
const EXAMPLE_CHARS_MAX: usize = 400;

/// A config that the guest takes, for whose author it is a beginning.
fn example_hint(example: &str) -> String {
    if example.chars().count() <= EXAMPLE_CHARS_MAX {
        format!("the guest's example config is {example}")
    } else {
        "`vcr guest inspect` shows the guest's example config".to_owned()
    }
}

/// What is too large, in words.
fn too_large(size_bytes: Option<u64>, limit_bytes: u64) -> String {
    match size_bytes {
        Some(bytes) => format!("it has {bytes} bytes, but may have {limit_bytes}"),
        None => format!("it is no regular file, and gives more than {limit_bytes} bytes"),
    }
}

impl GuestError {
    /// The error of a call that failed.
    pub(crate) fn of_call(guest: &str, call: &'static str, fault: CallFault, example: Option<&str>) -> Self {
        let (guest, example) = (guest.to_owned(), example.map(str::to_owned));
        match fault {
            CallFault::Host { reason } => Self::Host { guest, reason },
            fault => Self::Call { guest, call, fault, example },
        }
    }
}

/// What to do about imports that are not given.
fn imports_hint(imports: &[String]) -> String {
    let mut grants: Vec<String> = Vec::new();
    for import in imports {
        // Of several grants that give an interface, one that is needed anyway.
        let mut giving = granting(import).map(|name| format!("\"{name}\""));
        let Some(first) = giving.next() else {
            return "build for `wasm32-unknown-unknown` without WASI: there are no files and no sockets; time and \
                    randomness come as arguments"
                .to_owned();
        };
        if !grants.contains(&first) && !giving.any(|other| grants.contains(&other)) {
            grants.push(first);
        }
    }
    format!(
        "build for `wasm32-unknown-unknown` without WASI, as time and randomness come as arguments; or grant it \
         where the guest is named: `wasi: [{}]`",
        grants.join(", ")
    )
}

/// The interfaces of all worlds, quoted.
fn interfaces() -> String {
    quoted(&World::ALL.map(|world| world.interface().to_owned()))
}

/// Names as "a, b or c".
fn one_of(names: &[String]) -> String {
    match names {
        [some @ .., last] if !some.is_empty() => format!("{} or {last}", some.join(", ")),
        names => names.concat(),
    }
}

fn quoted(names: &[String]) -> String {
    if names.is_empty() {
        return "nothing".into();
    }
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}
