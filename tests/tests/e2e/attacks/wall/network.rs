//! Every way to open a socket, with listeners that would receive the data.

use std::{
    io::Read,
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram, UnixListener},
    },
};

use anyhow::{Context, Result};
use planck_common::subject::Target;
use planck_tests::{caller::list_of, world::Backend};
use serde_json::{Value, json};

use super::{Tier, Walled, has, landlock, tiers};

/// The listeners outside of the sandbox.
struct Outside {
    tcp: TcpListener,
    udp: UdpSocket,
    unix: UnixListener,
    datagram: UnixDatagram,
    _in_abstract: UnixListener,
    name: String,
}

impl Outside {
    fn open(walled: &Walled) -> Result<Self> {
        let name = format!("planck-attack-{}-{}", std::process::id(), walled.node.pid());
        let tcp = TcpListener::bind("127.0.0.1:0")?;
        tcp.set_nonblocking(true)?;
        let udp = UdpSocket::bind("127.0.0.1:0")?;
        udp.set_nonblocking(true)?;
        // A tool cannot connect to a Unix socket in the workspace either, because the filter of
        // system calls sees no path.
        let unix = UnixListener::bind(walled.world.dir().join("stream"))?;
        unix.set_nonblocking(true)?;
        let datagram = UnixDatagram::bind(walled.outside("datagram"))?;
        datagram.set_nonblocking(true)?;
        let abstract_name = SocketAddr::from_abstract_name(&name)?;
        Ok(Self {
            tcp,
            udp,
            unix,
            datagram,
            _in_abstract: UnixListener::bind_addr(&abstract_name)?,
            name,
        })
    }

    /// Runs the attempts in Python, and returns which of them succeeded.
    async fn tried(&self, walled: &Walled, more_ports: &[u16]) -> Result<Value> {
        let place = json!({
            "tcp": self.tcp.local_addr()?.port(), "udp": self.udp.local_addr()?.port(), "name": self.name,
            "stream": walled.world.dir().join("stream"), "datagram": walled.outside("datagram"), "more": more_ports,
        });
        let said = walled
            .bash(&format!("WORLD='{place}' python3 - <<'E'\n{ATTEMPTS}\nE"))
            .await?;
        serde_json::from_str(said.trim()).with_context(|| said)
    }

    /// Returns whether a connection or a datagram arrived at a listener other than the abstract
    /// one.
    fn heard(&self) -> bool {
        let mut byte = [0; 64];
        let stream = self
            .unix
            .accept()
            .is_ok_and(|(mut stream, _)| stream.read(&mut byte).is_ok());
        stream
            || self.tcp.accept().is_ok()
            || self.udp.recv(&mut byte).is_ok()
            || self.datagram.recv(&mut byte).is_ok()
    }
}

const ATTEMPTS: &str = r"
import ctypes, json, os, socket
world = json.loads(os.environ['WORLD'])
ip, libc = '127.0.0.1', ctypes.CDLL(None, use_errno=True)
def tcp(port, protocol=0, host=ip):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol); s.settimeout(2); s.connect((host, port)); s.send(b'x')
def fast_open():
    s = socket.socket(); s.sendto(b'x', 0x20000000, (ip, world['tcp']))
def udp():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', (ip, world['udp']))
def unix(address):
    s = socket.socket(socket.AF_UNIX); s.connect(address); s.send(b'x')
def pair(kind):
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    one.sendto(b'x', world['datagram'])
def pair_connect():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    other.close(); one.connect(world['stream']); one.send(b'x')
def opened(*which):
    socket.socket(*which)
def ring():
    ring = libc.syscall(425, 8, ctypes.create_string_buffer(120))
    if ring < 0: raise OSError('refused')
def pair_works():
    one, other = socket.socketpair(); one.send(b'x'); assert other.recv(1) == b'x'
attempts = {
    'pair': pair_works,
    'tcp': lambda: tcp(world['tcp']), 'udp': udp, 'fast open': fast_open,
    'mptcp': lambda: tcp(world['tcp'], 262), 'tcp6': lambda: opened(socket.AF_INET6, socket.SOCK_STREAM),
    'unix': lambda: unix(world['stream']), 'abstract': lambda: unix('\0' + world['name']),
    'unix datagram': lambda: opened(socket.AF_UNIX, socket.SOCK_DGRAM),
    'pair of datagrams': lambda: pair(socket.SOCK_DGRAM), 'raw pair': lambda: pair(socket.SOCK_RAW),
    'pair that is connected': pair_connect, 'tipc pair': lambda: socket.socketpair(30, socket.SOCK_RDM),
    'raw': lambda: opened(socket.AF_INET, socket.SOCK_RAW, 1), 'packet': lambda: opened(17, socket.SOCK_RAW, 0),
    'old packet': lambda: opened(socket.AF_INET, 10, 0),
    'netlink': lambda: opened(16, socket.SOCK_RAW, 0), 'vsock': lambda: opened(40, socket.SOCK_STREAM), 'alg': lambda: opened(38, 5),
    'bluetooth': lambda: opened(31, 3, 1), 'xdp': lambda: opened(44, 3), 'io_uring': ring,
    'metadata': lambda: tcp(80, 0, '169.254.169.254'),
}
for port in world['more']:
    attempts['port %d' % port] = lambda port=port: tcp(port)
