//! Sends messages to a collector: by HTTP/1.1 or gRPC, with or without TLS.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use axum::http::uri::PathAndQuery;
use prost::Message;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tokio::runtime::Runtime;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};
use tonic_prost::ProstCodec;

use super::endpoint::{Endpoint, Protocol};
use super::proto::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use crate::http::client_tls;

/// Timeout for a message and its response.
const SEND_TIME: Duration = Duration::from_secs(2);
const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// A connection to the collector, opened when there is something to send.
#[derive(Debug)]
pub(super) enum Transport {
    Http { endpoint: Endpoint, tls: Option<Arc<ClientConfig>> },
    Grpc { runtime: Runtime, channel: Channel },
}

impl Transport {
    /// Creates the transport to `endpoint`. The collector's certificate is checked against the system's authorities
    /// and the PEM text `authorities`.
    pub(super) fn new(endpoint: Endpoint, authorities: Option<&[u8]>) -> io::Result<Self> {
        match endpoint.protocol {
            Protocol::Http => {
                let tls = endpoint.has_tls.then(|| client_tls(authorities).map(Arc::new)).transpose()?;
                Ok(Self::Http { endpoint, tls })
            }
            Protocol::Grpc => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let channel = {
                    // The channel's tasks run on this runtime.
                    let _entered = runtime.enter();
                    channel(&endpoint, authorities).map_err(with_cause)?
                };
                Ok(Self::Grpc { runtime, channel })
            }
        }
    }

    pub(super) fn send(&self, message: ExportTraceServiceRequest) -> io::Result<()> {
        match self {
            Self::Http { endpoint, tls } => post(endpoint, tls.as_ref(), &message.encode_to_vec()),
            Self::Grpc { runtime, channel } => {
                // The timeout needs this runtime's timer.
                runtime.block_on(async { tokio::time::timeout(SEND_TIME, call(channel.clone(), message)).await })?
            }
        }
    }
}

fn with_cause(error: impl Error) -> io::Error {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    io::Error::other(text)
}

fn channel(endpoint: &Endpoint, authorities: Option<&[u8]>) -> Result<Channel, tonic::transport::Error> {
    let scheme = if endpoint.has_tls { "https" } else { "http" };
    let mut channel = Channel::from_shared(format!("{scheme}://{}", endpoint.authority))
        .expect("an endpoint is a URL")
        .connect_timeout(SEND_TIME);
    if endpoint.has_tls {
        let mut tls = ClientTlsConfig::new().with_native_roots();
        if let Some(pem) = authorities {
            tls = tls.ca_certificate(Certificate::from_pem(pem));
        }
        channel = channel.tls_config(tls)?;
    }
    Ok(channel.connect_lazy())
}

async fn call(channel: Channel, message: ExportTraceServiceRequest) -> io::Result<()> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(with_cause)?;
    let codec = ProstCodec::<_, ExportTraceServiceResponse>::default();
    let answer = client.unary(tonic::Request::new(message), PathAndQuery::from_static(GRPC_PATH), codec).await;
    answer.map(drop).map_err(|status| match status.source() {
        Some(cause) => with_cause(cause),
        None => io::Error::other(format!("the collector answered with {}: {}", status.code(), status.message())),
    })
}

fn post(endpoint: &Endpoint, tls: Option<&Arc<ClientConfig>>, body: &[u8]) -> io::Result<()> {
    let address = endpoint.authority.to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other("the host has no address"))?;
    let stream = TcpStream::connect_timeout(&address, SEND_TIME)?;
    stream.set_write_timeout(Some(SEND_TIME))?;
    stream.set_read_timeout(Some(SEND_TIME))?;
    match tls {
        None => exchange(stream, endpoint, body),
        Some(config) => {
            let name = ServerName::try_from(endpoint.host().to_owned()).map_err(io::Error::other)?;
            let connection = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
            exchange(StreamOwned::new(connection, stream), endpoint, body)
        }
    }
}

fn exchange(mut stream: impl Read + Write, endpoint: &Endpoint, body: &[u8]) -> io::Result<()> {
    let Endpoint { authority, path, .. } = endpoint;
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\nContent-Type: application/x-protobuf\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    stream.flush()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
    match status {
        Some(200..=299) => Ok(()),
        Some(status) => Err(io::Error::other(format!("the collector answered with status {status}"))),
        None => Err(io::Error::other("the collector's answer is not HTTP")),
    }
}
