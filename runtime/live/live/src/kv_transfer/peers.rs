//! Peers of KV transfers: the hosts that requests may name, and the sockets to them.
//!
//! `remote_host` and `remote_port` come from requests, so every client could make an engine connect anywhere.
//! Therefore hosts other than this machine and the engine's own side channel must be allowed explicitly, and the
//! number of sockets is bounded.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use vcr_wire::{LinkError, NoticeSender, Transport};

/// Maximum number of open sockets: far below the 1,023 of a ZeroMQ context, and more than the prefill engines that
/// one decode engine talks to.
const MAX_SOCKETS: usize = 128;

/// Hosts that a request may name as its prefill engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvPeer {
    /// Every host.
    Any,
    /// One host, by its name or address, in lower case.
    Host(String),
    /// All hosts of a domain, which is stored with its leading dot.
    Domain(String),
    /// All addresses of a network.
    Network {
        address: IpAddr,
        /// Number of leading bits that all addresses share.
        prefix_bits: u8,
    },
}

/// An invalid peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid KV peer `{0}`: expected HOST, *.DOMAIN, a CIDR such as 10.0.0.0/8, or *")]
pub struct KvPeerError(String);

impl FromStr for KvPeer {
    type Err = KvPeerError;

    fn from_str(text: &str) -> Result<Self, KvPeerError> {
        let error = || KvPeerError(text.to_owned());
        if text == "*" {
            return Ok(Self::Any);
        }
        if let Some((address, prefix_bits)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| error())?;
            let prefix_bits = prefix_bits.parse().ok().filter(|bits| *bits <= width(address)).ok_or_else(error)?;
            return Ok(Self::Network { address, prefix_bits });
        }
        let host = text.to_ascii_lowercase();
        match host.strip_prefix('*') {
            Some(domain) if domain.starts_with('.') && is_host(&domain[1..]) => Ok(Self::Domain(domain.to_owned())),
            None if is_host(&host) => Ok(Self::Host(host)),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for KvPeer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => out.write_str("*"),
            Self::Host(host) => out.write_str(host),
            Self::Domain(domain) => write!(out, "*{domain}"),
            Self::Network { address, prefix_bits } => write!(out, "{address}/{prefix_bits}"),
        }
    }
}

