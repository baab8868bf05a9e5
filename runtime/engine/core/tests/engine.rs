//! Tests of the engine through its public interface, in one binary, because linking each file by itself takes longer.

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
