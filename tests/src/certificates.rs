//! Certificates for tests.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::CertificateDer;
use tempfile::TempDir;

/// A certificate authority, and a folder for the certificates that it signs.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// The files of a certificate.
pub struct Certificate {
    /// The certificate.
    pub certificate: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
}

impl Certificate {
    /// The paths of both files, for options.
    ///
    /// # Panics
    /// The path of the temporary folder is not UTF-8.
    #[must_use]
    pub fn paths(&self) -> [&str; 2] {
        [&self.certificate, &self.key].map(|path| path.to_str().expect("paths of tests are texts"))
    }
}

impl Authority {
    /// An authority with this name and a new key.
    ///
    /// # Panics
    /// There is no temporary folder.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, new_key()).expect("a certificate");
        Self { issuer, folder: tempfile::tempdir().expect("a temporary folder") }
    }

    /// Writes a file beside the certificates.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a temporary folder is writable");
        path
    }

    /// The path of a file that [`Authority::write`] writes.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The authority's own certificate, in a file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.write("authority.pem", &self.pem())
    }

    /// The authority's own certificate, as PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// The authority's own certificate, for rustls.
    #[must_use]
    pub fn der(&self) -> &CertificateDer<'static> {
        self.issuer.der()
    }

    /// Signs a certificate for a host, with a new key, in files whose names begin with `name`.
    ///
    /// # Panics
    /// `host` is neither a name nor an address.
    pub fn sign(&self, host: &str, name: &str) -> Certificate {
        let [certificate, key] = self.signed(host);
        Certificate {
            certificate: self.write(&format!("{name}.pem"), &certificate),
            key: self.write(&format!("{name}-key.pem"), &key),
        }
    }

    /// Like [`Authority::sign`], but writes certificate and key to one file, named after the host.
    ///
    /// # Panics
    /// `host` is neither a name nor an address.
    #[must_use]
    pub fn sign_in_one_file(&self, host: &str) -> PathBuf {
        self.write(&format!("{host}.pem"), &self.signed(host).concat())
    }

    fn signed(&self, host: &str) -> [String; 2] {
        let key = new_key();
        let certificate = params(host).signed_by(&key, &self.issuer).expect("a certificate");
        [certificate.pem(), key.serialize_pem()]
    }
}

/// A self-signed certificate for a host, as `{name}.pem` and `{name}-key.pem` in `folder`.
///
/// # Panics
/// `host` is neither a name nor an address, or the folder is not writable.
pub fn self_signed(folder: &Path, host: &str, name: &str) -> Certificate {
    let key = new_key();
    let certificate = params(host).self_signed(&key).expect("a certificate");
    let write = |file: String, text: String| {
        let path = folder.join(file);
        std::fs::write(&path, text).expect("a folder of tests is writable");
        path
    };
    Certificate {
        certificate: write(format!("{name}.pem"), certificate.pem()),
        key: write(format!("{name}-key.pem"), key.serialize_pem()),
    }
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

fn params(host: &str) -> CertificateParams {
    CertificateParams::new(vec![host.to_owned()]).expect("a name or an address")
}