impl KvPeer {
    fn contains(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Host(allowed) => match (address_of(allowed), address_of(host)) {
                (Some(allowed), Some(host)) => allowed == host,
                _ => allowed.eq_ignore_ascii_case(host),
            },
            Self::Domain(domain) => {
                let start = host.len().saturating_sub(domain.len());
                start > 0 && host.get(start..).is_some_and(|end| end.eq_ignore_ascii_case(domain))
            }
            Self::Network { address, prefix_bits } => match (address.to_canonical(), address_of(host)) {
                (IpAddr::V4(network), Some(IpAddr::V4(host))) => {
                    let shift = 32 - u32::from(*prefix_bits);
                    (network.to_bits() ^ host.to_bits()).checked_shr(shift).unwrap_or(0) == 0
                }
                (IpAddr::V6(network), Some(IpAddr::V6(host))) => {
                    let shift = 128 - u32::from(*prefix_bits);
                    (network.to_bits() ^ host.to_bits()).checked_shr(shift).unwrap_or(0) == 0
                }
                _ => false,
            },
        }
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address that `host` denotes, if it is an address. IPv6 addresses from URLs have brackets.
fn address_of(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Whether the text can only be a host. ZeroMQ accepts more in an address, such as the interface to connect from.
fn is_host(host: &str) -> bool {
    let is_name = |character: char| character.is_ascii_alphanumeric() || matches!(character, '.' | '-' | '_');
    address_of(host).is_some() || (!host.is_empty() && host.chars().all(is_name))
}

pub(crate) struct AllowedPeers {
    own_host: KvPeer,
    others: Vec<KvPeer>,
}

impl AllowedPeers {
    /// This machine, the host of the engine's own side channel, and `others`.
    pub(crate) fn new(side_channel_host: &str, others: &[KvPeer]) -> Self {
        Self { own_host: KvPeer::Host(side_channel_host.to_ascii_lowercase()), others: others.to_vec() }
    }

    pub(crate) fn contains(&self, host: &str) -> bool {
        let is_local =
            host.eq_ignore_ascii_case("localhost") || address_of(host).is_some_and(|host| host.is_loopback());
        is_host(host)
            && (is_local || self.own_host.contains(host) || self.others.iter().any(|peer| peer.contains(host)))
    }
}

/// Sockets to the side channels of other engines, the least recently used first.
pub(crate) struct PeerSockets {
    transport: Transport,
    sockets: Vec<(String, NoticeSender)>,
}

impl PeerSockets {
    /// Opens no connection yet. `transport` should serve only these sockets, so that sockets that cannot be closed
    /// yet take nothing from the engine.
    pub(crate) fn new(transport: Transport) -> Self {
        Self { transport, sockets: Vec::new() }
    }

    /// Sends a notice to the side channel at `address`, without blocking. If there are too many connections, the
    /// least recently used one is closed.
    pub(crate) fn send(&mut self, address: &str, notice: &str) -> Result<(), LinkError> {
        match self.sockets.iter().position(|(other, _)| other == address) {
            Some(place) => self.sockets[place..].rotate_left(1),
            None => {
                if self.sockets.len() >= MAX_SOCKETS {
                    // ZeroMQ still sends the waiting notices of a closed socket.
                    self.sockets.remove(0);
                }
                self.sockets.push((address.to_owned(), NoticeSender::new(&self.transport)));
            }
        }
        let (_, sender) = self.sockets.last_mut().expect("it was just put there");
        let sent = sender.send(address, notice);
        if sent.is_err() {
            self.sockets.pop();
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_host_a_domain_a_network_or_any() {
        for (text, inside, outside) in [
            ("10.1.2.3", &["10.1.2.3", "::ffff:10.1.2.3"][..], &["10.1.2.4", "10.1.2.3.example"][..]),
            ("prefill-0.Prefill", &["prefill-0.prefill", "PREFILL-0.PREFILL"], &["prefill-1.prefill", "prefill-0"]),
            (
                "*.prefill.svc",
                &["p-0.prefill.svc", "P-0.PREFILL.SVC"],
                &["prefill.svc", ".prefill.svc", "evilprefill.svc"],
            ),
            ("10.1.0.0/16", &["10.1.0.0", "10.1.255.255"], &["10.2.0.0", "a.b", "::1"]),
            ("10.1.2.3/32", &["10.1.2.3"], &["10.1.2.2"]),
            ("0.0.0.0/0", &["1.2.3.4"], &["fd00::1"]),
            ("fd00::/8", &["fd12::1", "[fd12::1]"], &["fe80::1", "10.0.0.1"]),
            ("*", &["anything", "1.2.3.4"], &["eth0;10.0.0.1", "", "a:1/b", "a b"]),
        ] {
            let peer: KvPeer = text.parse().expect(text);
            assert_eq!(peer.to_string(), text.to_ascii_lowercase());
            let allowed = AllowedPeers::new("192.0.2.1", &[peer]);
            inside.iter().for_each(|host| assert!(allowed.contains(host), "{host} is in {text}"));
            outside
                .iter()
                .filter(|host| **host != "::1")
                .for_each(|host| assert!(!allowed.contains(host), "{host} is not in {text}"));
        }
        for text in ["", "10.0.0.0/33", "a/8", "10.0.0.0/", "*prefill", "*.", "tcp://host", "host:5600", "a,b"] {
            assert!(text.parse::<KvPeer>().is_err(), "{text}");
        }
    }

    #[test]
    fn this_machine_and_the_own_side_channel_are_always_allowed() {
        let allowed = AllowedPeers::new("10.0.0.7", &[]);
        for host in ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST", "10.0.0.7"] {
            assert!(allowed.contains(host), "{host}");
        }
        // Short forms of addresses, which resolvers accept, do not bypass the list.
        for host in ["10.0.0.8", "prefill-0", "169.254.169.254", "2852039166", "0xa9fea9fe", "0.0.0.0"] {
            assert!(!allowed.contains(host), "{host}");
        }
    }
}
