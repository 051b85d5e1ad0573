//! TLS for all clients that call models. The system's root certificates are read only when a server
//! presents its certificate for the first time, because reading them takes milliseconds and nodes
//! that use only local models never need them.

use std::{
    fs,
    path::Path,
    sync::{Arc, OnceLock},
};

use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use rustls_platform_verifier::Verifier;

use super::HttpClientError;

/// Returns the TLS configuration that trusts the system's roots. The first call builds the
/// configuration for the whole process.
pub fn config() -> Result<ClientConfig, Error> {
    static CONFIG: OnceLock<ClientConfig> = OnceLock::new();
    kept(&CONFIG, || build(Vec::new())).cloned()
}

/// Returns the value of a cell, and makes it if there is none. A failure is not kept, so the next
/// call tries again: the files that it needs may be there by then.
fn kept<T>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T, Error>) -> Result<&T, Error> {
    match cell.get() {
        Some(value) => Ok(value),
        None => make().map(|made| cell.get_or_init(|| made)),
    }
}

/// Returns a TLS configuration that also trusts the authorities of a PEM file.
pub fn config_with(path: &Path) -> Result<ClientConfig, HttpClientError> {
    let wrong = |what: String| HttpClientError::Authorities {
        path: path.to_owned(),
        what,
    };
    let text = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let authorities: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let authorities = authorities.map_err(|error| wrong(error.to_string()))?;
    if authorities.is_empty() {
        return Err(wrong("it holds no certificate in PEM".to_owned()));
    }
    Ok(build(authorities)?)
}

fn build(authorities: Vec<CertificateDer<'static>>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(SystemRoots {
        provider: Arc::clone(&provider),
        authorities,
        verifier: OnceLock::new(),
    });
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

/// Verifies certificates against the system's roots and the configured certificate authorities.
#[derive(Debug)]
struct SystemRoots {
    provider: Arc<CryptoProvider>,
    authorities: Vec<CertificateDer<'static>>,
    verifier: OnceLock<Verifier>,
}

impl SystemRoots {
    fn verifier(&self) -> Result<&Verifier, Error> {
        let make =
            || Verifier::new_with_extra_roots(self.authorities.clone(), Arc::clone(&self.provider));
        kept(&self.verifier, make).map_err(|error| {
            Error::General(format!(
                "cannot load the system's root certificates: {error}"
            ))
        })
    }
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
        self.verifier()?.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_success_is_kept() {
        let cell = OnceLock::new();
        let fails = || Err(Error::General("no file".to_owned()));
        assert!(kept(&cell, fails).is_err());
        assert_eq!(kept(&cell, || Ok(1)), Ok(&1), "it is tried again");
        assert_eq!(kept(&cell, fails), Ok(&1));
    }
}
