//! Tokens of texts: a tokenizer is the caller's, since it is much code for a few files.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The tokens of a text.
pub type Tokenize = dyn FnMut(&str) -> Result<Vec<u32>, String>;

type Open = dyn Fn(&Path) -> Result<Box<Tokenize>, String> + Send + Sync;

/// Sources of tokenizers.
#[derive(Clone)]
pub struct Tokenizers(Arc<Open>);

impl Tokenizers {
    /// The tokenizers that `open` makes from a model's folder.
    pub fn new(open: impl Fn(&Path) -> Result<Box<Tokenize>, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(open))
    }

    pub(crate) fn open(&self, folder: &Path) -> Result<Box<Tokenize>, String> {
        (self.0)(folder)
    }
}

impl fmt::Debug for Tokenizers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Tokenizers")
    }
}
