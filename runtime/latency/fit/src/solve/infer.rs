//! Estimates the engine settings that explain the measurements best.
//!
//! If a full cache or a full batch limits the engine, its size affects queueing. Each value of a setting is tried with
//! newly fitted prices, on a grid that becomes finer around the best value.

use std::fmt;
use std::str::FromStr;

use vcr_core::{EngineConfig, EngineConfigInput, EngineKind};

use crate::error::FitError;
use crate::solve::fit::{FitOptions, explained};
use crate::solve::parallel;
use crate::source::Source;

/// A setting that can be estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Number of KV blocks.
    NumGpuBlocks,
    /// Maximum number of requests in a step.
    MaxNumSeqs,
}

/// An inferred setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inferred {
    /// The setting.
    pub setting: Setting,
    /// The value given in `--engine`.
    pub given: u32,
    /// The given value if it explains the measurements, otherwise the value that explains them best.
    pub found: u32,
    /// Mean error of percentiles with the given value.
    pub given_error: f64,
    /// Mean error of percentiles with `found`.
    pub found_error: f64,
    /// The lowest and the highest value that explain the measurements about equally well.
    pub range: (u32, u32),
}

impl Setting {
    /// The name in `engine(#{ ... })`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NumGpuBlocks => "num_gpu_blocks",
            Self::MaxNumSeqs => "max_num_seqs",
        }
    }

    fn of(self, input: &mut EngineConfigInput) -> &mut u32 {
        match self {
            Self::NumGpuBlocks => &mut input.num_gpu_blocks,
            Self::MaxNumSeqs => &mut input.max_num_seqs,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::NumGpuBlocks, Self::MaxNumSeqs]
            .into_iter()
            .find(|setting| setting.name() == text)
            .ok_or_else(|| format!("invalid setting `{text}`: expected num_gpu_blocks or max_num_seqs"))
    }
}

/// Factors of the grids, from coarse to fine.
const GRIDS: [f64; 3] = [1.3, 1.1, 1.03];
/// Number of grid values on each side of the best value.
const GRID_STEPS: i32 = 5;
/// Errors that exceed the lowest one by less than this count as equal.
const TOLERANCE: f64 = 0.005;

