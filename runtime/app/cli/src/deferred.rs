//! Declares only the requested command's options to the parser, in a tenth of the time of declaring all of them.

use std::ops::{Deref, DerefMut};

use clap::builder::Resettable;
use clap::error::Error;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// The options of a command, declared on demand.
#[derive(Clone, Debug)]
pub(crate) struct Deferred<T>(Box<T>);

impl<T> Deferred<T> {
    pub(crate) fn into_inner(self) -> Box<T> {
        self.0
    }
}

/// Adds the options `T` to a command, but keeps the command's own help texts.
pub(crate) fn options<T: Args>(command: Command) -> Command {
    let (about, long_about) = (command.get_about().cloned(), command.get_long_about().cloned());
    with_negative_numbers(
        T::augment_args(command).about(Resettable::from(about)).long_about(Resettable::from(long_about)),
    )
}

/// Accepts `-1` as a value, so that the option can refuse it with a reason. Otherwise `-1` is an unknown option.
pub(crate) fn with_negative_numbers(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let takes_values = arg.get_action().takes_values() && !arg.is_positional();
        arg.allow_negative_numbers(takes_values)
    });
    command.mut_subcommands(with_negative_numbers)
}

impl<T: Args> Args for Deferred<T> {
    fn augment_args(command: Command) -> Command {
        command.defer(options::<T>)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}

impl<T: Args> FromArgMatches for Deferred<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(|options| Self(Box::new(options)))
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches_mut(matches).map(|options| Self(Box::new(options)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl<T> Deref for Deferred<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Deferred<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
