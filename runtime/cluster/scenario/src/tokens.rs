//! Token ids of texts. The caller supplies tokenizers, because they are a lot of code that few scenarios need.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Returns the token ids of a text.
pub type Tokenize = dyn FnMut(&str) -> Result<Vec<u32>, String>;

type Open = dyn Fn(&Path) -> Result<Box<Tokenize>, String> + Send + Sync;

/// Opens tokenizers.
#[derive(Clone)]
pub struct Tokenizers(Arc<Open>);

impl Tokenizers {
    /// Tokenizers that `open` makes from a model's folder.
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
