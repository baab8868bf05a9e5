//! HTTPS with real certificates: they are reread when they change, clients have certificates, and invalid files are
//! refused at the start.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned};
use vcr_tests::{Authority, Certificate, Folder, Serve, wait_until};

/// Configuration of a client that trusts an authority.
fn client(authority: &Authority, own: Option<&Certificate>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).expect("a certificate");
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

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are texts")
}

/// Head of the answer to a request, and the server's certificate.
fn get(address: &str, client: &Arc<ClientConfig>) -> Result<(String, CertificateDer<'static>), std::io::Error> {
    get_by("localhost", address, client)
}

/// Like [`get`], but the client expects this name of the server.
fn get_by(
    name: &'static str,
    address: &str,
    client: &Arc<ClientConfig>,
) -> Result<(String, CertificateDer<'static>), std::io::Error> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let name = ServerName::try_from(name).expect("a name");
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
    let authority = Authority::new("one");
    let files = authority.sign("localhost", "server");
    let serve = Serve::start_tls(&["--ssl-certfile", text(&files.certificate), "--ssl-keyfile", text(&files.key)]);
    let trusting = client(&authority, None);
    let of_server = || get(serve.address(), &trusting).expect("it is served");
    let (head, first) = of_server();
    assert_eq!(head, "HTTP/1.1 200 OK");
    assert!(
        get(serve.address(), &client(&Authority::new("another"), None)).is_err(),
        "the client checks the certificate"
    );
    authority.sign("localhost", "server");
    let second = of_server().1;
    assert_ne!(second, first);
    // An invalid certificate is reported, and the previous one stays in use.
    std::fs::write(&files.certificate, "no certificate").expect("a temporary folder is writable");
    assert_eq!(of_server().1, second);
    wait_until("the log tells it", || serve.log().contains("the changed certificate is not used"));
    authority.sign("localhost", "server");
    assert_ne!(of_server().1, second);
}

#[test]
fn one_file_may_hold_certificate_and_key() {
    let authority = Authority::new("one");
    let files = authority.sign("localhost", "server");
    let both = [&files.certificate, &files.key].map(|path| std::fs::read_to_string(path).expect("it was written"));
    let both = authority.write("both.pem", &both.concat());
    let serve = Serve::start_tls(&["--ssl-certfile", text(&both)]);
    assert_eq!(get(serve.address(), &client(&authority, None)).expect("it is served").0, "HTTP/1.1 200 OK");
}

#[test]
fn certificates_of_clients_are_asked_for_and_checked() {
    let (authority, other) = (Authority::new("one"), Authority::new("other"));
    let server = authority.sign("localhost", "server");
    let (known, unknown) = (authority.sign("localhost", "client"), other.sign("localhost", "client"));
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
        let is_served = |own: Option<&Certificate>| get(serve.address(), &client(&authority, own)).is_ok();
        assert_eq!(is_served(None), anonymous_is_served, "--ssl-cert-reqs {required}");
        assert!(is_served(Some(&known)), "--ssl-cert-reqs {required}");
        assert_eq!(is_served(Some(&unknown)), required == "0", "--ssl-cert-reqs {required}");
    }
}

/// A verifier that accepts any certificate.
#[derive(Debug)]
struct Trusting(Arc<CryptoProvider>);

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn trusting() -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.expect("versions are known").dangerous();
    Arc::new(builder.with_custom_certificate_verifier(Arc::new(Trusting(provider))).with_no_client_auth())
}

/// A client that trusts only the self-signed certificate reaches the server by each of its names.
#[test]
fn a_certificate_of_its_own_is_for_the_names_of_the_server() {
    let serve = Serve::start_tls(&["--self-signed-certs", "--host", "127.0.0.1"]);
    let (head, own) = get(serve.address(), &trusting()).expect("it is served");
    assert_eq!(head, "HTTP/1.1 200 OK");
    let mut roots = RootCertStore::empty();
    roots.add(own.clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.expect("versions are known").with_root_certificates(roots);
    let client = Arc::new(builder.with_no_client_auth());
    let is_served = |name| get_by(name, serve.address(), &client).is_ok();
    assert_eq!(["localhost", "127.0.0.1", "example.org"].map(is_served), [true, true, false]);
    let other = Serve::start_tls(&["--self-signed-certs"]);
    assert_ne!(get(other.address(), &trusting()).expect("it is served").1, own, "each server has a key of its own");
}

#[test]
fn files_that_are_no_good_end_it_at_start() {
    let authority = Authority::new("one");
    let (one, other) = (authority.sign("localhost", "one"), authority.sign("localhost", "other"));
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
        (vec!["--self-signed-certs", "--ssl-certfile", certificate], "cannot be used with"),
        (vec!["--ssl-cert-reqs", "2"], "clients have no certificates without TLS"),
    ] {
        let stderr = folder.vcr(&[&["serve", "--port", "0"], args.as_slice()].concat()).ended(2).stderr;
        assert!(stderr.contains(said), "{args:?}: {stderr}");
    }
}
