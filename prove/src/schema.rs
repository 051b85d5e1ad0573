//! A schema of its own in the Postgres of the user, so that no session of the user is touched.

use std::{net::SocketAddr, str::FromStr as _, time::Duration};

use anyhow::{Context as _, Result};
use sqlx::{
    Connection as _, Executor as _, Row as _,
    postgres::{PgConnectOptions, PgConnection},
};
use tokio::time::timeout;

use crate::{link::Server, preflight::Fact, without_secret};

/// How long a statement may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Schema {
    url: String,
    name: String,
    server: Server,
}

impl Schema {
    /// Creates the schema.
    pub async fn create(url: &str, prefix: &str) -> Result<Self> {
        let options = PgConnectOptions::from_str(url)
            .with_context(|| format!("{} is no address of Postgres", without_secret(url)))?;
        let schema = Self {
            name: prefix.replace('-', "_").to_lowercase(),
            server: match options.get_socket() {
                Some(folder) => {
                    Server::Unix(folder.join(format!(".s.PGSQL.{}", options.get_port())))
                }
                None => Server::Tcp(format!("{}:{}", options.get_host(), options.get_port())),
            },
            url: url.to_owned(),
        };
        let create = format!("CREATE SCHEMA {}", schema.name);
        let database = options.get_database().unwrap_or("DATABASE").to_owned();
        let user = options.get_username().to_owned();
        run(url, &create).await.with_context(|| {
            format!("cannot create a schema; if the right is missing: GRANT CREATE ON DATABASE {database} TO {user}")
        })?;
        Ok(schema)
    }

    pub fn server(&self) -> Server {
        self.server.clone()
    }

    /// Returns the address for nodes that reach the server over a link and use only this schema.
    pub fn url_over(&self, link: SocketAddr) -> String {
        let (scheme, rest) = self
            .url
            .split_once("://")
            .unwrap_or(("postgres", &self.url));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let user = authority
            .rsplit_once('@')
            .map_or(String::new(), |(user, _)| format!("{user}@"));
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let others = query.split('&').filter(|pair| {
            let name = pair.split('=').next().unwrap_or_default();
            !["", "host", "hostaddr", "port", "options"].contains(&name)
        });
        let others: String = others.map(|pair| format!("{pair}&")).collect();
        let options = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("options="));
        let options = options.map_or(String::new(), |options| format!("{options}%20"));
        format!(
            "{scheme}://{user}{link}/{path}?{others}options={options}-c%20search_path%3D{}",
            self.name
        )
    }

    pub async fn remove(self) -> Result<()> {
        let drop = format!("DROP SCHEMA {} CASCADE", self.name);
        run(&self.url, &drop)
            .await
            .with_context(|| format!("cannot remove the schema {}", self.name))
    }
}

async fn connect(url: &str) -> Result<PgConnection> {
    let connecting = timeout(PATIENCE, PgConnection::connect(url)).await;
    let connecting =
        connecting.with_context(|| format!("{} does not answer", without_secret(url)))?;
    connecting.with_context(|| format!("cannot reach {}", without_secret(url)))
}

async fn run(url: &str, statement: &str) -> Result<()> {
    let mut connection = connect(url).await?;
    let statement = sqlx::AssertSqlSafe(statement.to_owned());
    timeout(PATIENCE, connection.execute(statement)).await??;
    connection.close().await?;
    Ok(())
}

/// Returns the settings of the server that decide whether promises hold there.
pub async fn settings(url: &str) -> Result<Vec<Fact>> {
    let mut connection = connect(url).await?;
    let query = "SELECT current_setting('fsync'), current_setting('synchronous_commit'), \
                 current_setting('full_page_writes'), pg_is_in_recovery(), current_setting('server_version')";
    let row = timeout(PATIENCE, connection.fetch_one(query)).await??;
    let is_standby: bool = row.try_get(3)?;
    let version: String = row.try_get(4)?;
    let mut facts = vec![Fact::good("postgres", format!("version {version}"))];
    for (at, name, what) in [
        (0, "fsync", "the loss of power may lose what was accepted"),
        (
            1,
            "synchronous_commit",
            "a crash of the server may lose what was accepted in the last moments",
        ),
        (
            2,
            "full_page_writes",
            "the loss of power may damage the database",
        ),
    ] {
        let value: String = row.try_get(at)?;
        facts.push(match value.as_str() {
            "off" => Fact::note(
                "postgres",
                format!("`{name}` is off: {what}"),
                format!("set `{name} = on`"),
            ),
            _ => Fact::good("postgres", format!("`{name}` is {value}")),
        });
    }
    if is_standby {
        facts.push(Fact::bad(
            "postgres",
            "the server is a standby, which refuses writes",
            "name the primary server",
        ));
    }
    connection.close().await?;
    Ok(facts)
}