/// Estimates one setting of a source. Returns the source with that setting.
///
/// # Errors
/// If the engine is not vLLM's, or if it cannot serve the measurements with any value.
pub fn infer(
    source: &Source,
    setting: Setting,
    options: &FitOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<(Source, Inferred), FitError> {
    let Some(config) = source.pool.engine.as_vllm() else {
        return Err(FitError::Engine(format!("`{setting}` can be inferred for vLLM's engines only")));
    };
    let input: EngineConfigInput = config.stated();
    let given = *setting.of(&mut input.clone());
    if set(&source.engine, setting.name(), given).is_none() {
        return Err(FitError::Engine(format!("`{setting}` can be inferred if the pool in `--engine` states it")));
    }
    let with = |value: u32| {
        let mut input = input.clone();
        *setting.of(&mut input) = value;
        let config = EngineConfig::new(input).ok()?;
        config.check_start_up().ok()?;
        let mut changed = source.clone();
        changed.pool.engine = EngineKind::from(config);
        changed.engine = set(&source.engine, setting.name(), value)?;
        Some(changed)
    };
    let mut tried: Vec<(u32, f64)> = Vec::new();
    let mut best = (given, f64::INFINITY);
    for factor in GRIDS {
        let center = f64::from(best.0);
        let mut grid: Vec<u32> = Vec::new();
        for step in -GRID_STEPS..=GRID_STEPS {
            let value = (center * factor.powi(step)).round().clamp(1.0, f64::from(1u32 << 30)) as u32;
            if !grid.contains(&value) && tried.iter().all(|(known, _)| *known != value) {
                grid.push(value);
            }
        }
        progress(&format!("trying {setting} near {}", best.0));
        let errors = parallel::map(options.threads(), &grid, |value| {
            match with(*value).map(|source| explained(&source, options)) {
                Some(Ok(error)) => error,
                // With this value, the engine does not start or cannot serve the measurements.
                Some(Err(_)) | None => f64::INFINITY,
            }
        });
        for (value, error) in grid.into_iter().zip(errors) {
            tried.push((value, error));
            if error < best.1 {
                best = (value, error);
            }
        }
    }
    let of = |value: u32| tried.iter().find(|(known, _)| *known == value).map_or(f64::INFINITY, |(_, error)| *error);
    if !best.1.is_finite() {
        return Err(FitError::Engine(format!("no `{setting}` near {given} can serve the measurements")));
    }
    let close = || tried.iter().filter(|(_, error)| *error <= best.1 + TOLERANCE).map(|(value, _)| *value);
    let range = (close().min().unwrap_or(best.0), close().max().unwrap_or(best.0));
    let found = chosen(given, of(given), best);
    let found_error = of(found);
    let changed = with(found).ok_or_else(|| FitError::Engine(format!("`{setting}: {found}` is not possible")))?;
    Ok((changed, Inferred { setting, given, found, given_error: of(given), found_error, range }))
}

/// The given value, or the best one if the measurements contradict the given value.
fn chosen(given: u32, given_error: f64, (best, best_error): (u32, f64)) -> u32 {
    if given_error <= best_error + TOLERANCE { given } else { best }
}

/// Replaces the value of the setting `name` in an engine description, in any form of `--engine`. None for
/// a pool that does not state the setting.
fn set(engine: &str, name: &str, value: u32) -> Option<String> {
    let flag = format!("--{}", name.replace('_', "-"));
    let engine = engine.trim();
    let is_flags = engine.starts_with("--");
    let word = if is_flags { &flag } else { name };
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let is_whole = |at: usize| {
        let before = at.checked_sub(1).map(|before| engine.as_bytes()[before]);
        let after = engine.as_bytes().get(at + word.len());
        !before.is_some_and(is_of_name) && !after.is_some_and(|after| is_of_name(*after))
    };
    if let Some((at, _)) = engine.match_indices(word).find(|(at, _)| is_whole(*at)) {
        let rest = &engine[at + word.len()..];
        let begin = at + word.len() + rest.find(|letter: char| letter.is_ascii_digit())?;
        let rest = &engine[begin..];
        let end = begin + rest.find(|letter: char| !letter.is_ascii_digit() && letter != '_').unwrap_or(rest.len());
        return Some(format!("{}{value}{}", &engine[..begin], &engine[end..]));
    }
    if is_flags {
        return Some(format!("{engine} {flag} {value}"));
    }
    if engine.starts_with("pool(") {
        return None;
    }
    // The end of the last option, inside the braces if there are any.
    let end =
        if engine.starts_with(['{', '#']) || engine.starts_with("engine(") { engine.rfind('}')? } else { engine.len() };
    let (options, braces) = engine.split_at(end);
    let options = options.trim_end().trim_end_matches(',');
    let comma = if options.is_empty() || options.ends_with('{') { "" } else { ", " };
    Some(format!("{options}{comma}\"{name}\": {value}{braces}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_value_stays_unless_it_is_contradicted() {
        assert_eq!(chosen(128, 0.0242, (34, 0.024)), 128);
        assert_eq!(chosen(128, 0.09, (34, 0.024)), 34);
        assert_eq!(chosen(128, f64::INFINITY, (34, 0.024)), 34);
    }

    #[test]
    fn settings_are_replaced_in_every_form() {
        let cases = [
            ("num_gpu_blocks: 9_000, max_num_seqs: 4", "num_gpu_blocks: 7, max_num_seqs: 4"),
            ("max_num_seqs: 4", "max_num_seqs: 4, \"num_gpu_blocks\": 7"),
            ("", "\"num_gpu_blocks\": 7"),
            ("{\"num_gpu_blocks\": 9000}", "{\"num_gpu_blocks\": 7}"),
            ("#{ max_num_seqs: 4 }", "#{ max_num_seqs: 4, \"num_gpu_blocks\": 7}"),
            ("engine(#{})", "engine(#{\"num_gpu_blocks\": 7})"),
            ("--num-gpu-blocks 9000 --max-num-seqs=4", "--num-gpu-blocks 7 --max-num-seqs=4"),
            ("--max-num-seqs=4", "--max-num-seqs=4 --num-gpu-blocks 7"),
            ("pool(#{ engine: engine(#{ num_gpu_blocks: 9 }) })", "pool(#{ engine: engine(#{ num_gpu_blocks: 7 }) })"),
            ("my_num_gpu_blocks: 3", "my_num_gpu_blocks: 3, \"num_gpu_blocks\": 7"),
        ];
        for (engine, expected) in cases {
            assert_eq!(set(engine, "num_gpu_blocks", 7).as_deref(), Some(expected), "{engine}");
        }
        assert_eq!(set("pool(#{ engines: 2 })", "num_gpu_blocks", 7), None);
    }
}
