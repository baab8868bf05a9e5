//! Arguments of `vllm serve` that are not options of `vcr serve`. They are accepted, so that command lines of vLLM
//! work unchanged. Those without effect are listed once at the start; `--help-all` gives the reasons.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::LazyLock;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Id};
use vcr_model::vllm_args::{Acts, Argument, Takes, arguments};

/// The imitated version of vLLM, whose arguments are accepted.
const VERSION: &str = "0.33";

/// Engine settings that are passed on like `--vllm-args`.
const APPLIED: &[&str] =
    &["--performance-mode", "--spec-method", "--spec-model", "--spec-tokens", "--speculative-config"];

fn is_effective(name: &str) -> bool {
    // Adapters also work without `--enable-lora`. With it, metrics report the maximum number of adapters per step.
    APPLIED.contains(&name) || name == "--enable-lora"
}

/// An argument with texts that live as long as the parser.
struct Declared {
    argument: &'static Argument,
    /// The form that disables a switch.
    off: String,
    /// Ids of the on and off form, for a form that overrides an option of this command.
    taking_back: [String; 2],
}

impl Declared {
    /// The forms of a switch: on and off.
    fn forms(&'static self) -> [&'static str; 2] {
        [self.argument.name, &self.off]
    }
}

static DECLARED: LazyLock<Vec<Declared>> = LazyLock::new(|| {
    let declared = |argument: &'static Argument| {
        let off = format!("--no-{}", argument.name.trim_start_matches("--"));
        let taking_back = [format!("other {}", argument.name), format!("other {off}")];
        Declared { argument, off, taking_back }
    };
    // `normalized` converts `--model` to a positional argument.
    arguments(VERSION).filter(|argument| argument.name != "--model").map(declared).collect()
});

/// An argument given on the command line.
#[derive(Clone, Debug)]
struct Given {
    argument: &'static Argument,
    /// The name that was used.
    form: &'static str,
    values: Vec<String>,
}

/// The given arguments of `vllm serve` that are not options of this command.
#[derive(Clone, Debug, Default)]
pub(crate) struct VllmFlags {
    given: Vec<Given>,
}

