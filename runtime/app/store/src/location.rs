use url::{Host, Url};
use vcr_base::input::remote::without_secrets;

use crate::error::StoreError;

/// The longest URL. Clients accept 64 KiB after they have encoded and extended it.
const MAX_BYTES: usize = 4096;

/// Number of bytes of a longer URL that the error shows.
const SHOWN_BYTES: usize = 64;

/// The location of an object, or of a folder of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Object(Object),
    DataSet(DataSet),
}

/// An object in a bucket, a container or on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// URL without secrets.
    pub(crate) name: String,
    pub(crate) url: Url,
    /// Key without a `/` at either end.
    pub(crate) key: object_store::path::Path,
    pub(crate) is_folder: bool,
}

/// A file of a Hugging Face data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DataSet {
    pub(crate) name: String,
    /// `OWNER/NAME`.
    pub(crate) repository: String,
    /// A branch, a tag or a commit.
    pub(crate) revision: String,
    pub(crate) path: String,
    pub(crate) is_folder: bool,
}

impl Location {
    /// Parses `s3://BUCKET/KEY`, `gs://BUCKET/KEY`, `az://CONTAINER/KEY`, `https://HOST/PATH` or
    /// `hf://datasets/OWNER/NAME[@REVISION]/PATH`.
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        if text.len() > MAX_BYTES {
            let url = without_secrets(&text[..text.floor_char_boundary(SHOWN_BYTES)]);
            return Err(StoreError::Url { url: format!("{url}..."), problem: "expected at most 4,096 bytes" });
        }
        let name = without_secrets(text);
        let refused = |problem| StoreError::Url { url: name.clone(), problem };
        if text != name {
            return Err(refused("expected no user, query or fragment: credentials come from the environment"));
        }
        let url = Url::parse(text).map_err(|_| refused("expected SCHEME://HOST/PATH"))?;
        if url.scheme() == "hf" {
            return data_set(&name)
                .map(Self::DataSet)
                .ok_or_else(|| refused("expected hf://datasets/OWNER/NAME/PATH, or OWNER/NAME@REVISION"));
        }
        let is_loopback = match url.host() {
            Some(Host::Domain(domain)) => domain == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => return Err(refused("expected the name of a bucket, container or host")),
        };
        if url.scheme() == "http" && !is_loopback {
            return Err(refused("expected https://, except for this machine"));
        }
        let key = object_store::path::Path::from_url_path(url.path())
            .map_err(|_| refused("expected a path without empty names, `.` and `..`"))?;
        if key.as_ref().is_empty() && !text.ends_with('/') {
            return Err(refused("expected a path behind the bucket, container or host"));
        }
        Ok(Self::Object(Object { is_folder: text.ends_with('/'), name, url, key }))
    }

    /// URL without secrets.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Object(object) => &object.name,
            Self::DataSet(data_set) => &data_set.name,
        }
    }

    /// The object, if it can be written.
    pub(crate) fn writable(&self) -> Result<&Object, StoreError> {
        match self {
            Self::Object(object) if object.is_folder => Err(StoreError::Url {
                url: object.name.clone(),
                problem: "expected the URL of a file, without a `/` at its end",
            }),
            Self::Object(object) => Ok(object),
            Self::DataSet(_) => Err(StoreError::ReadOnly { url: self.name().to_owned() }),
        }
    }
}

fn data_set(url: &str) -> Option<DataSet> {
    let rest = url.strip_prefix("hf://datasets/")?;
    let mut parts = rest.splitn(3, '/');
    let (owner, named, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (name, revision) = named.split_once('@').unwrap_or((named, "main"));
    let is_folder = path.is_empty() || path.ends_with('/');
    let path = path.trim_end_matches('/');
    let is_fine = |part: &str| !part.is_empty() && part != "." && part != "..";
    let are_fine =
        [owner, name, revision].into_iter().all(is_fine) && (path.is_empty() || path.split('/').all(is_fine));
    are_fine.then(|| DataSet {
        name: url.to_owned(),
        repository: format!("{owner}/{name}"),
        revision: revision.to_owned(),
        path: path.to_owned(),
        is_folder,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Location, String> {
        Location::parse(text).map_err(|error| error.to_string())
    }

    #[test]
    fn objects_have_keys() {
        for (text, expected, folder) in [
            ("s3://bucket/a/b.jsonl", "a/b.jsonl", false),
            ("gs://bucket/a/", "a", true),
            ("az://container/a%20b", "a b", false),
            ("https://host:8443/x/y.csv", "x/y.csv", false),
            ("http://127.0.0.1:1/x", "x", false),
            ("s3://bucket/", "", true),
        ] {
            let Ok(Location::Object(Object { key, is_folder, .. })) = parse(text) else { panic!("{text}") };
            assert_eq!((key.as_ref(), is_folder), (expected, folder), "{text}");
        }
    }

    #[test]
    fn data_sets_have_revisions() {
        let Ok(Location::DataSet(found)) = parse("hf://datasets/own/set@v1/data/a.parquet") else {
            panic!("a data set")
        };
        assert_eq!((&*found.repository, &*found.revision, &*found.path), ("own/set", "v1", "data/a.parquet"));
        let Ok(Location::DataSet(found)) = parse("hf://datasets/own/set/") else { panic!("a data set") };
        assert!(found.is_folder && found.path.is_empty() && found.revision == "main");
    }

    #[test]
    fn secrets_are_refused_and_not_repeated() {
        for text in ["https://me:geheim@host/a", "https://host/a?X-Amz-Signature=geheim", "s3://geheim@bucket/a"] {
            let error = parse(text).expect_err("it has a secret");
            assert!(error.contains("credentials come from the environment") && !error.contains("geheim"), "{error}");
        }
    }

    #[test]
    fn long_urls_are_refused() {
        for text in [format!("https://host/{}", "a".repeat(100_000)), format!("s3://b/{}", "é".repeat(3000))] {
            let error = parse(&text).expect_err("it is too long");
            assert!(error.len() < 200 && error.ends_with("...`: expected at most 4,096 bytes"), "{error}");
        }
        assert!(parse(&format!("s3://bucket/{}", "a".repeat(4000))).is_ok());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["http://example.com/a", "s3://", "s3://bucket", "hf://own/set/a", "hf://datasets/own", "s3://b/a//b"]
        {
            let error = parse(text).expect_err("it names nothing");
            assert!(error.starts_with(&format!("invalid URL `{text}`: expected ")), "{error}");
        }
    }
}