said = {}
for name, attempt in attempts.items():
    try:
        attempt(); said[name] = 'open'
    except Exception as why:
        said[name] = 'timed out' if isinstance(why, TimeoutError) else 'shut'
print(json.dumps(said))
";

fn port_of(url: &str) -> Result<u16> {
    let after = url.rsplit_once('@').map_or(url, |(_, after)| after);
    let digits: String = after
        .rsplit(':')
        .next()
        .unwrap_or_default()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().with_context(|| format!("no port in {url}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_has_no_network_unless_it_is_given() -> Result<()> {
    if !has("python3") {
        return Ok(());
    }
    for tier in tiers() {
        let walled = Walled::start(&tier, Backend::Postgres, &[]).await?;
        let outside = Outside::open(&walled)?;
        let ports = [
            port_of(&walled.world.nats.url())?,
            port_of(&walled.world.store_url())?,
            walled.world.model.address().port(),
        ];
        let tried = outside.tried(&walled, &ports).await?;
        for (name, how) in tried.as_object().context("no object")? {
            assert_eq!(
                how,
                if name == "pair" { "open" } else { "shut" },
                "{tier:?} {name}: {tried}"
            );
        }
        assert!(!outside.heard(), "{tier:?}: something arrived");
        walled.end(&[]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn network_that_is_given_is_ip_alone() -> Result<()> {
    if !has("python3") {
        return Ok(());
    }
    for tier in tiers() {
        let walled =
            Walled::start(&tier, Backend::Sqlite, &[("PLANCK_TOOLS_NETWORK", "on")]).await?;
        let outside = Outside::open(&walled)?;
        let tried = outside.tried(&walled, &[]).await?;
        for name in ["pair", "tcp", "udp", "tcp6"] {
            assert_eq!(tried[name], "open", "{tier:?} {name}: {tried}");
        }
        let shut = [
            "unix",
            "abstract",
            "unix datagram",
            "pair of datagrams",
            "raw pair",
            "pair that is connected",
            "tipc pair",
            "raw",
        ];
        for name in shut.into_iter().chain([
            "packet",
            "old packet",
            "netlink",
            "vsock",
            "alg",
            "bluetooth",
            "xdp",
            "io_uring",
        ]) {
            assert_eq!(tried[name], "shut", "{tier:?} {name}: {tried}");
        }
        let heard = (
            outside.tcp.accept().is_ok(),
            outside.udp.recv(&mut [0; 8]).is_ok(),
            outside.unix.accept().is_ok(),
        );
        assert_eq!(heard, (true, true, false), "{tier:?}");
        walled.end(&[]).await?;
    }
    Ok(())
}

/// An escape that a security review found, with shell commands only: the tool sends a command over
/// NATS that starts a session.
#[tokio::test(flavor = "multi_thread")]
async fn tool_commands_no_node_over_nats() -> Result<()> {
    for tier in tiers() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        let escaped = attack(&walled, &tier).await?;
        assert_eq!(escaped, 0, "{tier:?}");
        walled.end(&[]).await?;
    }
    // The same attack succeeds with an open network, which shows that the closed network prevents
    // it.
    let walled = Walled::start(
        &landlock(),
        Backend::Sqlite,
        &[("PLANCK_TOOLS_NETWORK", "on")],
    )
    .await?;
    assert_eq!(attack(&walled, &landlock()).await?, 1);
    walled.end(&[]).await
}

/// Has a tool try to start a session over NATS, and returns how many sessions it started.
async fn attack(walled: &Walled, tier: &Tier) -> Result<usize> {
    let start = json!({ "dir": walled.world.dir(), "session_id": "escaped", "members": [{ "type": "agent" }] }).to_string();
    let port = port_of(&walled.world.nats.url())?;
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port} || exit 7; read -t 5 info <&3; \
         printf 'CONNECT {{\"verbose\":false}}\\r\\nPUB cmd.sessions.start {}\\r\\n%s\\r\\nPING\\r\\n' '{start}' >&3; \
         read -t 5 pong <&3; sleep 1; echo done",
        start.len()
    );
    let said = walled.bash(&script).await?;
    let sessions: Value = walled
        .world
        .caller
        .read(&list_of(Target::Sessions), &json!({}))
        .await?;
    let sessions = sessions["sessions"].as_array().cloned().unwrap_or_default();
    let escaped = sessions
        .iter()
        .filter(|session| session.to_string().contains("escaped"))
        .count();
    eprintln!("{tier:?}: {said}");
    Ok(escaped)
}
