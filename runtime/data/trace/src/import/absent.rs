//! Replaces the formats of the feature `formats` in builds without it. Every use is an error that names the
//! feature.

pub(crate) mod parquet {
    use std::io::{self, BufRead, Write};
    use std::path::Path;

    use crate::import::ImportError;
    use crate::import::readers::dataset::table::RowSink;
    use crate::import::table::columns::Column;

    fn absent() -> ImportError {
        ImportError::NotBuilt { needed_by: "Parquet" }
    }

    pub(crate) fn columns(_path: &Path, _name: &str) -> Result<Vec<String>, ImportError> {
        Err(absent())
    }

    pub(crate) fn read_file(_path: &Path, _name: &str, _rows: &mut dyn RowSink) -> Result<(), ImportError> {
        Err(absent())
    }

    pub(crate) fn read_stream(_reader: impl BufRead, _name: &str, _rows: &mut dyn RowSink) -> Result<(), ImportError> {
        Err(absent())
    }

    pub(crate) fn write(_out: &mut (dyn Write + Send), _columns: &[Column]) -> io::Result<()> {
        Err(io::Error::other(absent()))
    }
}

pub(crate) mod proto {
    use std::io::{self, Write};

    use crate::import::ImportError;
    use crate::import::export::tracks::TrackSink;

    pub(crate) fn sink<'a>(_out: impl Write + 'a) -> io::Result<Box<dyn TrackSink + 'a>> {
        Err(io::Error::other(ImportError::NotBuilt { needed_by: "Perfetto's own format" }))
    }
}

pub(crate) mod tokenizer {
    use std::path::Path;

    use serde_json::Value;

    use crate::import::ImportError;

    /// Has no values, because this build has no tokenizers.
    pub(crate) enum Tokenizer {}

    impl Tokenizer {
        pub(crate) fn open(_path: &Path) -> Result<Self, ImportError> {
            Err(absent())
        }

        pub(crate) fn tokens(&self, _text: &str) -> Result<Vec<u32>, String> {
            match *self {}
        }
    }

    /// The vocabulary of a tokenizer.
    ///
    /// # Errors
    /// Always, because this build reads no tokenizers.
    pub fn vocabulary(_tokenizer: &Path) -> Result<Value, ImportError> {
        Err(absent())
    }

    fn absent() -> ImportError {
        ImportError::NotBuilt { needed_by: "a tokenizer" }
    }
}
