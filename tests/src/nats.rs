//! A private nats-server with its own port and folder. The server is killed when the test process
//! ends, however it ends.

mod cluster;

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    ops::Range,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

pub use cluster::NatsCluster;

use crate::{
    process::{freeze, is_alive},
    run,
};

/// How long the server may take to start or stop.
const PATIENCE: Duration = Duration::from_secs(10);

/// The ports of the servers. They are below the ports that the kernel chooses for outgoing
/// connections, because an outgoing connection could otherwise take the port of a stopped server.
const PORTS: Range<u16> = 10_000..32_000;

/// The number of parts of the range, more than tests that run at the same time.
const PARTS: u16 = 64;

/// A shell script that runs the server as a child, and kills it when the script's standard input
/// closes. The kernel closes that input however the test process dies.
const GUARD: &str =
    r#""$@" >"$LOG" 2>&1 </dev/null & echo $!; cat >/dev/null; kill -9 $! 2>/dev/null; wait"#;

/// A server with JetStream. Its configuration is an existing file, or has the time-outs and limits
/// of `deploy/nats.conf` and the lines that a test adds. Dropping the value kills the server.
pub struct NatsServer {
    folder: TempDir,
    port: u16,
    monitor_port: u16,
    name: String,
    config: String,
    has_jetstream: bool,
    given: Option<Given>,
    running: Option<Running>,
}

/// A configuration file that is used unchanged, and the environment variables that it reads.
struct Given {
    file: PathBuf,
    environment: Vec<(String, String)>,
}

struct Running {
    guard: Child,
    pid: Pid,
}

impl NatsServer {
    /// Starts a server without additional configuration.
    pub fn start() -> Result<Self> {
        Self::start_with("")
    }

    /// Starts a server with additional lines of configuration, such as users or limits.
    pub fn start_with(config: &str) -> Result<Self> {
        Self::start_as("test", config)
    }

    /// Starts a server with an existing configuration file, of which only the ports are replaced.
    /// The server gets the variables in its environment, and the folder for JetStream in
    /// `NATS_STORE_DIR`.
    pub fn start_from(file: &Path, environment: &[(String, String)]) -> Result<Self> {
        let mut server = Self::stopped("", "")?;
        let folder = server.folder.path().join("jetstream").display().to_string();
        let environment = environment
            .iter()
            .cloned()
            .chain([("NATS_STORE_DIR".into(), folder)])
            .collect();
        server.given = Some(Given {
            file: file.into(),
            environment,
        });
        server.restart()?;
        Ok(server)
    }

    fn start_as(name: &str, config: &str) -> Result<Self> {
        let mut server = Self::stopped(name, config)?;
        server.restart()?;
        Ok(server)
    }

    fn stopped(name: &str, config: &str) -> Result<Self> {
        let (folder, port, monitor_port) = (TempDir::new()?, free_port()?, free_port()?);
        Ok(Self {
            folder,
            port,
            monitor_port,
            name: name.into(),
            config: config.into(),
            has_jetstream: true,
            given: None,
            running: None,
        })
    }

    /// Returns the server's name in its cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Returns the process id, or `None` while the server is stopped.
    pub fn pid(&self) -> Option<i32> {
        self.running.as_ref().map(|running| running.pid.as_raw())
    }

    /// Asks the server to stop, and waits up to 10 s until it has.
    pub fn stop(&mut self) -> Result<()> {
        self.end(Signal::SIGTERM)
    }

    /// Kills the server, and waits up to 10 s until it has ended.
    pub fn kill(&mut self) -> Result<()> {
        self.end(Signal::SIGKILL)
    }

    /// Freezes the server, so that connections stay open and it does not answer. All of its threads
    /// have stopped when the call returns.
    pub fn pause(&self) -> Result<()> {
        freeze(
            self.running
                .as_ref()
                .context("the server is not running")?
                .pid,
        )
    }

    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Kills the server if it runs, starts it on the same port and folder, and waits until it
    /// accepts connections.
    pub fn restart(&mut self) -> Result<()> {
        if self.running.is_some() {
            self.kill()?;
        }
        let mut command = Command::new("sh");
        command
            .args(["-c", GUARD, "nats-server"])
            .arg(find_server()?)
            .arg("-c");
        match &self.given {
            None => command.arg(self.write_config()?),
            Some(Given { file, environment }) => command
                .arg(file)
                .args([
                    "-p",
                    &self.port.to_string(),
                    "-m",
                    &self.monitor_port.to_string(),
                ])
                .envs(environment.iter().map(|(name, value)| (name, value))),
        };
        self.running = Some(Running::start(command, &self.log_file())?);
        self.wait_until_ready()
            .with_context(|| format!("nats-server did not start; its log:\n{}", self.log()))
    }

    /// Kills the server if it runs, and starts it again without any JetStream data.
    pub fn restart_empty(&mut self) -> Result<()> {
        self.kill()?;
        fs::remove_dir_all(self.folder.path().join("jetstream"))?;
        self.restart()
    }

