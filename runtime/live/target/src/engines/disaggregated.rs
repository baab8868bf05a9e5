//! Prefill and decode engines of this process, called as a P/D router does: the prompt goes to
//! the first, which keep its KV; its `kv_transfer_params` go with the request to the second.

use vcr_cluster::IssuedRequest;
use vcr_cluster::record::FailReason;
use vcr_wire::{EngineCoreRequest, SamplingParams, Value};

use super::book::CountedOutputs;
use super::direct::{Direct, ended, is_whole, report};
use crate::drive::{AnswerReporter, Answered, Service};

/// Sends requests to prefill engines, and then to decode engines.
pub(crate) struct Disaggregated {
    pub(crate) prefill: Direct,
    pub(crate) decode: Direct,
}

impl Service for Disaggregated {
    async fn answer(&self, request: &IssuedRequest, heard: &AnswerReporter) -> Answered {
        heard.sent().await;
        let params = match self.prefilled(request, heard).await {
            Ok(params) => params,
            Err(answered) => return answered,
        };
        let mut second = self.decode.request(request);
        transfer(&mut second, params);
        let mut stream = match self.decode.submit(&second, heard).await {
            Ok(stream) => stream,
            Err(answered) => return answered,
        };
        self.decode.follow(&mut stream, request, heard, CountedOutputs::Output).await
    }
}

impl Disaggregated {
    /// Has a prompt computed, whose KV waits then; gives its place.
    async fn prefilled(&self, request: &IssuedRequest, heard: &AnswerReporter) -> Result<Value, Answered> {
        let mut first = self.prefill.request(request);
        if let Some(params) = &mut first.sampling_params {
            params.max_tokens = params.max_tokens.map(|tokens| tokens.min(1));
        }
        let flag = |name: &str, value: bool| (Value::Str(name.to_owned()), Value::Bool(value));
        transfer(&mut first, Value::Map(vec![flag("do_remote_decode", true), flag("do_remote_prefill", false)]));
        let mut stream = self.prefill.submit(&first, heard).await?;
        loop {
            let output = match stream.next().await {
                Ok(Some(output)) => output,
                Ok(None) | Err(_) => return Err(Answered::Lost(FailReason::EngineCrash)),
            };
            self.prefill.book.report_engine(request.tag, heard, CountedOutputs::Prompt);
            report(&output, heard, CountedOutputs::Prompt);
            match is_whole(&output) {
                None => continue,
                Some(false) => return Err(ended(&output, heard)),
                Some(true) => {}
            }
            heard.prefilled();
            let Some(params) = output.kv_transfer_params else {
                heard.note("transfers", "a prefill engine did not keep the KV of a prompt");
                return Err(Answered::Failed(FailReason::Server));
            };
            return Ok(params);
        }
    }
}

/// Puts `kv_transfer_params` into a request.
fn transfer(request: &mut EngineCoreRequest, params: Value) {
    let sampling = request.sampling_params.get_or_insert_with(SamplingParams::default);
    sampling.extra_args = Some(Value::Map(vec![(Value::Str("kv_transfer_params".to_owned()), params)]));
}
