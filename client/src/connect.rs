//! The options of a connection to a cluster: addresses, credentials and TLS.

use std::{fmt, path::PathBuf, time::Duration};

use planck_bus::NatsOptions;
use planck_common::{inbox::InboxPrefix, subject::Prefix};

use super::{Client, ClientError};

/// Options of a connection to a cluster's NATS servers.
///
/// ```no_run
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// use planck_client::ConnectOptions;
///
/// let client = ConnectOptions::new("tls://nats.example.com:4222")
///     .name("nightly-report")
///     .credentials_file("/run/secrets/report.creds")
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ConnectOptions {
    nats: NatsOptions,
    request_timeout: Option<Duration>,
}

/// Formats the options without their secrets.
impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("name", &self.nats.name)
            .field("subject_prefix", &self.nats.prefix)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

impl ConnectOptions {
    /// Creates the options of a plain connection to one URL, or to several separated by commas.
    pub fn new(url: impl Into<String>) -> Self {
        let mut nats = NatsOptions::new(url);
        nats.name = "planck-client".into();
        Self {
            nats,
            request_timeout: None,
        }
    }

    /// Sets the name under which the NATS servers list this connection.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.nats.name = name.into();
        self
    }

    /// Sets the file with the user's JWT and the seed of its key.
    #[must_use]
    pub fn credentials_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.nats.creds = Some(path.into());
        self
    }

    /// Sets the seed of the user's nkey. A seed begins with `SU`.
    #[must_use]
    pub fn nkey_seed(mut self, seed: impl Into<String>) -> Self {
        self.nats.nkey = Some(seed.into());
        self
    }

    /// Requires TLS. Without this setting TLS is used if the URL has the scheme `tls` or the server
    /// asks for it.
    #[must_use]
    pub fn require_tls(mut self) -> Self {
        self.nats.tls.required = true;
        self
    }

    /// Sets a file with root certificates to trust in addition to the system's, and requires TLS.
    #[must_use]
    pub fn root_certificates(mut self, path: impl Into<PathBuf>) -> Self {
        self.nats.tls.ca = Some(path.into());
        self.require_tls()
    }

    /// Sets the files with the client certificate and its key, and requires TLS.
    #[must_use]
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.nats.tls.certificate = Some((certificate.into(), key.into()));
        self.require_tls()
    }

    /// Sets the prefix that the cluster puts before every subject, its `nats.subject_prefix`.
    #[must_use]
    pub fn subject_prefix(mut self, prefix: Prefix) -> Self {
        self.nats.prefix = prefix;
        self
    }

    /// Sets the prefix under which this user may receive replies. Set it if the servers'
    /// permissions do not allow all of `_INBOX`.
    #[must_use]
    pub fn inbox_prefix(mut self, prefix: InboxPrefix) -> Self {
        self.nats.inbox_prefix = prefix;
        self
    }

    /// Sets how long the first connection may take, 5 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.nats.connect_timeout = timeout;
        self
    }

    /// Sets the maximum time for which one attempt of a request waits for a reply, 10 s by default.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = Some(timeout);
        self
    }

    /// Connects with these options.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unreachable`], as for [`Client::connect`], and when a file of these options
    /// cannot be read or the seed is malformed.
    pub async fn connect(self) -> Result<Client, ClientError> {
        let client = Client::connect_with(self.nats).await?;
        Ok(match self.request_timeout {
            Some(timeout) => client.with_request_timeout(timeout),
            None => client,
        })
    }
}