    /// Restarts the server without JetStream: messages pass, but no node can write to the registry.
    /// The next restart brings JetStream back with its data.
    pub fn restart_without_jetstream(&mut self) -> Result<()> {
        self.has_jetstream = false;
        let restarted = self.restart();
        self.has_jetstream = true;
        restarted
    }

    /// Requests a page of the server's monitoring, for example `/varz`, and returns its JSON.
    pub fn monitor(&self, page: &str) -> Result<serde_json::Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.monitor_port))?;
        write!(stream, "GET {page} HTTP/1.0\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        let (_, body) = response.split_once("\r\n\r\n").context("no body")?;
        Ok(serde_json::from_str(body)?)
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("nats.log")
    }

    fn write_config(&self) -> Result<PathBuf> {
        let folder = self.folder.path();
        let settings = [
            "ping_interval: \"2s\"",
            "ping_max: 2",
            "write_deadline: \"3s\"",
            "no_fast_producer_stall: true",
        ];
        let limits = if self.config.contains("max_payload") {
            ""
        } else {
            "max_payload: 8MB"
        };
        let jetstream = match self.has_jetstream {
            true => format!("jetstream {{ store_dir: {:?} }}", folder.join("jetstream")),
            false => String::new(),
        };
        let text = format!(
            "listen: 127.0.0.1:{}\nhttp: 127.0.0.1:{}\nserver_name: {}\n{jetstream}\n{}\n{limits}\n{}\n",
            self.port,
            self.monitor_port,
            self.name,
            settings.join("\n"),
            self.config
        );
        let file = folder.join("nats.conf");
        fs::write(&file, text)?;
        Ok(file)
    }

    fn wait_until_ready(&self) -> Result<()> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if greets(address) {
                return Ok(());
            }
            if self
                .running
                .as_ref()
                .is_some_and(|running| !running.is_alive())
            {
                bail!("it ended at once");
            }
            sleep(Duration::from_millis(10));
        }
        bail!("nothing answers on port {} after {PATIENCE:?}", self.port)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let running = self.running.as_ref().context("the server is not running")?;
        Ok(kill(running.pid, signal)?)
    }

    fn end(&mut self, signal: Signal) -> Result<()> {
        let Some(running) = self.running.take() else {
            return Ok(());
        };
        kill(running.pid, signal)?;
        let until = Instant::now() + PATIENCE;
        while running.is_alive() && Instant::now() < until {
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Running {
    fn start(mut command: Command, log: &Path) -> Result<Self> {
        let mut guard = command
            .env("LOG", log)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run `sh`")?;
        let mut pid = String::new();
        BufReader::new(guard.stdout.take().context("no output of the guard")?)
            .read_line(&mut pid)?;
        let pid = Pid::from_raw(pid.trim().parse().context("no process id from the guard")?);
        Ok(Self { guard, pid })
    }

    /// Returns whether the server runs.
    fn is_alive(&self) -> bool {
        is_alive(self.pid)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ended = self.guard.wait();
    }
}

fn greets(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) else {
        return false;
    };
    let _timeout = stream.set_read_timeout(Some(Duration::from_secs(1)));
    let mut greeting = [0; 4];
    let greeted = stream.read_exact(&mut greeting).is_ok() && &greeting == b"INFO";
    let _bye = stream.flush();
    greeted
}

/// The only port of the range that browsers refuse to open.
const UNSAFE: u16 = 10_080;

/// Returns a port on which no process listens now. Within one process, calls return different ports
/// until the range is used up. Tests that run at the same time take theirs from different parts of
/// the range, because a server that a test stops leaves its port free until it is started again.
pub fn free_port() -> Result<u16> {
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(fastrand::u16(..)));
    let ports = run::slot().map_or(PORTS, |slot| {
        let part = (PORTS.end - PORTS.start) / PARTS;
        let start = PORTS.start + slot % PARTS * part;
        start..start + part
    });
    let next = || ports.start + NEXT.fetch_add(1, Ordering::Relaxed) % (ports.end - ports.start);
    let free = std::iter::repeat_with(next)
        .take(ports.len())
        .find(|port| *port != UNSAFE && TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.context("no port is free")
}

/// Returns the path of a server: the one that `NATS_SERVER` names, else `nats-server` on the PATH,
/// else the one that `make tools` puts under `.tools/bin`.
pub fn find_server() -> Result<PathBuf> {
    find("NATS_SERVER", "nats-server").context(
        "no nats-server: tests need one of version 2.12 or later. Run `make tools`, or install it and put it on the PATH, or set NATS_SERVER",
    )
}

/// Finds the `nats` command line client. If there is none, the tests that use it print that they
/// are skipped.
pub fn find_cli() -> Result<PathBuf> {
    find("NATS_CLI", "nats")
        .context("no `nats` on the PATH: install the NATS command line client, or set NATS_CLI")
}

fn find(variable: &str, name: &str) -> Option<PathBuf> {
    let named = env::var_os(variable).map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path)
        .map(|folder| folder.join(name))
        .collect::<Vec<_>>();
    let own = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../.tools/bin")
        .join(name);
    named
        .into_iter()
        .chain(on_path)
        .chain([own])
        .find(|file| file.is_file())
}
