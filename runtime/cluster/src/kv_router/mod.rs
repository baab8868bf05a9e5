//! The KV router: Dynamo's cost function over what its index and its own books know.

mod config;

pub use config::{KvKnowledge, KvRouterConfig, QueueConfig, QueueOrder, ReplicaConfig};
