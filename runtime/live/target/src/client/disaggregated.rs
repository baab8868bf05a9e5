//! A server of prefill engines and one of decode engines, called as vLLM's P/D proxies do: the
//! prompt goes to the first, which keeps its KV; its `kv_transfer_params` go with the request to
//! the second.

use vcr_cluster::IssuedRequest;

use super::completions::{Completions, Part, failed};
use super::error::ClientError;
use crate::drive::{AnswerReporter, Answered, Service};

/// Sends requests to a prefill server, and then to a decode server.
pub(crate) struct DisaggregatedServers {
    pub(crate) prefill: Completions,
    pub(crate) decode: Completions,
    /// Whether a client that leaves cancels the computation of its prompt.
    pub(crate) cancels_prefill: bool,
}

impl Service for DisaggregatedServers {
    async fn answer(&self, request: &IssuedRequest, heard: &AnswerReporter) -> Answered {
        match self.exchange(request, heard).await {
            Ok(answer) => Answered::Whole(answer),
            Err(error) => failed(&error, heard),
        }
    }
}

impl DisaggregatedServers {
    async fn exchange(&self, request: &IssuedRequest, heard: &AnswerReporter) -> Result<Vec<u32>, ClientError> {
        let params = self.prefill.prefill(request, heard, self.cancels_prefill).await?;
        self.decode.exchange(request, Part::Output(&params), heard).await
    }
}
