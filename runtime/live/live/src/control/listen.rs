//! Listen addresses of the control plane.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::{fmt, io};

use crate::EnginesHandle;
use crate::control::gpu_metrics::{Exporter, GpuMetrics};
use crate::control::{ClientFaultRules, FakeMetricValues, GuestReader, LatencyReader, metrics};
use axum::Router;
use prometheus_client::registry::Registry;

/// Listen addresses, as `HOST:PORT`; port 0 takes a free port. A part without an address is not served.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses<'a> {
    /// Address of the read-only part; any host.
    pub metrics: Option<&'a str>,
    /// Address of the admin part; must be a loopback address.
    pub admin: Option<&'a str>,
    /// Address of the GPU metrics; any host.
    pub gpus: Option<&'a str>,
}

/// An error of a listen address.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("invalid listen address `{address}`: expected HOST:PORT")]
    NoAddress {
        /// The given address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// Other machines could reach the admin part.
    #[error(
        "invalid admin address {address}: expected a loopback address, since every client can change and stop engines"
    )]
    NotLoopback {
        /// The resolved address.
        address: SocketAddr,
    },
    #[error("cannot listen at `{address}`")]
    Bind {
        /// The given address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Metrics,
    Admin,
    Gpus,
}

/// Bound sockets that do not answer yet.
pub struct Listeners {
    pub(crate) bound: Vec<(Part, TcpListener)>,
    pub(crate) guests: Option<GuestReader>,
    pub(crate) client_faults: Option<Arc<dyn ClientFaultRules>>,
    pub(crate) fake_metrics: Option<Arc<dyn FakeMetricValues>>,
    pub(crate) gpus: Option<GpuMetrics>,
    pub(crate) page: Option<Router>,
}

impl fmt::Debug for Listeners {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Listeners").field("bound", &self.bound).finish_non_exhaustive()
    }
}

impl Listeners {
    /// Listens at `addresses`.
    pub fn bind(addresses: &Addresses<'_>) -> Result<Self, ControlError> {
        let wanted = [(Part::Metrics, addresses.metrics), (Part::Admin, addresses.admin), (Part::Gpus, addresses.gpus)];
        let given = wanted.into_iter().filter_map(|(part, address)| Some((part, address?)));
        let bound = given.map(|(part, address)| Ok((part, listen(part, address)?)));
        let bound = bound.collect::<Result<_, ControlError>>()?;
        Ok(Self { bound, guests: None, client_faults: None, fake_metrics: None, gpus: None, page: None })
    }

    /// Adds the telemetry of guests to the metrics.
    #[must_use]
    pub fn with_guests(self, guests: GuestReader) -> Self {
        Self { guests: Some(guests), ..self }
    }

    /// Adds the client faults of a server to the admin part.
    #[must_use]
    pub fn with_client_faults(self, rules: Arc<dyn ClientFaultRules>) -> Self {
        Self { client_faults: Some(rules), ..self }
    }

    /// Sets the engines' GPUs, whose metrics one part serves.
    #[must_use]
    pub fn with_gpus(self, gpus: Option<GpuMetrics>) -> Self {
        Self { gpus, ..self }
    }

    /// Adds the invented metrics of a server to the admin part.
    #[must_use]
    pub fn with_fake_metrics(self, values: Arc<dyn FakeMetricValues>) -> Self {
        Self { fake_metrics: Some(values), ..self }
    }

    /// Adds the routes of a page to the admin part.
    #[must_use]
    pub fn with_page(self, page: Option<Router>) -> Self {
        Self { page, ..self }
    }

    pub(crate) fn context(&self, engines: EnginesHandle, latency: LatencyReader) -> Context {
        let registry = Arc::new(metrics::registry(engines.clone(), self.guests.clone()));
        Context {
            engines,
            latency,
            registry,
            client_faults: self.client_faults.clone(),
            fake_metrics: self.fake_metrics.clone(),
            gpus: self.gpus.clone().map(|gpus| Arc::new(Exporter::new(gpus))),
        }
    }

    /// The address of the metrics part, if it is served.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.address(Part::Metrics)
    }

    /// The address of the admin part, if it is served.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.address(Part::Admin)
    }

    fn address(&self, wanted: Part) -> Option<SocketAddr> {
        let found = self.bound.iter().find(|(part, _)| *part == wanted);
        found.and_then(|(_, listener)| listener.local_addr().ok())
    }
}

fn listen(part: Part, address: &str) -> Result<TcpListener, ControlError> {
    let no_address = |source| ControlError::NoAddress { address: address.to_owned(), source };
    let resolved: Vec<SocketAddr> = address.to_socket_addrs().map_err(no_address)?.collect();
    if part == Part::Admin
        && let Some(address) = resolved.iter().find(|address| !address.ip().is_loopback())
    {
        return Err(ControlError::NotLoopback { address: *address });
    }
    let taken = |source| ControlError::Bind { address: address.to_owned(), source };
    let listener = TcpListener::bind(&resolved[..]).map_err(taken)?;
    listener.set_nonblocking(true).map_err(taken)?;
    Ok(listener)
}

/// The state that all request handlers share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) engines: EnginesHandle,
    pub(crate) latency: LatencyReader,
    pub(crate) registry: Arc<Registry>,
    /// Client faults; `None` without a server for clients (`vcr play`).
    pub(crate) client_faults: Option<Arc<dyn ClientFaultRules>>,
    /// Invented metrics of the server; `None` without a server for clients (`vcr play`).
    pub(crate) fake_metrics: Option<Arc<dyn FakeMetricValues>>,
    /// Metrics of the engines' GPUs, if they are served.
    pub(crate) gpus: Option<Arc<Exporter>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admin(address: &str) -> Result<Listeners, ControlError> {
        Listeners::bind(&Addresses { admin: Some(address), ..Addresses::default() })
    }

    #[test]
    fn port_0_takes_a_free_one() {
        let both = Addresses { metrics: Some("0.0.0.0:0"), admin: Some("localhost:0"), gpus: None };
        let listeners = Listeners::bind(&both).expect("there are free ports");
        let metrics = listeners.metrics_address().expect("it is served");
        let admin = listeners.admin_address().expect("it is served");
        assert!(metrics.port() != 0 && admin.port() != 0 && metrics.port() != admin.port());
        assert!(admin.ip().is_loopback() && metrics.ip().is_unspecified());
    }

    #[test]
    fn the_admin_part_stays_on_this_machine() {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            let error = admin(address).expect_err(address);
            assert!(matches!(error, ControlError::NotLoopback { .. }), "{address}: {error}");
        }
    }

    #[test]
    fn an_address_that_cannot_be_used_is_named() {
        for address in ["", "9090", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:port"] {
            let error = admin(address).expect_err(address);
            assert!(matches!(error, ControlError::NoAddress { .. }), "{address}: {error}");
            assert!(error.to_string().contains(address), "{address}: {error}");
        }
        let taken = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let address = taken.local_addr().expect("it has one").to_string();
        let error = admin(&address).expect_err("it is taken");
        assert!(matches!(error, ControlError::Bind { .. }), "{error}");
    }
}
