//! A certificate authority for one test, with a server's and a client's certificate in files.

use std::fs;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;

pub struct Certificates(TempDir);

impl Certificates {
    pub fn new() -> Result<Self> {
        let folder = TempDir::new()?;
        let mut authority = CertificateParams::new([])?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        fs::write(folder.path().join("ca.pem"), authority.pem())?;
        for (name, purpose) in [
            ("server", ExtendedKeyUsagePurpose::ServerAuth),
            ("client", ExtendedKeyUsagePurpose::ClientAuth),
        ] {
            let mut parameters = CertificateParams::new(["127.0.0.1".to_owned()])?;
            parameters.extended_key_usages = vec![purpose];
            // OpenSSL treats a certificate whose subject equals its issuer as self-signed, so each
            // certificate gets a subject of its own.
            parameters.distinguished_name.push(DnType::CommonName, name);
            let key = KeyPair::generate()?;
            let certificate = parameters.signed_by(&key, &authority)?;
            fs::write(folder.path().join(format!("{name}.pem")), certificate.pem())?;
            fs::write(
                folder.path().join(format!("{name}.key")),
                key.serialize_pem(),
            )?;
        }
        Ok(Self(folder))
    }

    pub fn file(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Returns the configuration with which a server shows its certificate and requires one from
    /// clients.
    pub fn config(&self) -> String {
        let [certificate, key, authority] =
            ["server.pem", "server.key", "ca.pem"].map(|name| self.file(name));
        format!(
            "tls {{ cert_file: {certificate:?}, key_file: {key:?}, ca_file: {authority:?}, verify: true }}"
        )
    }
}
