//! TLS options of KV transfers over TCP.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use vcr_transfer::tcp::TcpTls;

use super::unusable::Unusable;

#[derive(Debug, Args)]
#[command(next_help_heading = "Disaggregated prefill and decode")]
pub(crate) struct TransferTlsArgs {
    /// Encrypt KV transfers over TCP, with this certificate of the engine (PEM).
    #[arg(long, value_name = "FILE", requires = "kv_transfer_tls_ca")]
    kv_transfer_tls_cert: Option<PathBuf>,

    /// Key of the certificate (PEM) [default: in --kv-transfer-tls-cert].
    #[arg(long, value_name = "FILE", requires = "kv_transfer_tls_cert")]
    kv_transfer_tls_key: Option<PathBuf>,

    /// Certificate authorities of the peers (PEM).
    #[arg(long, value_name = "FILE", requires = "kv_transfer_tls_cert")]
    kv_transfer_tls_ca: Option<PathBuf>,

    /// Also require a certificate from peers that connect.
    #[arg(long, requires = "kv_transfer_tls_cert")]
    kv_transfer_tls_mutual: bool,
}

impl TransferTlsArgs {
    pub(crate) fn is_given(&self) -> bool {
        self.kv_transfer_tls_cert.is_some()
    }

    /// The options as arguments for another process.
    pub(crate) fn to_arguments(&self) -> Vec<OsString> {
        let files = [
            ("--kv-transfer-tls-cert", &self.kv_transfer_tls_cert),
            ("--kv-transfer-tls-key", &self.kv_transfer_tls_key),
            ("--kv-transfer-tls-ca", &self.kv_transfer_tls_ca),
        ];
        let given = files.into_iter().filter_map(|(option, file)| Some((option, file.as_ref()?)));
        let mut arguments: Vec<OsString> =
            given.flat_map(|(option, file)| [option.into(), file.clone().into_os_string()]).collect();
        arguments.extend(self.kv_transfer_tls_mutual.then(|| "--kv-transfer-tls-mutual".into()));
        arguments
    }
}

#[cfg(feature = "serve")]
impl TransferTlsArgs {
    /// Reads the files, if TLS is enabled.
    pub(crate) fn tls(&self) -> Result<Option<TcpTls>, Unusable> {
        use vcr_transfer::tcp::TlsFiles;
        let (Some(certificate), Some(authorities)) = (&self.kv_transfer_tls_cert, &self.kv_transfer_tls_ca) else {
            return Ok(None);
        };
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: self.kv_transfer_tls_key.clone(),
            authorities: authorities.clone(),
            checks_clients: self.kv_transfer_tls_mutual,
        };
        let unusable = |error: vcr_transfer::tcp::TlsError| Unusable {
            message: error.to_string(),
            hint: Some("see --kv-transfer-tls-cert, --kv-transfer-tls-key and --kv-transfer-tls-ca".to_owned()),
        };
        TcpTls::new(&files).map(Some).map_err(unusable)
    }
}

#[cfg(not(feature = "serve"))]
impl TransferTlsArgs {
    /// Fails with the name of the missing feature, if TLS is enabled.
    pub(crate) fn tls(&self) -> Result<Option<TcpTls>, Unusable> {
        if !self.is_given() {
            return Ok(None);
        }
        let (message, hint) = crate::absent::message("--kv-transfer-tls-cert", "serve");
        Err(Unusable { message, hint: Some(hint.to_owned()) })
    }
}
