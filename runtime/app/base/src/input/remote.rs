//! Inputs at URLs such as `s3://BUCKET/KEY`, read as copies on disk.
//!
//! Commands call [`local`] to copy their inputs before they read them; the code below them only reads files. The
//! program registers the copy function with [`set_fetch`], so this crate needs no network.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// URL schemes of inputs and outputs.
pub const SCHEMES: [&str; 6] = ["az", "gs", "hf", "http", "https", "s3"];

/// The scheme of guests in registries, which are fetched elsewhere.
const GUEST_SCHEME: &str = "oci";

/// Copies objects to disk.
pub trait Fetch: Send + Sync {
    /// Copies the object at `url`, or a folder of objects if `url` ends with `/`, and returns the copy's path. The
    /// path has the URL's suffix.
    ///
    /// # Errors
    /// When the object cannot be read. The text has no credentials.
    fn fetch(&self, url: &str) -> io::Result<PathBuf>;
}

static FETCH: OnceLock<Box<dyn Fetch>> = OnceLock::new();

/// URLs of copies by path, and paths by URL, so that a command sees only one version of an object.
#[derive(Default)]
struct Copies {
    urls: BTreeMap<PathBuf, String>,
    paths: BTreeMap<String, PathBuf>,
}

static COPIES: Mutex<Option<Copies>> = Mutex::new(None);

fn copies() -> MutexGuard<'static, Option<Copies>> {
    COPIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the object store client, once for the process. Without it URLs are refused.
pub fn set_fetch(fetch: Box<dyn Fetch>) {
    // Only the first client is kept.
    let _ = FETCH.set(fetch);
}

/// The URL, if `path` is one.
#[must_use]
pub fn url(path: &Path) -> Option<&str> {
    let text = path.to_str()?;
    let (scheme, _) = text.split_once("://")?;
    SCHEMES.contains(&scheme).then_some(text)
}

/// Checks that a path without a URL's scheme is not a URL with another scheme.
///
/// # Errors
/// If it is. The text has no credentials.
pub fn check_scheme(path: &Path) -> io::Result<()> {
    let Some((scheme, _)) = path.to_str().and_then(|text| text.split_once("://")) else { return Ok(()) };
    let is_name = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_name || SCHEMES.contains(&scheme) || scheme == GUEST_SCHEME || path.exists() {
        return Ok(());
    }
    let url = without_secrets(&path.to_string_lossy());
    let known = SCHEMES.join(", ");
    let text = format!("invalid URL `{url}`: expected one of the schemes {known}, got `{scheme}`");
    Err(io::Error::new(ErrorKind::InvalidInput, text))
}

/// Returns the path itself, or the path of a copy if it is a URL. Each object is fetched once in a process.
///
/// # Errors
/// When the object cannot be fetched, or the build has no network support.
pub fn local(path: &Path) -> io::Result<Cow<'_, Path>> {
    check_scheme(path)?;
    let Some(url) = url(path) else { return Ok(Cow::Borrowed(path)) };
    if let Some(copy) = copies().as_ref().and_then(|copies| copies.paths.get(url)) {
        return Ok(Cow::Owned(copy.clone()));
    }
    let fetch = FETCH.get().ok_or_else(|| not_built(url))?;
    let copy = fetch.fetch(url)?;
    let mut copies = copies();
    let copies = copies.get_or_insert_default();
    copies.urls.insert(copy.clone(), url.to_owned());
    copies.paths.insert(url.to_owned(), copy.clone());
    Ok(Cow::Owned(copy))
}

/// The URL of which `path` is a copy.
#[must_use]
pub fn origin(path: &Path) -> Option<PathBuf> {
    Some(copies().as_ref()?.urls.get(path)?.into())
}

/// The name that the user knows: the URL of a copy, otherwise the path. For a file next to a copy, such as a later
/// part of a capture, it is a URL next to the copy's URL.
#[must_use]
pub fn named(path: &Path) -> PathBuf {
    let copies = copies();
    let Some(copies) = copies.as_ref() else { return path.to_owned() };
    if let Some(url) = copies.urls.get(path) {
        return url.into();
    }
    let is_beside = |copy: &Path| copy.parent() == path.parent();
    let beside = copies.urls.iter().find(|(copy, _)| is_beside(copy)).map(|(_, url)| url);
    let folder = beside.and_then(|url| url.rsplit_once('/')).map(|(folder, _)| folder);
    match (folder, path.file_name().and_then(|name| name.to_str())) {
        (Some(folder), Some(name)) => format!("{folder}/{name}").into(),
        _ => path.to_owned(),
    }
}

