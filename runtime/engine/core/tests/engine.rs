//! Tests of the engine through its public interface. They are one binary, because linking one binary per file is
//! slower.

mod bad_input;
mod connector;
mod drafters;
mod encoder;
mod fast_forward;
mod grammars;
mod groups;
mod paced;
mod parallel;
mod pause;
mod plain;
mod policies;
mod pool;
mod precedence;
mod prefixes;
mod properties;
mod remote_groups;
mod remote_kv;
mod sessions;
mod sglang;
mod stops;
mod support;
mod ticks;
