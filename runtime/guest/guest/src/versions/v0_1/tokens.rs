use vcr_core::tokens::TokenRequest;

use crate::error::CallFault;
use crate::latest::{Maker, Setup, TokenCall, TokenInstance};
use crate::limits::Budget;
use crate::remarks::Remarks;
use crate::sandbox::HostState;
use crate::versions::instance::{Instance, Module, impl_bindings};
use crate::versions::v0_1::generated;

pub(super) use bindings::TokenSource as Bindings;
use bindings::exports::vcr::guest::tokens as wit;

generated!("token-source", "vcr:guest/requests@0.1.0": requests, "vcr:guest/drafts@0.1.0": drafts);

impl_bindings!(Bindings, bindings::TokenSourcePre<HostState>, Columns, vcr_guest_tokens);

/// Buffers for the tokens that a call asks for.
#[derive(Default)]
pub(crate) struct Columns {
    slot: Vec<u32>,
    first_index: Vec<u32>,
    count: Vec<u32>,
}

impl Maker<dyn TokenInstance> for Module<Bindings> {
    fn configure(&self, setup: Setup<'_>) -> Result<Box<dyn TokenInstance>, CallFault> {
        Ok(Box::new(self.configured(setup)?))
    }
}

impl TokenInstance for Instance<Bindings> {
    fn step(&mut self, call: TokenCall<'_>, remarks: &mut Remarks, budget: Budget) -> Result<Vec<u32>, CallFault> {
        let Columns { slot, first_index, count } = self.columns();
        slot.clear();
        first_index.clear();
        count.clear();
        for want in call.wants {
            slot.push(want.slot);
            first_index.push(want.first_index);
            count.push(want.count);
        }
        self.call(budget, |guest, store, Columns { slot, first_index, count }| {
            let started: Vec<_> = call.started.iter().map(wit_request).collect();
            let wants = wit::TokenWants { slot, first_index, count };
            store.data_mut().remarks.allow();
            let answer = guest.vcr_guest_tokens().call_step(&mut *store, &started, call.ended, wants);
            store.data_mut().remarks.take(remarks);
            answer
        })
    }
}

fn wit_request<'a>(request: &TokenRequest<'a>) -> wit::TokenRequest<'a> {
    wit::TokenRequest {
        slot: request.slot,
        seed: request.seed,
        prompt: request.prompt,
        max_tokens: request.max_tokens,
        min_tokens: request.min_tokens,
        eos_token: request.eos_token,
        stop_tokens: request.stop_tokens,
        structured_output: (!request.structured_output.is_empty()).then_some(request.structured_output),
        thinking_token_budget: request.thinking_token_budget,
    }
}
