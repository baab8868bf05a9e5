//! Calls a prefill server and a decode server, as vLLM's P/D proxies do. The prefill server computes the prompt and
//! keeps its KV. Its `kv_transfer_params` are sent with the request to the decode server.

use vcr_cluster::IssuedRequest;

use super::completions::{Completions, Part, failed};
use super::error::ClientError;
use crate::drive::{AnswerReporter, Answered, Service};

/// Sends each request to a prefill server, then to a decode server.
pub(crate) struct DisaggregatedServers {
    pub(crate) prefill: Completions,
    pub(crate) decode: Completions,
    /// Whether the computation of a prompt is cancelled when the client disconnects.
    pub(crate) cancels_prefill: bool,
}

impl Service for DisaggregatedServers {
    async fn answer(&self, request: &IssuedRequest, reporter: &AnswerReporter) -> Answered {
        match self.exchange(request, reporter).await {
            Ok(answer) => Answered::Whole(answer),
            Err(error) => failed(&error, reporter),
        }
    }
}

impl DisaggregatedServers {
    async fn exchange(&self, request: &IssuedRequest, reporter: &AnswerReporter) -> Result<Vec<u32>, ClientError> {
        let params = self.prefill.prefill(request, reporter, self.cancels_prefill).await?;
        self.decode.exchange(request, Part::Output(&params), reporter).await
    }
}
