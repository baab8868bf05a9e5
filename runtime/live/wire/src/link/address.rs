//! Addresses as users write them. Invalid ones are refused before anything waits for a connection.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::error::LinkError;

/// Maximum length of a socket's path: the system's `sun_path` without its final zero.
const LONGEST_PATH_BYTES: usize = 107;
/// Maximum length of a host name.
const LONGEST_HOST_BYTES: usize = 253;

/// A ZeroMQ address: `tcp://HOST:PORT` or `ipc://PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Address {
    Tcp {
        /// A name or an IP address, without brackets.
        host: String,
        /// `None`: any free port.
        port: Option<u16>,
    },
    Ipc {
        path: String,
    },
}

impl Address {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("ipc://") {
            return if path.is_empty() {
                Err("the path is missing".to_owned())
            } else {
                Ok(Self::Ipc { path: path.to_owned() })
            };
        }
        let Some(place) = text.strip_prefix("tcp://") else {
            return Err("expected tcp://HOST:PORT or ipc://PATH".to_owned());
        };
        let Some((host, port)) = place.rsplit_once(':') else {
            return Err("the port is missing: expected tcp://HOST:PORT".to_owned());
        };
        let port = match port {
            "*" | "0" => None,
            port => match port.parse() {
                Ok(port) => Some(port),
                Err(_) => return Err(format!("the port is `{port}`: expected a number from 1 to 65535")),
            },
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if bare.is_empty() {
            return Err("the host is missing: expected tcp://HOST:PORT".to_owned());
        }
        let is_name = |host: &str| {
            host.len() <= LONGEST_HOST_BYTES
                && host.split('.').all(|label| label.len() <= 63)
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        if bare != "*" && bare.parse::<IpAddr>().is_err() && !is_name(bare) {
            return Err(format!("`{host}` is neither the name of a host nor an IP address"));
        }
        Ok(Self::Tcp { host: bare.to_owned(), port })
    }
}

fn invalid(address: &str, problem: impl Into<String>) -> LinkError {
    LinkError::InvalidAddress { address: address.to_owned(), problem: problem.into() }
}

/// Checks an address to connect to, without connecting.
pub fn check_peer_address(address: &str) -> Result<(), LinkError> {
    match Address::parse(address).map_err(|problem| invalid(address, problem))? {
        Address::Tcp { port: None, .. } => Err(invalid(address, "expected a port from 1 to 65535 to connect to")),
        Address::Tcp { host, .. } if host == "*" => Err(invalid(address, "expected the host to connect to, not `*`")),
        Address::Tcp { .. } => Ok(()),
        Address::Ipc { path } => {
            check_path(address, &path)?;
            match fs::metadata(&path) {
                Ok(found) if !found.file_type().is_socket() => {
                    Err(invalid(address, "there is something else than a socket at this path"))
                }
                _ => Ok(()),
            }
        }
    }
}

/// Checks an address to listen at.
pub fn check_own_address(address: &str) -> Result<(), LinkError> {
    match Address::parse(address).map_err(|problem| invalid(address, problem))? {
        Address::Tcp { .. } => Ok(()),
        Address::Ipc { path } => check_path(address, &path),
    }
}

fn check_path(address: &str, path: &str) -> Result<(), LinkError> {
    if path.len() > LONGEST_PATH_BYTES {
        let problem = format!("the path has {} bytes, but a socket's may have {LONGEST_PATH_BYTES}", path.len());
        return Err(invalid(address, problem));
    }
    // Linux's abstract names are not files.
    if path.starts_with('@') {
        return Ok(());
    }
    match Path::new(path).parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(invalid(address, format!("expected a folder {}", folder.display())))
        }
        _ => Ok(()),
    }
}

/// The reason why the host name has no address now; `None` if it has one. It may get one later: cluster DNS knows a pod
/// only once the pod is ready. The call asks the resolver, which may take seconds.
#[must_use]
pub fn unresolved_host(address: &str) -> Option<String> {
    match Address::parse(address) {
        Ok(Address::Tcp { host, port }) if host != "*" => {
            let error = (host.as_str(), port.unwrap_or(0)).to_socket_addrs().err()?;
            // The first part of the text says only that a lookup failed.
            let error = error.to_string();
            let reason = error.rsplit(": ").next().unwrap_or_default();
            Some(format!("the host `{host}` does not resolve ({reason})"))
        }
        _ => None,
    }
}

