//! A structure that outputs must have. It is parsed once for all requests that ask for it.

use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec::Vec;

use vcr_guest_sdk::{Rng, TokenRequest};

use crate::choice::OutputForm;
use crate::settings::{ArgumentSettings, Room, USUAL};
use crate::values::draw::below;
use crate::writer::{GENEROSITY_MAX, document};
use crate::{JsonTokens, Output};

/// Number of choices between two checks whether the caller is still waiting.
const CHOICES_AT_ONCE: usize = 1_000;

/// If the shortest output has this many tokens, no other output is generated for a request. Otherwise the
/// requests of one call could keep an engine busy for seconds.
const LONG_TOKENS: usize = 4_096;

/// A structure of outputs.
#[derive(Debug)]
pub struct Structure {
    form: OutputForm,
    /// Tokens of the shortest output, which is used if no other one is found.
    least: Vec<u32>,
    /// Number of tokens of each choice, if there are choices.
    lengths: Vec<u32>,
}

impl JsonTokens {
    /// Parses a request's structure and checks that an output fits it.
    ///
    /// # Errors
    /// If the structure cannot be parsed or followed, no output fits it, or finding one takes too much work.
    pub fn structure(&self, structured_output: &str) -> Result<Structure, String> {
        self.structure_unless(structured_output, &|| false)
    }

    /// Like [`structure`](Self::structure), but fails as soon as `is_gone` returns true because no caller is waiting.
    pub fn structure_unless(&self, structured_output: &str, is_gone: &dyn Fn() -> bool) -> Result<Structure, String> {
        let check_awaited =
            || if is_gone() { Err("nobody waits for the structured output".to_string()) } else { Ok(()) };
        let form = OutputForm::parse(structured_output)?;
        check_awaited()?;
        let (mut least, mut lengths) = (Vec::new(), Vec::new());
        match &form {
            OutputForm::Choice(choices) => {
                for (index, choice) in choices.iter().enumerate() {
                    if index % CHOICES_AT_ONCE == 0 {
                        check_awaited()?;
                    }
                    lengths.push(self.vocabulary.tokens(choice)?.len() as u32);
                }
            }
            form => {
                let text = form.text(Rng::new(0, 0), Room { generosity: 0, settings: &USUAL });
                least = text.and_then(|text| self.vocabulary.tokens(&text)).map_err(unmade)?;
            }
        }
        Ok(Structure { form, least, lengths })
    }

    /// Starts an output with this structure. `settings` apply to the arguments of tools.
    pub fn follow_structure(
        &self,
        structure: &Structure,
        request: &TokenRequest<'_>,
        settings: &ArgumentSettings,
    ) -> Result<Output, String> {
        let output = self.output(request)?;
        match &structure.form {
            OutputForm::Choice(choices) => {
                let choice = structure.choose(choices, request);
                Ok(output.with_text(self.vocabulary.tokens(choice)?))
            }
            form @ OutputForm::Json(_) => Ok(output.with_json(self.fitting(structure, form, request, &USUAL))),
            form => Ok(output.with_text(self.fitting(structure, form, request, settings))),
        }
    }

    /// Tokens of a text that ends in time. If the first text is too long, shorter ones are tried.
    fn fitting(
        &self,
        structure: &Structure,
        form: &OutputForm,
        request: &TokenRequest<'_>,
        settings: &ArgumentSettings,
    ) -> Vec<u32> {
        let made = |generosity| {
            let text = form.text(Rng::new(request.seed, 0), Room { generosity, settings });
            text.and_then(|text| self.vocabulary.tokens(&text)).ok()
        };
        // If the shortest output is far too long, all other outputs are too long as well.
        let is_hopeless = structure.least.len() / 2 >= request.max_tokens as usize;
        if structure.least.len() >= LONG_TOKENS {
            return structure.least[..structure.least.len().min(request.max_tokens as usize)].to_vec();
        }
        for generosity in (1..=if is_hopeless { 0 } else { GENEROSITY_MAX }).rev() {
            match made(generosity) {
                Some(tokens) if tokens.len() < request.max_tokens as usize => return tokens,
                // A slightly shorter text would take too much work as well.
                None if matches!(form, OutputForm::Json(_) | OutputForm::Text(_)) => break,
                _ => {}
            }
        }
        made(0).unwrap_or_else(|| structure.least.clone())
    }
}

impl Structure {
    /// One of the choices, if possible one with a suitable length.
    fn choose<'a>(&self, choices: &'a [String], request: &TokenRequest<'_>) -> &'a str {
        let fits = |length: u32| length >= request.min_tokens && length < request.max_tokens;
        let count = self.lengths.iter().filter(|length| fits(**length)).count();
        let chosen =
            below(&mut Rng::new(request.seed, 0), if count > 0 { count } else { choices.len() } as u32) as usize;
        let mut fitting = (0..choices.len()).filter(|index| count == 0 || fits(self.lengths[*index]));
        fitting.nth(chosen).map_or("", |index| choices[index].as_str())
    }
}

impl OutputForm {
    /// A random text. [`Structure::choose`] handles choices, since it needs their lengths.
    fn text(&self, mut rng: Rng, room: Room<'_>) -> Result<String, String> {
        match self {
            Self::Choice(choices) => Ok(choices.first().cloned().unwrap_or_default()),
            Self::Json(schemas) => Ok(document(schemas, rng, room)?.to_string()),
            Self::Pattern(pattern) => pattern.text(&mut rng, room.generosity, &mut 0),
            Self::Grammar(grammar) => grammar.text(&mut rng, room.generosity),
            Self::Text(format) => format.text(&mut rng, room),
        }
    }
}

fn unmade(problem: String) -> String {
    format!("the structured output cannot be made: {problem}")
}
