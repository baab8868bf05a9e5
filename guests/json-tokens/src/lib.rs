//! What a model with structured outputs says, as a guest: `vcr-structured`, which the
//! simulator also has natively.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use vcr_guest_sdk::export_token_source;
use vcr_structured::JsonTokens;

export_token_source!(JsonTokens);
