//! The text of a model: tokenizers, chat templates, incremental detokenization and
//! drawn text.
