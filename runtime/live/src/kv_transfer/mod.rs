//! KV transfers between prefill and decode engines.

pub(crate) mod link;
pub(crate) mod peers;
pub(crate) mod transfers;
