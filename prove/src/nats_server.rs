//! The NATS servers that a proof or the demo starts.

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tokio::time::{Instant, sleep};

use crate::processes::{Launch, Process};

/// How long a server may take to start.
const STARTS: Duration = Duration::from_secs(30);

/// One server. It stores what it keeps in a folder of its own.
pub struct NatsServer {
    program: PathBuf,
    launch: Launch,
    folder: PathBuf,
    pub name: String,
    port: u16,
    settings: String,
    process: Option<Process>,
}

impl NatsServer {
    /// Starts so many servers that form one NATS, and waits until they accept connections. Their settings
    /// are those of `deploy/nats.conf`, without monitoring.
    pub async fn start(launch: Launch, servers: usize, folder: &Path) -> Result<Vec<Self>> {
        let program = find_program().context(
            "no nats-server (2.12 or later): install it and put it on the PATH, set NATS_SERVER, or run `make tools` in \
             the project's folder",
        )?;
        // The same ports are needed again after a server has ended.
        let held = std::iter::repeat_with(hold_port).take(2 * servers);
        let held = held.collect::<Result<Vec<_>>>()?;
        let ports = held.iter().map(|held| Ok(held.local_addr()?.port()));
        let ports = ports.collect::<Result<Vec<u16>>>()?;
        drop(held);
        let (clients, routes) = ports.split_at(servers);
        let all = routes
            .iter()
            .map(|port| format!("\"nats://127.0.0.1:{port}\""));
        let all = all.collect::<Vec<_>>().join(", ");
        let mut started = Vec::new();
        for (port, route) in clients.iter().zip(routes) {
            let name = format!("nats-{}", started.len() + 1);
            let data = folder.join(&name);
            let mut settings = format!(
                "server_name: {name}\nlisten: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {data:?} }}\nping_interval: \"2s\"\n\
                 ping_max: 2\nwrite_deadline: \"3s\"\nno_fast_producer_stall: true\nmax_payload: 8MB\n"
            );
            if servers > 1 {
                // A node that learnt the addresses of the servers would pass by its links.
                settings += &format!(
                    "cluster {{ name: prove, listen: \"127.0.0.1:{route}\", routes: [{all}], no_advertise: true }}\n"
                );
            }
            let mut server = Self {
                program: program.clone(),
                launch,
                folder: folder.to_owned(),
                name,
                port: *port,
                settings,
                process: None,
            };
            server.restart().await?;
            started.push(server);
        }
        Ok(started)
    }

    /// Returns `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts the server, and waits until it accepts connections.
    pub async fn restart(&mut self) -> Result<()> {
        let config = self.folder.join(&self.name).with_extension("conf");
        fs::write(&config, &self.settings)?;
        let arguments = ["-c".into(), config.into_os_string()];
        let program = self.program.as_os_str();
        let mut process = Process::start(
            &self.name,
            self.launch,
            program,
            &arguments,
            &[],
            &self.folder,
        )?;
        let until = Instant::now() + STARTS;
        while tokio::net::TcpStream::connect(("127.0.0.1", self.port))
            .await
            .is_err()
        {
            process.check()?;
            if Instant::now() > until {
                bail!("nats-server does not listen:\n{}", process.last_lines());
            }
            sleep(Duration::from_millis(20)).await;
        }
        self.process = Some(process);
        Ok(())
    }

    pub async fn stop(&mut self) {
        if let Some(process) = self.process.take() {
            process.leave().await;
        }
    }

    pub async fn kill(&mut self) -> Result<()> {
        match self.process.take() {
            Some(mut process) => process.kill().await,
            None => Ok(()),
        }
    }

    /// Removes what the server has stored. The server must have ended.
    pub fn wipe(&self) -> Result<()> {
        let data = self.folder.join(&self.name);
        fs::remove_dir_all(&data).with_context(|| format!("cannot remove {}", data.display()))
    }
}

/// Finds the program that `NATS_SERVER` names, or else one on the PATH, or else the one that `make tools`
/// unpacked in this directory or a parent.
fn find_program() -> Option<PathBuf> {
    let named = env::var_os("NATS_SERVER").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|folder| folder.join("nats-server"));
    let here = env::current_dir().unwrap_or_default();
    let unpacked = here
        .ancestors()
        .map(|folder| folder.join(".tools/bin/nats-server"));
    let mut all = named.into_iter().chain(on_path).chain(unpacked);
    std::path::absolute(all.find(|file| file.is_file())?).ok()
}

/// Holds a port of this machine until the listener is dropped. It is below those that the kernel chooses for
/// outgoing connections, because one of them could otherwise take the port of a server that is away.
fn hold_port() -> Result<TcpListener> {
    let ports = std::iter::repeat_with(|| fastrand::u16(10_000..32_000)).take(100);
    let mut held = ports.filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    held.next().context("no port of this machine is free")
}