impl Args for VllmFlags {
    /// Must come after all other options, because it adds only arguments that are not declared yet.
    fn augment_args(command: Command) -> Command {
        let own = |name: &str| {
            let flag = name.trim_start_matches("--");
            let is_named =
                |arg: &&Arg| arg.get_long() == Some(flag) || arg.get_all_aliases().unwrap_or_default().contains(&flag);
            command.get_arguments().find(is_named).map(|arg| arg.get_id().clone())
        };
        let mut added = Vec::new();
        for declared in DECLARED.iter() {
            let argument = declared.argument;
            let [on, off] = declared.forms();
            let own_on = argument.names().find_map(own);
            match (argument.takes, own_on, own(off)) {
                (Takes::Switch, None, None) => added.extend([accepted(argument, on), accepted(argument, off)]),
                // If one form is an option of this command, the other form overrides it.
                (Takes::Switch, Some(own), None) => added.push(takes_back(&declared.taking_back[1], off, own)),
                (Takes::Switch, None, Some(own)) => added.push(takes_back(&declared.taking_back[0], on, own)),
                (Takes::Switch, Some(_), Some(_)) => {}
                (_, None, _) => added.push(accepted(argument, on)),
                (_, Some(_), _) => {}
            }
        }
        command.args(added)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// A form of an argument, hidden from the list of options.
fn accepted(argument: &'static Argument, form: &'static str) -> Arg {
    let arg = Arg::new(form).long(form.trim_start_matches("--")).hide(true);
    let aliases = argument.aliases.iter().filter_map(|alias| alias.strip_prefix("--"));
    let arg = if form == argument.name { arg.aliases(aliases) } else { arg };
    match argument.takes {
        Takes::Nothing | Takes::Switch => arg.action(ArgAction::SetTrue).overrides_with(form),
        Takes::Value => arg.action(ArgAction::Set).value_name("VALUE").overrides_with(form),
        Takes::Values => arg.action(ArgAction::Append).value_name("VALUE").num_args(1..),
    }
}

/// The form of a switch that overrides the option `own`.
fn takes_back(id: &'static str, form: &'static str, own: Id) -> Arg {
    let arg = Arg::new(id).long(form.trim_start_matches("--")).hide(true);
    arg.action(ArgAction::SetTrue).overrides_with_all([own, Id::from(id)])
}

impl FromArgMatches for VllmFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |form: &str| {
            matches.try_contains_id(form).is_ok() && matches.value_source(form) == Some(ValueSource::CommandLine)
        };
        let mut given = Vec::new();
        for declared in DECLARED.iter() {
            let argument = declared.argument;
            for form in declared.forms().into_iter().filter(|form| is_given(form)) {
                let has_values = matches!(argument.takes, Takes::Value | Takes::Values);
                let values = has_values.then(|| matches.get_many::<String>(form)).flatten();
                given.push(Given { argument, form, values: values.into_iter().flatten().cloned().collect() });
            }
        }
        Ok(Self { given })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl VllmFlags {
    /// The given engine settings, as words.
    pub(crate) fn engine_words(&self) -> Vec<String> {
        let applied = self.given.iter().filter(|given| APPLIED.contains(&given.argument.name));
        applied.flat_map(|given| std::iter::once(given.form.to_owned()).chain(given.values.iter().cloned())).collect()
    }

    pub(crate) fn enables_adapters(&self) -> bool {
        self.given.iter().any(|given| given.form == "--enable-lora")
    }

    /// The given flags without effect, as one line.
    pub(crate) fn without_effect(&self) -> Option<String> {
        let (mut ignored, mut unsimulated) = (Vec::new(), Vec::new());
        for Given { argument, form, values } in &self.given {
            if is_effective(argument.name) {
                continue;
            }
            let is_default =
                *form != argument.name || argument.default.is_some_and(|default| values.iter().eq([default]));
            match argument.acts {
                Acts::Default if is_default => {}
                Acts::Default => unsimulated.push(format!("{form} {}", values.join(" ")).trim_end().to_owned()),
                Acts::Setting | Acts::Speed | Acts::Nothing => ignored.push((*form).to_owned()),
            }
        }
        let part = |title: &str, words: &[String]| (!words.is_empty()).then(|| format!("{title} {}", words.join(", ")));
        let parts = [part("no effect of", &ignored), part("not simulated:", &unsimulated)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| format!("{} (`vcr serve --help-all` gives the reasons)", parts.join("; ")))
    }
}

/// The arguments without effect, by reason, for the help of `command`.
pub(crate) fn reasons(command: &Command) -> String {
    let accepted: BTreeSet<&str> = command.get_arguments().map(|arg| arg.get_id().as_str()).collect();
    let is_without =
        |declared: &&Declared| accepted.contains(declared.argument.name) && !is_effective(declared.argument.name);
    let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
    for Declared { argument, .. } in DECLARED.iter().filter(is_without) {
        match by_reason.iter_mut().find(|(reason, _)| *reason == argument.served) {
            Some((_, names)) => names.push(argument.name),
            None => by_reason.push((argument.served, vec![argument.name])),
        }
    }
    let mut text =
        format!("Arguments of `vllm serve` {VERSION} that are accepted and have no effect, by the reason:\n");
    for (reason, names) in by_reason {
        text.push_str(&format!("\n  {reason}:\n    {}\n", names.join(" ")));
    }
    text
}

/// Converts arguments in vLLM's spelling: short names with several letters, and underscores.
pub(crate) fn normalized(line: &[OsString]) -> Vec<OsString> {
    let Some(at) = line.iter().position(|word| word == "serve") else { return line.to_vec() };
    let mut words = line[..=at].to_vec();
    let mut behind = line[at + 1..].iter();
    while let Some(word) = behind.next() {
        // The model is moved to the front, where no option can take it as its value.
        let stated = word.to_str().and_then(|word| word.strip_prefix("--model="));
        let model = if word == "--model" { behind.next().cloned() } else { stated.map(OsString::from) };
        match model {
            Some(model) => words.insert(at + 1, model),
            None => words.push(word.to_str().and_then(long_form).map_or_else(|| word.clone(), OsString::from)),
        }
    }
    words
}

fn long_form(word: &str) -> Option<String> {
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let joined = |name: &str| value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}"));
    if name.starts_with("--") {
        return name.contains('_').then(|| joined(&name.replace('_', "-")));
    }
    if let Some(level) = word.strip_prefix("-O").filter(|level| level.parse::<u8>().is_ok()) {
        return Some(format!("--optimization-level={level}"));
    }
    // A single letter is an option of this command.
    let is_short = name.starts_with('-') && name.len() > 2;
    let known = arguments(VERSION).find(|argument| is_short && argument.aliases.contains(&name))?;
    Some(joined(known.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let own = Command::new("serve")
            .arg(Arg::new("quick").long("no-enable-prefix-caching").action(ArgAction::SetTrue))
            .arg(Arg::new("async").long("async-scheduling").action(ArgAction::SetTrue))
            .arg(Arg::new("host").long("host"))
            .arg(Arg::new("tp").long("tensor-parallel-size"));
        VllmFlags::augment_args(own)
    }

    fn parsed(line: &str) -> (ArgMatches, VllmFlags) {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let matches = command().try_get_matches_from(normalized(&words)).unwrap_or_else(|error| panic!("{error}"));
        let flags = VllmFlags::from_arg_matches(&matches).expect("all is read");
        (matches, flags)
    }

    #[test]
    fn options_of_this_command_are_not_declared_twice() {
        command().debug_assert();
    }

    #[test]
    fn the_other_form_of_a_switch_takes_it_back() {
        let is_on = |line: &str, id: &str| parsed(line).0.get_flag(id);
        assert!(is_on("serve --enable-prefix-caching --no-enable-prefix-caching", "quick"));
        assert!(!is_on("serve --no-enable-prefix-caching --enable-prefix-caching", "quick"));
        assert!(!is_on("serve --async-scheduling --no-async-scheduling", "async"));
        assert_eq!(parsed("serve --enable-prefix-caching --no-async-scheduling").1.without_effect(), None);
    }

    #[test]
    fn what_has_no_effect_is_one_line() {
        let line = "serve --enforce-eager --trust_remote_code --max-lora-rank 16 --allowed-media-domains a b \
                    --stream-interval 4 --ubatch-size 0 --no-enable-dbo -tp 2 -O3 --host 0.0.0.0 --dtype half";
        let (matches, flags) = parsed(&line.replace(" --dtype half", ""));
        assert_eq!(
            flags.without_effect().as_deref(),
            Some(
                "no effect of --max-lora-rank, --enforce-eager, --optimization-level, --trust-remote-code, \
                 --allowed-media-domains; not simulated: --stream-interval 4 (`vcr serve --help-all` gives the reasons)"
            )
        );
        assert_eq!(matches.get_one::<String>("tp").map(String::as_str), Some("2"));
        assert_eq!(parsed("serve").1.without_effect(), None);
    }

    #[test]
    fn a_model_by_its_option_comes_first() {
        let line = ["vcr", "serve", "--served-model-name", "a", "--model", "m", "--port=1"].map(OsString::from);
        assert_eq!(normalized(&line).join(std::ffi::OsStr::new(" ")), "vcr serve m --served-model-name a --port=1");
        let line = ["vcr", "play", "--model=m", "-tp"].map(OsString::from);
        assert_eq!(normalized(&line), line);
    }

    #[test]
    fn settings_of_the_engine_are_words_for_it() {
        let (_, flags) = parsed("serve --spec-method ngram --spec_tokens=3 --performance-mode throughput");
        let words = "--performance-mode throughput --spec-method ngram --spec-tokens 3";
        assert_eq!(flags.engine_words().join(" "), words);
        assert_eq!(flags.without_effect(), None);
    }

    #[test]
    fn each_reason_is_said_once() {
        let text = reasons(&command());
        assert_eq!(text.matches("times of steps come from the latency model:").count(), 1, "{text}");
        assert!(!text.contains("--host") && text.contains("--enforce-eager"), "{text}");
    }
}
