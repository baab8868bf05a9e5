//! A gRPC client on tonic: one connection, with blocking calls.

use std::future::Future;
use std::time::Duration;

use prost::Message;
use tokio::runtime::Runtime;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;
use vcr_tests::Serve;

use super::SERVICE;
use super::messages::{Answer, Chunk, Complete, GenerateRequest, GenerateResponse};

/// Long enough even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Client {
    runtime: Runtime,
    channel: Channel,
}

/// Answers of a call, as they arrive. The call is cancelled if they are dropped before their end.
pub(super) struct Answers<'a> {
    client: &'a Client,
    stream: Streaming<GenerateResponse>,
}

impl Client {
    pub(super) fn new(serve: &Serve) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let address = format!("http://{}", serve.address());
        let endpoint = Channel::from_shared(address).expect("an address is a URL");
        let channel = runtime.block_on(endpoint.connect()).expect("it accepts connections");
        Self { runtime, channel }
    }

    /// Waits for `future`. The connection's tasks run only meanwhile: they have no other thread.
    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let patient = async { tokio::time::timeout(PATIENCE, future).await };
        self.runtime.block_on(patient).expect("the server answers")
    }

    /// Makes a call with one answer.
    pub(super) fn call<Q, A>(&self, method: &str, request: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path = format!("/{SERVICE}/{method}").parse().expect("it is a path");
        let mut grpc = Grpc::new(self.channel.clone());
        self.wait(async {
            grpc.ready().await.expect("the connection is open");
            let codec = ProstCodec::<Q, A>::default();
            grpc.unary(Request::new(request), path, codec).await.map(tonic::Response::into_inner)
        })
    }

    /// Begins `Generate`.
    pub(super) fn generate(&self, request: GenerateRequest) -> Result<Answers<'_>, Status> {
        let path = format!("/{SERVICE}/Generate").parse().expect("it is a path");
        let mut grpc = Grpc::new(self.channel.clone());
        let stream = self.wait(async {
            grpc.ready().await.expect("the connection is open");
            let codec = ProstCodec::<GenerateRequest, GenerateResponse>::default();
            grpc.server_streaming(Request::new(request), path, codec).await.map(tonic::Response::into_inner)
        })?;
        Ok(Answers { client: self, stream })
    }

    /// Calls `Generate` and returns all answers: the chunks, and the ends of the completions.
    pub(super) fn generated(&self, request: GenerateRequest) -> Result<(Vec<Chunk>, Vec<Complete>), Status> {
        let mut answers = self.generate(request)?;
        let (mut chunks, mut ends) = (Vec::new(), Vec::new());
        while let Some(answer) = answers.next()? {
            match answer {
                Answer::Chunk(chunk) => chunks.push(chunk),
                Answer::Complete(complete) => ends.push(complete),
            }
        }
        Ok((chunks, ends))
    }
}

impl Answers<'_> {
    /// Next answer; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Answer>, Status> {
        let answer = self.client.wait(self.stream.message())?;
        Ok(answer.map(|answer| answer.response.expect("an answer is a chunk or complete")))
    }
}