/// Whether a connection to `peer` would reach a listener at `own`. Both are on this machine.
#[must_use]
pub fn is_same_place(own: &str, peer: &str) -> bool {
    if own == peer {
        return true;
    }
    let (Ok(own), Ok(peer)) = (Address::parse(own), Address::parse(peer)) else { return false };
    match (own, peer) {
        (Address::Ipc { path: own }, Address::Ipc { path: peer }) => {
            let whole = |path: &str| {
                let path = Path::new(path);
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                (fs::canonicalize(folder.unwrap_or(Path::new("."))).ok(), path.file_name().map(ToOwned::to_owned))
            };
            own == peer || whole(&own) == whole(&peer)
        }
        (Address::Tcp { host: own, port: Some(own_port) }, Address::Tcp { host: peer, port: Some(peer_port) }) => {
            own_port == peer_port && do_hosts_meet(&own, &peer)
        }
        _ => false,
    }
}

fn do_hosts_meet(own: &str, peer: &str) -> bool {
    let ips = |host: &str| -> Vec<IpAddr> {
        let host = if host == "*" { "0.0.0.0" } else { host };
        (host, 0).to_socket_addrs().map(|found| found.map(|found| found.ip()).collect()).unwrap_or_default()
    };
    // Only addresses of this machine can be listened at.
    let is_ours = |ip: &IpAddr| ip.is_loopback() || TcpListener::bind((*ip, 0)).is_ok();
    let own = ips(own);
    let listens_everywhere = own.iter().any(IpAddr::is_unspecified);
    ips(peer).into_iter().any(|ip| {
        let ip = if ip.is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { ip };
        own.contains(&ip) || (listens_everywhere && is_ours(&ip))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_never_be_reached_is_reported() {
        let folder = tempfile::tempdir().expect("there is room");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("there is room");
        let long = format!("ipc:///{}", "a".repeat(200));
        let no_folder = format!("ipc://{}/no/such", folder.path().display());
        for (address, wanted) in [
            ("nonsense", "expected tcp://HOST:PORT or ipc://PATH"),
            ("http://a:1", "expected tcp://HOST:PORT or ipc://PATH"),
            ("tcp://127.0.0.1", "the port is missing"),
            ("tcp://:1", "the host is missing"),
            ("tcp://127.0.0.1:99999", "the port is `99999`"),
            ("tcp://127.0.0.1:0", "expected a port"),
            ("tcp://127.0.0.1:*", "expected a port"),
            ("tcp://*:29550", "not `*`"),
            ("tcp://two words:29550", "`two words` is neither"),
            ("ipc://", "the path is missing"),
            (&long, "the path has 201 bytes"),
            (&no_folder, "expected a folder"),
            (&format!("ipc://{}", file.display()), "something else than a socket"),
        ] {
            let error = check_peer_address(address).expect_err(address).to_string();
            assert!(error.contains(wanted) && error.contains(address), "{address}: {error}");
        }
        let there_later = format!("ipc://{}/socket", folder.path().display());
        for address in
            ["tcp://127.0.0.1:29550", "tcp://[::1]:1", "tcp://no-such.invalid:1", "ipc://@name", &there_later]
        {
            check_peer_address(address).expect(address);
            check_own_address(address).expect(address);
        }
        check_own_address("tcp://*:*").expect("any free port");
    }

    #[test]
    fn a_host_without_an_address_is_reported() {
        let reason = unresolved_host("tcp://no-such-host.invalid:1").expect("it is reserved for this");
        assert!(reason.contains("`no-such-host.invalid` does not resolve ("), "{reason}");
        for address in ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://*:1", "ipc:///a", "nonsense"] {
            assert_eq!(unresolved_host(address), None, "{address}");
        }
    }

    #[test]
    fn one_place_may_have_several_names() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().display();
        for (own, peer, is_same) in [
            ("tcp://127.0.0.1:5", "tcp://127.0.0.1:5", true),
            ("tcp://*:5", "tcp://127.0.0.1:5", true),
            ("tcp://0.0.0.0:5", "tcp://localhost:5", true),
            ("tcp://127.0.0.1:5", "tcp://localhost:5", true),
            ("tcp://127.0.0.1:5", "tcp://127.0.0.1:6", false),
            ("tcp://127.0.0.1:5", "tcp://127.0.0.2:5", false),
            // A documentation address, which no machine has.
            ("tcp://*:5", "tcp://192.0.2.1:5", false),
            ("tcp://127.0.0.1:*", "tcp://127.0.0.1:6", false),
            (&format!("ipc://{path}/a"), &format!("ipc://{path}/../{}/a", file_name(folder.path())), true),
            (&format!("ipc://{path}/a"), &format!("ipc://{path}/b"), false),
        ] {
            assert_eq!(is_same_place(own, peer), is_same, "{own} {peer}");
        }
    }

    fn file_name(path: &Path) -> &str {
        path.file_name().and_then(|name| name.to_str()).expect("a name in text")
    }
}
