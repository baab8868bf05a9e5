//! Disaggregated prefill and decode: the set-ups in `docs/how-to/pd.md`, and KV that moves between two processes.

mod abandoned;
mod groups;
mod hosts;
mod kv_bench;
mod moving;
mod routers;
mod scenario;
mod shapes;
mod storm;
mod tls;