/// The text with URLs in place of the paths of their copies.
#[must_use]
pub fn with_urls(text: &str) -> Cow<'_, str> {
    let copies = copies();
    let mut shown = Cow::Borrowed(text);
    for (copy, url) in copies.iter().flat_map(|copies| &copies.urls) {
        let Some(copy) = copy.to_str().filter(|copy| shown.contains(copy)) else { continue };
        // The URL of a folder ends in `/`.
        let folder = url.trim_end_matches('/');
        shown = Cow::Owned(shown.replace(&format!("{copy}/"), &format!("{folder}/")).replace(copy, url));
    }
    shown
}

/// Makes the next access check the versions of all objects again. For processes that execute several commands.
pub fn look_again() {
    if let Some(copies) = copies().as_mut() {
        copies.paths.clear();
    }
}

/// The error for `url` in a build without network support.
#[must_use]
pub fn not_built(url: &str) -> io::Error {
    let url = without_secrets(url);
    let text =
        format!("this build of vcr lacks the feature `store`, which `{url}` needs; build it with --features full");
    io::Error::new(ErrorKind::Unsupported, text)
}

/// The error message for an input that [`local`] refuses.
#[must_use]
pub fn refusal(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::Unsupported | ErrorKind::InvalidInput => error.to_string(),
        _ => format!("cannot read {error}"),
    }
}

/// Removes possible secrets from a URL: user, password and query.
#[must_use]
pub fn without_secrets(url: &str) -> String {
    let bare = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = bare.split_once("://") else { return bare.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit('@').next().unwrap_or(host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_paths() {
        for path in ["s3://bucket/key.jsonl", "hf://datasets/a/b/c.json", "https://host/x/"] {
            assert_eq!(url(Path::new(path)), Some(path));
        }
        for path in ["a/b", "/s3://a", "oci://host/x", "s3:/a", "C:\\x", "a b://c", ""] {
            assert_eq!(url(Path::new(path)), None, "{path}");
            assert_eq!(local(Path::new(path)).expect("it is a path"), Path::new(path));
        }
    }

    #[test]
    fn unknown_schemes_are_named() {
        let error = local(Path::new("ftp://me:word@host/x")).expect_err("nothing reads it");
        let expected = "expected one of the schemes az, gs, hf, http, https, s3, got `ftp`";
        assert_eq!(refusal(&error), format!("invalid URL `ftp://host/x`: {expected}"));
    }

    #[test]
    fn copies_have_the_names_of_their_urls() {
        let known = [(PathBuf::from("/copies/1/data/day.jsonl"), "s3://bucket/runs/day.jsonl".to_owned())];
        copies().get_or_insert_default().urls.extend(known);
        for (path, name) in [
            ("/copies/1/data/day.jsonl", "s3://bucket/runs/day.jsonl"),
            ("/copies/1/data/day.1.jsonl", "s3://bucket/runs/day.1.jsonl"),
            ("/copies/2/data/day.jsonl", "/copies/2/data/day.jsonl"),
            ("day.jsonl", "day.jsonl"),
        ] {
            assert_eq!(named(Path::new(path)), Path::new(name));
        }
    }

    #[test]
    fn texts_name_urls_and_not_their_copies() {
        let known = [
            (PathBuf::from("/copies/3/data/x.rhai"), "http://host/x.rhai".to_owned()),
            (PathBuf::from("/copies/4/data/out"), "http://host/out/".to_owned()),
        ];
        copies().get_or_insert_default().urls.extend(known);
        assert_eq!(with_urls("/copies/3/data/x.rhai:10:17: no"), "http://host/x.rhai:10:17: no");
        assert_eq!(with_urls("`/copies/4/data/out/report.json`"), "`http://host/out/report.json`");
        assert_eq!(with_urls("x.rhai:10:17"), "x.rhai:10:17");
    }

    #[test]
    fn secrets_are_left_out() {
        assert_eq!(without_secrets("https://me:word@host/a?X-Amz-Signature=1#x"), "https://host/a");
        assert_eq!(without_secrets("s3://bucket/a@b"), "s3://bucket/a@b");
        assert_eq!(without_secrets("https://a@b@host"), "https://host");
    }

    /// These tests register no client.
    #[test]
    fn a_build_without_network_names_the_feature() {
        let error = local(Path::new("s3://bucket/a?secret")).expect_err("there is no client").to_string();
        assert!(error.contains("lacks the feature `store`, which `s3://bucket/a` needs"), "{error}");
    }
}
