use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// Parts of errors by which servers show that they have no WebDAV, the protocol that lists folders.
const REFUSED_LISTS: [&str; 3] = ["status code: 405", "status code: 501", "decoding PROPFIND"];

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("invalid URL `{url}`: {problem}")]
    Url { url: String, problem: &'static str },
    #[error("`{url}`: {source}")]
    Object { url: String, source: object_store::Error },
    #[error("`{url}`: the Hub lists the file `{file}`: expected a name within the data set")]
    ForeignName { url: String, file: String },
    #[error("`{url}`: {reason}")]
    Hub { url: String, reason: String },
    #[error("`{url}`: the server cannot list folders; name a file")]
    NoFolders { url: String },
    #[error("`{url}`: there are no objects below it")]
    EmptyFolder { url: String },
    #[error("`{url}`: the store lists the objects below it without an end")]
    EndlessList { url: String },
    #[error("`{url}`: there are more than {most} objects; give a smaller folder, or fewer parts")]
    TooMany { url: String, most: usize },
    #[error("`{url}`: it changed while it was read")]
    Changed { url: String },
    #[error("`{url}`: a data set can only be read")]
    ReadOnly { url: String },
    #[error("`{url}`: it has {bytes} bytes; HTTP servers take files of up to {most} bytes in one request")]
    TooLarge { url: String, bytes: u64, most: u64 },
    #[error("cannot use `{path}`: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("cannot find a folder for copies: set VCR_STORE, XDG_CACHE_HOME or HOME")]
    NoFolder,
    #[error("cannot start the client: {0}")]
    Runtime(io::Error),
    #[error("invalid {variable}: {problem}")]
    Setting { variable: &'static str, problem: String },
}

impl StoreError {
    pub(crate) fn object(url: &str) -> impl Fn(object_store::Error) -> Self + use<> {
        let url = url.to_owned();
        move |source| Self::Object { url: url.clone(), source }
    }

    /// The error of a list of the objects below `url`. Servers that cannot list answer with a page.
    pub(crate) fn list(url: &str) -> impl Fn(object_store::Error) -> Self + use<> {
        let object = Self::object(url);
        let url = url.to_owned();
        move |source| {
            let text = source.to_string();
            let is_refused = REFUSED_LISTS.iter().any(|mark| text.contains(mark));
            if is_refused && text.contains("PROPFIND") { Self::NoFolders { url: url.clone() } } else { object(source) }
        }
    }

    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::Url { .. } | Self::ReadOnly { .. } | Self::Setting { .. } => ErrorKind::InvalidInput,
            Self::Object { source: object_store::Error::NotFound { .. }, .. } | Self::EmptyFolder { .. } => {
                ErrorKind::NotFound
            }
            Self::Object { source: object_store::Error::AlreadyExists { .. }, .. } => ErrorKind::AlreadyExists,
            Self::File { source, .. } => source.kind(),
            _ => ErrorKind::Other,
        }
    }
}

impl From<StoreError> for io::Error {
    fn from(error: StoreError) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            let more = inner.to_string();
            if !text.contains(&more) {
                text.push_str(": ");
                text.push_str(&more);
            }
            cause = inner.source();
        }
        Self::new(error.kind(), without_queries(&text))
    }
}

/// Removes the queries of URLs from a message, because they may contain signatures.
pub(crate) fn without_queries(text: &str) -> String {
    let mut words = text.split_inclusive(char::is_whitespace);
    let bare = |word: &str| match (word.contains("://") || word.starts_with('/'), word.find('?')) {
        (true, Some(query)) => {
            let rest = &word[query..];
            let end = rest.find([')', '"', '`', '\'', ' ', '\n']).unwrap_or(rest.len());
            format!("{}{}", &word[..query], &rest[end..])
        }
        _ => word.to_owned(),
    };
    words.by_ref().map(bare).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_without_lists_are_told_from_others() {
        let of = |text: &str| {
            let source = object_store::Error::Generic { store: "HTTP", source: text.to_owned().into() };
            StoreError::list("http://host/")(source).to_string()
        };
        let answer = "Error performing PROPFIND http://host/ in 3ms - Server returned non-2xx status code: ";
        for refused in ["501 Not Implemented: <html>", "405 Method Not Allowed: <html>"] {
            assert_eq!(
                of(&format!("{answer}{refused}")),
                "`http://host/`: the server cannot list folders; name a file"
            );
        }
        assert!(of(&format!("{answer}403 Forbidden: ")).contains("403 Forbidden"));
        assert!(of("Error performing GET http://b/?list - Server returned non-2xx status code: 501: ").contains("501"));
    }

    #[test]
    fn queries_of_urls_are_left_out() {
        let text = "Error performing GET (https://a.net/c/b?sig=abc&x=1) in 3ms: what? no";
        assert_eq!(without_queries(text), "Error performing GET (https://a.net/c/b) in 3ms: what? no");
    }
}
