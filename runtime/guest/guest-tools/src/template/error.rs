use std::path::PathBuf;

use crate::template::Language;

/// An error of creating a project; see [`NewError::hint`] for the next step.
#[derive(Debug, thiserror::Error)]
pub enum NewError {
    #[error("`{name}` cannot be the name of a guest: {problem}")]
    BadName { name: String, problem: &'static str },
    #[error("unknown world `{given}` for {}: expected {}", language.name(), listed(.known))]
    UnknownWorld {
        given: String,
        /// Language of the project.
        language: Language,
        /// Available worlds.
        known: Vec<&'static str>,
    },
    #[error("`{}` exists already", dir.display())]
    Exists { dir: PathBuf },
    #[error("cannot write `{}`: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

impl NewError {
    /// The next step for the user, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::BadName { .. } => {
                Some("a name has lower-case letters, digits and hyphens, a letter first: `my-guest`".into())
            }
            Self::UnknownWorld { given, known, .. } => {
                let near = known.iter().map(|world| (strsim::jaro_winkler(given, world), world));
                let (similarity, world) = near.max_by(|a, b| a.0.total_cmp(&b.0))?;
                (similarity > 0.8).then(|| format!("perhaps you mean `{world}`"))
            }
            Self::Exists { .. } => Some("give another place by `--path`, or move the existing files away".into()),
            Self::Write { .. } => None,
        }
    }
}

/// Formats names as "one of a, b or c".
fn listed(names: &[&str]) -> String {
    match names {
        [some @ .., last] if !some.is_empty() => format!("one of {} or {last}", some.join(", ")),
        names => names.concat(),
    }
}
