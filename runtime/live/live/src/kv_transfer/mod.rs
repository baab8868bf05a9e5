//! KV transfers between prefill and decode engines.

pub(crate) mod content;
pub(crate) mod finished;
pub(crate) mod link;
pub(crate) mod loads;
pub(crate) mod meetings;
pub(crate) mod mover;
pub(crate) mod pages;
pub(crate) mod params;
pub(crate) mod peers;
pub(crate) mod push;
pub(crate) mod settings;
pub(crate) mod transfers;
