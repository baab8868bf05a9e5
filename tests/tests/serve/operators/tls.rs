//! HTTPS with real certificates: read again when they change, certificates of clients,
//! and files that are refused at start.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;
use vcr_tests::{Folder, Serve, wait_until};

/// An authority, and a folder for the files of certificates that it signs.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// The files of a certificate.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate");
        Self { issuer, folder: tempfile::tempdir().expect("a temporary folder") }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("a temporary folder is writable");
        path
    }

    /// Its own certificate.
    fn file(&self) -> PathBuf {
        self.write("authority.pem", &self.issuer.pem())
    }

    /// Signs a certificate for `localhost` with a new key, in files of this name.
    fn sign(&self, name: &str) -> Files {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Files {
            certificate: self.write(&format!("{name}.pem"), &certificate.pem()),
            key: self.write(&format!("{name}-key.pem"), &key.serialize_pem()),
        }
    }

    /// A client that trusts it.
    fn client(&self, own: Option<&Files>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("versions are known").with_root_certificates(roots);
        Arc::new(match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let chain = vec![CertificateDer::from_pem_file(&own.certificate).expect("a certificate")];
                let key = PrivateKeyDer::from_pem_file(&own.key).expect("a key");
                builder.with_client_auth_cert(chain, key).expect("they fit together")
            }
        })
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are texts")
}

/// The head of the answer to a request, and the certificate of the server.
fn get(address: &str, client: &Arc<ClientConfig>) -> Result<(String, CertificateDer<'static>), std::io::Error> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::clone(client), name).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut head = [0; 15];
    stream.read_exact(&mut head)?;
    let certificates = stream.conn.peer_certificates().and_then(|all| all.first()).cloned();
    Ok((String::from_utf8_lossy(&head).into_owned(), certificates.expect("the server has a certificate")))
}

#[test]
fn a_certificate_is_read_again_when_it_changes() {
    let authority = Authority::new();
    let files = authority.sign("server");
    let serve = Serve::start_tls(&["--ssl-certfile", text(&files.certificate), "--ssl-keyfile", text(&files.key)]);
    let client = authority.client(None);
    let of_server = || get(serve.address(), &client).expect("it is served");
    let (head, first) = of_server();
    assert_eq!(head, "HTTP/1.1 200 OK");
    assert!(get(serve.address(), &Authority::new().client(None)).is_err(), "the client checks the certificate");
    authority.sign("server");
    let second = of_server().1;
    assert_ne!(second, first);
    // What is no certificate is told, and the one before stays.
    std::fs::write(&files.certificate, "no certificate").expect("a temporary folder is writable");
    assert_eq!(of_server().1, second);
    wait_until("the log tells it", || serve.log().contains("the changed certificate is not used"));
    authority.sign("server");
    assert_ne!(of_server().1, second);
}

#[test]
fn one_file_may_hold_certificate_and_key() {
    let authority = Authority::new();
    let files = authority.sign("server");
    let both = [&files.certificate, &files.key].map(|path| std::fs::read_to_string(path).expect("it was written"));
    let both = authority.write("both.pem", &both.concat());
    let serve = Serve::start_tls(&["--ssl-certfile", text(&both)]);
    assert_eq!(get(serve.address(), &authority.client(None)).expect("it is served").0, "HTTP/1.1 200 OK");
}

#[test]
fn certificates_of_clients_are_asked_for_and_checked() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = authority.sign("server");
    let (known, unknown) = (authority.sign("client"), other.sign("client"));
    let authorities = authority.file();
    for (required, anonymous_is_served) in [("0", true), ("1", true), ("2", false)] {
        let serve = Serve::start_tls(&[
            "--ssl-certfile",
            text(&server.certificate),
            "--ssl-keyfile",
            text(&server.key),
            "--ssl-ca-certs",
            text(&authorities),
            "--ssl-cert-reqs",
            required,
        ]);
        let is_served = |own: Option<&Files>| get(serve.address(), &authority.client(own)).is_ok();
        assert_eq!(is_served(None), anonymous_is_served, "--ssl-cert-reqs {required}");
        assert!(is_served(Some(&known)), "--ssl-cert-reqs {required}");
        assert_eq!(is_served(Some(&unknown)), required == "0", "--ssl-cert-reqs {required}");
    }
}

#[test]
fn files_that_are_no_good_end_it_at_start() {
    let authority = Authority::new();
    let (one, other) = (authority.sign("one"), authority.sign("other"));
    let (certificate, key) = (text(&one.certificate), text(&one.key));
    let junk = authority.write("junk.pem", "no certificate");
    let folder = Folder::new();
    for (args, said) in [
        (vec!["--ssl-certfile", "missing.pem"], "invalid certificate `missing.pem`: expected a PEM file"),
        (vec!["--ssl-certfile", text(&junk), "--ssl-keyfile", key], "there is no certificate in it"),
        (vec!["--ssl-certfile", certificate, "--ssl-keyfile", text(&junk)], "invalid TLS key"),
        (vec!["--ssl-certfile", certificate, "--ssl-keyfile", text(&other.key)], "invalid certificate"),
        (vec!["--ssl-certfile", certificate, "--ssl-keyfile", key, "--ssl-cert-reqs", "2"], "give --ssl-ca-certs"),
        (
            vec![
                "--ssl-certfile",
                certificate,
                "--ssl-keyfile",
                key,
                "--ssl-cert-reqs",
                "1",
                "--ssl-ca-certs",
                text(&junk),
            ],
            "invalid CA certificate",
        ),
        (vec!["--ssl-certfile", certificate, "--ssl-cert-reqs", "3"], "3"),
        (vec!["--ssl-keyfile", key], "--ssl-certfile"),
    ] {
        let stderr = folder.vcr(&[&["serve", "--port", "0"], args.as_slice()].concat()).ended(2).stderr;
        assert!(stderr.contains(said), "{args:?}: {stderr}");
    }
}
