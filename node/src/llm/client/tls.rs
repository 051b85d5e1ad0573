//! TLS for all clients of the process. The system's root certificates are read when the first server shows its certificate:
//! reading them takes milliseconds, and where models are local there may be none.

use std::sync::{Arc, OnceLock};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use rustls_platform_verifier::Verifier;

/// The configuration, one for the process.
pub fn config() -> Result<ClientConfig, Error> {
    static CONFIG: OnceLock<Result<ClientConfig, Error>> = OnceLock::new();
    CONFIG.get_or_init(build).clone()
}

fn build() -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(SystemRoots { provider: Arc::clone(&provider), verifier: OnceLock::new() });
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Trusts what the system trusts.
#[derive(Debug)]
struct SystemRoots {
    provider: Arc<CryptoProvider>,
    verifier: OnceLock<Option<Verifier>>,
}

impl SystemRoots {
    fn verifier(&self) -> Result<&Verifier, Error> {
        let verifier = self.verifier.get_or_init(|| Verifier::new(Arc::clone(&self.provider)).inspect_err(told).ok());
        verifier.as_ref().ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))
    }
}

fn told(error: &Error) {
    tracing::error!(%error, "cannot load the system's root certificates; no TLS server can be trusted");
}

impl ServerCertVerifier for SystemRoots {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verifier()?.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
