//! `--shard K/N`: selects the points that one of N processes runs, and names its file.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use serde::{Deserialize, Serialize};

/// File name extension of shards.
pub(crate) const SUFFIX: &str = "shard";

/// Index that Kubernetes sets for each pod of an Indexed Job.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// Largest number of shards; there are never more points.
pub(crate) const MAX_SHARDS: usize = 100_000;

/// Options of sweeps that several processes share.
#[derive(Clone, Debug, Args)]
pub(crate) struct ShardArgs {
    /// Run every N-th point from point K (0 to N - 1) and write NAME.K-of-N.shard instead of
    /// --sweep-out, for `vcr merge`. With auto/N, K is the index of a pod of a Kubernetes Indexed Job.
    #[arg(long, value_name = "K/N", requires_all = ["sweeps", "sweep_out"])]
    pub(crate) shard: Option<Shard>,
}

impl ShardArgs {
    /// Numbers of the points to run here, of `points` in total.
    pub(crate) fn points(&self, points: usize) -> Vec<usize> {
        (0..points).filter(|point| self.shard.is_none_or(|shard| shard.has(*point))).collect()
    }

    pub(crate) fn path(&self, sweep_out: Option<&Path>) -> Option<PathBuf> {
        sweep_out.map(|path| self.shard.map_or_else(|| path.to_owned(), |shard| shard.path(path)))
    }
}

/// One of `count` parts of a grid: the points whose number modulo `count` is `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Shard {
    pub(crate) index: usize,
    pub(crate) count: usize,
}

impl Shard {
    /// The whole grid as one shard.
    pub(crate) const WHOLE: Self = Self { index: 0, count: 1 };

    /// Whether the shard has this point.
    pub(crate) fn has(self, point: usize) -> bool {
        point % self.count == self.index
    }

    /// Path of the shard's file; `out` is the path of the whole sweep.
    fn path(self, out: &Path) -> PathBuf {
        out.with_extension(format!("{}-of-{}.{SUFFIX}", self.index, self.count))
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let index_of_job = || match std::env::var(INDEX_VARIABLE) {
            Ok(index) => Ok(index),
            Err(_) => Err(format!("`auto` needs {INDEX_VARIABLE}, which Indexed Jobs of Kubernetes set")),
        };
        let (index, count) = text.split_once('/').ok_or("expected K/N, such as 0/4")?;
        let is_auto = index == "auto";
        let index = if is_auto { index_of_job()? } else { index.to_owned() };
        let name = if is_auto { INDEX_VARIABLE } else { "K" };
        let count = count.parse().ok().filter(|count| (1..=MAX_SHARDS).contains(count));
        let count = count.ok_or_else(|| format!("expected N from 1 to {MAX_SHARDS}"))?;
        let parsed = index.parse().ok().filter(|index| *index < count);
        let index = parsed.ok_or_else(|| format!("{name} is `{index}`: expected 0 to {}", count - 1))?;
        Ok(Self { index, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_split_points_without_rest() {
        let args = |text: &str| ShardArgs { shard: Some(text.parse().expect("valid")) };
        assert_eq!(args("1/3").points(8), [1, 4, 7]);
        assert_eq!(args("2/3").points(2), [0_usize; 0]);
        assert_eq!(ShardArgs { shard: None }.points(3), [0, 1, 2]);
        let path = args("1/3").path(Some(Path::new("out/grid.csv")));
        assert_eq!(path, Some(PathBuf::from("out/grid.1-of-3.shard")));
    }

    #[test]
    fn anything_but_a_remainder_is_refused() {
        for wrong in ["", "1", "3/3", "1/0", "-1/2", "x/2", "1/2/3", "0/99999999999999999999"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}
