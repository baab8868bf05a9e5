//! Calls prefill and decode engines in this process, as a P/D router does. The prefill engine computes the prompt
//! and keeps its KV. Its `kv_transfer_params` are sent with the request to the decode engine.

use vcr_cluster::IssuedRequest;
use vcr_cluster::record::FailReason;
use vcr_frontend::engine::RequestStream;
use vcr_wire::{EngineCoreRequest, SamplingParams, Value};

use super::book::CountedOutputs;
use super::direct::{Direct, ended, is_whole, report};
use crate::drive::{AnswerReporter, Answered, Service};

/// Sends each request to a prefill engine, then to a decode engine.
pub(crate) struct Disaggregated {
    pub(crate) prefill: Direct,
    pub(crate) decode: Direct,
    /// Whether the computation of a prompt is cancelled when the client disconnects.
    pub(crate) cancels_prefill: bool,
}

/// The output stream of a prefill request. If it is dropped, the computation continues unless `is_cancelled` is
/// true.
struct PromptStream {
    stream: Option<RequestStream>,
    is_cancelled: bool,
}

impl Drop for PromptStream {
    fn drop(&mut self) {
        let Some(mut stream) = self.stream.take().filter(|_| !self.is_cancelled) else { return };
        tokio::task::spawn_local(async move {
            while let Ok(Some(output)) = stream.next().await {
                if is_whole(&output).is_some() {
                    break;
                }
            }
        });
    }
}

impl Service for Disaggregated {
    async fn answer(&self, request: &IssuedRequest, reporter: &AnswerReporter) -> Answered {
        reporter.sent().await;
        let params = match self.prefilled(request, reporter).await {
            Ok(params) => params,
            Err(answered) => return answered,
        };
        let mut second = self.decode.request(request);
        transfer(&mut second, params);
        let mut stream = match self.decode.submit(&second, reporter).await {
            Ok(stream) => stream,
            Err(answered) => return answered,
        };
        self.decode.follow(&mut stream, request, reporter, CountedOutputs::Output).await
    }
}

impl Disaggregated {
    /// Computes a prompt. Returns the `kv_transfer_params` of its KV.
    async fn prefilled(&self, request: &IssuedRequest, reporter: &AnswerReporter) -> Result<Value, Answered> {
        let mut first = self.prefill.request(request);
        if let Some(params) = &mut first.sampling_params {
            params.max_tokens = params.max_tokens.map(|tokens| tokens.min(1));
        }
        let flag = |name: &str, value: bool| (Value::Str(name.to_owned()), Value::Bool(value));
        transfer(&mut first, Value::Map(vec![flag("do_remote_decode", true), flag("do_remote_prefill", false)]));
        let stream = self.prefill.submit(&first, reporter).await?;
        let mut prompt = PromptStream { stream: Some(stream), is_cancelled: self.cancels_prefill };
        loop {
            let output = match &mut prompt.stream {
                Some(stream) => stream.next().await,
                None => Ok(None),
            };
            let Ok(Some(output)) = output else {
                prompt.stream = None;
                return Err(Answered::Lost(FailReason::EngineCrash));
            };
            if is_whole(&output).is_some() {
                prompt.stream = None;
            }
            self.prefill.book.report_engine(request.tag, reporter, CountedOutputs::Prompt);
            report(&output, reporter, CountedOutputs::Prompt);
            match is_whole(&output) {
                None => continue,
                Some(false) => return Err(ended(&output, reporter)),
                Some(true) => {}
            }
            reporter.prefilled();
            let Some(params) = output.kv_transfer_params else {
                reporter.note("transfers", "a prefill engine did not keep the KV of a prompt");
                return Err(Answered::Failed(FailReason::Server));
            };
            return Ok(params);
        }
    }
}

fn transfer(request: &mut EngineCoreRequest, params: Value) {
    let sampling = request.sampling_params.get_or_insert_with(SamplingParams::default);
    sampling.extra_args = Some(Value::Map(vec![(Value::Str("kv_transfer_params".to_owned()), params)]));
}
