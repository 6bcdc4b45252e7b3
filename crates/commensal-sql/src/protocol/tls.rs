//! Encryption of connections with TLS 1.2 or 1.3. The certificate and the key are PEM files, which can be reloaded
//! while connections are open.

use super::socket::Socket;
use arc_swap::ArcSwap;
use commensal_host::{Host, HostError, LinuxHost};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, InconsistentKeys, ServerConfig};
use tokio_rustls::server::TlsStream;

/// The reason why TLS cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read the {what}: give a PEM file that this user may read with {option}")]
    Unreadable {
        /// `certificate` or `key`.
        what: &'static str,
        /// The option that names the file.
        option: &'static str,
        /// The file and the error.
        source: HostError,
    },
    /// The certificate file contains no certificate.
    #[error("there is no certificate in {}: --tls-cert takes a PEM file, the server's own certificate first", .0.display())]
    NoCertificate(PathBuf),
    /// The key file contains no key.
    #[error(
        "there is no private key in {}: --tls-key takes a PEM file whose key has no passphrase",
        .0.display()
    )]
    NoKey(PathBuf),
    /// The key does not belong to the certificate.
    #[error(
        "the key in {} does not belong to the first certificate in {}: give a certificate and its own key",
        .key.display(), .certificate.display()
    )]
    NoMatch {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the key.
        key: PathBuf,
    },
    /// The TLS library rejects the certificate or the key.
    #[error(
        "the certificate in {} with the key in {} cannot be used: RSA keys of at least 2048 bits, ECDSA and Ed25519 \
         are supported",
        .certificate.display(), .key.display()
    )]
    Refused {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the key.
        key: PathBuf,
        /// The library's error.
        source: rustls::Error,
    },
}

/// A certificate and its key.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    config: ArcSwap<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads a chain of certificates, and the key of its first certificate.
    ///
    /// # Errors
    /// A file is missing or has invalid content, or the key does not belong to the certificate.
    pub fn open(certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
        let config = ArcSwap::from(read(certificate, key)?);
        Ok(Tls { certificate: certificate.to_owned(), key: key.to_owned(), config })
    }

    /// Reloads both files for future connections.
    ///
    /// # Errors
    /// The errors of [`Tls::open`]; the previous certificate and key then stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.config.store(read(&self.certificate, &self.key)?);
        Ok(())
    }

    /// Performs the server's side of a handshake.
    ///
    /// # Errors
    /// The client and the server have no common parameters, or the client disconnects.
    pub async fn accept(&self, socket: Socket) -> io::Result<TlsStream<Socket>> {
        TlsAcceptor::from(self.config.load_full()).accept(socket).await
    }
}

/// Returns the version and the cipher suite of a connection, by the names that MySQL gives them.
#[must_use]
pub fn names(stream: &TlsStream<Socket>) -> (String, String) {
    let session = stream.get_ref().1;
    let version = session.protocol_version().and_then(|version| version.as_str().map(str::to_owned));
    let version = version.unwrap_or_default().replace("TLSv1_", "TLSv1.");
    let suite = session.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
    // OpenSSL's names, such as ECDHE-RSA-AES256-GCM-SHA384, have no words in between.
    let suite = suite.unwrap_or_default().replace("TLS13_", "TLS_");
    match suite.strip_prefix("TLS_ECDHE_") {
        Some(rest) => (
            version,
            format!("ECDHE-{}", rest.replace("_WITH_", "-").replace("AES_", "AES").replace('_', "-")),
        ),
        None => (version, suite),
    }
}

fn text(path: &Path, what: &'static str, option: &'static str) -> Result<String, TlsError> {
    LinuxHost::new().read_file(path).map_err(|source| TlsError::Unreadable { what, option, source })
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = text(certificate, "certificate", "--tls-cert")?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
    let Some(chain) = chain.ok().filter(|chain| !chain.is_empty()) else {
        return Err(TlsError::NoCertificate(certificate.to_owned()));
    };
    let private = text(key, "key", "--tls-key")?;
    let Ok(private) = PrivateKeyDer::from_pem_slice(private.as_bytes()) else {
        return Err(TlsError::NoKey(key.to_owned()));
    };
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
    let (certificate, key) = (certificate.to_owned(), key.to_owned());
    match config {
        Ok(config) => Ok(Arc::new(config)),
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err(TlsError::NoMatch { certificate, key })
        }
        Err(source) => Err(TlsError::Refused { certificate, key, source }),
    }
}
