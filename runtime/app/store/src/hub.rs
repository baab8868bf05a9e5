//! Data sets of the Hugging Face Hub, stored in the cache of the Hub's own tools.

use std::env;
use std::path::PathBuf;

use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};

use crate::error::{StoreError, without_queries};
use crate::location::DataSet;

/// Number of times that an interrupted download is continued.
const MAX_RETRIES: usize = 5;

/// Fetches a file or folder and returns its path. Uses the settings of the Hub's tools: `HF_HOME`, `HF_ENDPOINT`,
/// `HF_TOKEN`, and the token stored by `hf auth login`.
pub(crate) fn fetch(data_set: &DataSet) -> Result<PathBuf, StoreError> {
    let failed = |error: ApiError| StoreError::Hub { url: data_set.name.clone(), reason: reason(&error) };
    let api = api().map_err(failed)?;
    let repo = || Repo::with_revision(data_set.repository.clone(), RepoType::Dataset, data_set.revision.clone());
    if !data_set.is_folder {
        return file(&api, repo(), &data_set.path).map_err(failed);
    }
    let prefix = if data_set.path.is_empty() { String::new() } else { format!("{}/", data_set.path) };
    let info = api.repo(repo()).info().map_err(failed)?;
    let names = info.siblings.iter().map(|sibling| sibling.rfilename.as_str()).filter(|name| name.starts_with(&prefix));
    let mut place = None;
    for name in names {
        if name.split('/').any(|part| ["", ".", ".."].contains(&part)) {
            return Err(StoreError::ForeignName { url: data_set.name.clone(), file: name.to_owned() });
        }
        let copy = file(&api, repo(), name).map_err(failed)?;
        // Go up one folder for each name after the prefix.
        let deep = name[prefix.len()..].split('/').count();
        place = copy.ancestors().nth(deep).map(PathBuf::from);
    }
    place.ok_or_else(|| StoreError::EmptyFolder { url: data_set.name.clone() })
}

fn api() -> Result<Api, ApiError> {
    let builder = ApiBuilder::from_env()
        .with_progress(false)
        .with_retries(MAX_RETRIES)
        .with_user_agent("vcr", env!("CARGO_PKG_VERSION"));
    match env::var("HF_TOKEN") {
        Ok(token) if !token.is_empty() => builder.with_token(Some(token)).build(),
        _ => builder.build(),
    }
}

/// Fetches a file at the current commit of the revision.
fn file(api: &Api, repo: Repo, name: &str) -> Result<PathBuf, ApiError> {
    let place = Cache::from_env().repo(repo.clone());
    let repo = api.repo(repo);
    let now = api.metadata(&repo.url(name))?;
    let copy = place.pointer_path(now.commit_hash()).join(name);
    if copy.exists() { Ok(copy) } else { repo.download(name) }
}

fn reason(error: &ApiError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    without_queries(&text)
}
