//! An MCP server that is kept in use, and the tools that it offers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use planck_sidecar::{Tool, ToolEffect};
use planck_toolbox::{Launcher, schema::CompiledSchema};
use serde_json::Value;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    call::{CalledTool, call},
    connection::{Connection, ServerTransport},
    offer::{Offer, OfferedTool},
    pins::{PinnedTools, Pins},
    session,
    supervisor::{Link, News, Supervisor},
};

/// The number of starts that may fail before one has succeeded. The first start of a package may
/// have to fetch it, which takes longer than the second.
const FIRST_STARTS: u32 = 3;

/// The receiver of lines that tell a person what the server does.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// How to reach a server, and which of its tools agents get.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    pub transport: ServerTransport,
    /// How long the server may take to answer after it was started.
    pub start_within: Duration,
    /// How long a call may be silent. `None` means the usual time of a sidecar's tool.
    pub timeout: Option<Duration>,
    pub rules: ToolRules,
    /// The tools that were allowed. `None` allows every tool as it is.
    pub pins: Option<Pins>,
}

/// Which tools of a server agents get, and which effects these have.
#[derive(Debug, Clone, Default)]
pub struct ToolRules {
    /// The names of the tools that agents get. `None` means all of them.
    pub allow: Option<Vec<String>>,
    /// The names of the tools that agents do not get.
    pub deny: Vec<String>,
    /// The effects of tools, by name.
    pub effects: BTreeMap<String, ToolEffect>,
    /// Whether the server's hints about the effects of other tools count. Without them a tool is
    /// mutating.
    pub trusts_hints: bool,
}

/// A server that is kept in use until its token is cancelled.
#[derive(Debug, Clone)]
pub struct McpServer {
    timeout: Option<Duration>,
    link: watch::Receiver<Link>,
    offer: watch::Receiver<Option<Arc<Offer>>>,
}

/// The tools that a server lists now, and those that were allowed.
#[derive(Debug)]
pub struct Looked {
    /// What agents would get if everything that is listed were allowed.
    pub offer: Offer,
    pub listed: PinnedTools,
    /// `None` if nothing was allowed yet.
    pub allowed: Option<PinnedTools>,
    pins: Option<Pins>,
}

impl Looked {
    /// Returns whether every listed tool was allowed as it is, or nothing was allowed yet.
    pub fn is_as_allowed(&self) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| {
            let mut listed = self.listed.tools.iter();
            listed.all(|tool| allowed.refusal(tool).is_none())
        })
    }

    /// Allows the listed tools as they are, and no others.
    ///
    /// # Errors
    /// Returns an error if this cannot be recorded.
    pub fn allow(&self) -> Result<(), String> {
        match &self.pins {
            Some(pins) => pins.write(&self.listed),
            None => Ok(()),
        }
    }
}

impl McpServer {
    /// Connects to a server, lists its tools, and ends the connection.
    ///
    /// # Errors
    /// Returns why the server cannot be used.
    pub async fn look(
        options: &ServerOptions,
        launcher: &Launcher,
        report: &Report,
    ) -> Result<Looked, String> {
        let allowed = match &options.pins {
            Some(pins) => pins.read()?,
            None => None,
        };
        let server = Connection::open(launcher, &options.transport, options.start_within, report);
        let server = server.await?;
        let (peer, listed) = (
            &server.live.peer,
            session::tools(&server.live.peer, options.start_within).await,
        );
        let version = session::version(peer);
        server.close("it was only looked at").await;
        let (tools, warning) = listed?;
        let mut offer = Offer::of(&version, tools.clone(), &options.rules, None);
        offer.left_out.extend(warning);
        Ok(Looked {
            offer,
            listed: PinnedTools { version, tools },
            allowed,
            pins: options.pins.clone(),
        })
    }

    /// Connects to a server, and again when it is gone, until `stop` is cancelled. `launcher` starts
    /// it, so its processes end with this one. The task ends when the server has ended.
    pub fn start(
        options: ServerOptions,
        launcher: Launcher,
        report: Report,
        stop: CancellationToken,
    ) -> (Self, JoinHandle<()>) {
        let (link, links) = watch::channel(Link::Starting);
        let (offer, offers) = watch::channel(None);
        let timeout = options.timeout;
        let supervisor = Supervisor {
            launcher,
            options,
            report,
        };
        let supervising = tokio::spawn(supervisor.run(News { link, offer }, stop));
        let server = Self {
            timeout,
            link: links,
            offer: offers,
        };
        (server, supervising)
    }

    /// Returns a server that is not started, with the tools that were allowed, or `None` if none were
    /// allowed yet.
    ///
    /// # Errors
    /// Returns an error if the allowed tools cannot be read.
    pub fn known(options: &ServerOptions) -> Result<Option<Self>, String> {
        let Some(pins) = &options.pins else {
            return Ok(None);
        };
        let known = pins.read()?.map(|PinnedTools { version, tools }| {
            let offer = Offer::of(&version, tools, &options.rules, None);
            Self {
                timeout: options.timeout,
                link: watch::channel(Link::Starting).1,
                offer: watch::channel(Some(Arc::new(offer))).1,
            }
        });
        Ok(known)
    }

    /// Returns what the server offers, or `None` before it has answered once. The offer of a server
    /// that is away stays.
    pub fn offer(&self) -> Option<Arc<Offer>> {
        self.offer.borrow().clone()
    }

    /// Returns the tools of an offer of this server.
    pub fn tools(&self, offer: &Offer) -> Vec<Tool> {
        let tool = |offered| tool(offered, &self.link, self.timeout);
        offer.tools.iter().map(tool).collect()
    }

    /// Returns whether the server takes calls now.
    pub fn is_up(&self) -> bool {
        matches!(*self.link.borrow(), Link::Up(_))
    }

    /// Returns whether a call waits for its answer, or for that of a person.
    pub fn is_busy(&self) -> bool {
        matches!(&*self.link.borrow(), Link::Up(server) if server.is_busy())
    }

    /// Returns why the server takes no calls, or `None` if it does or is being started.
    pub fn away(&self) -> Option<String> {
        match &*self.link.borrow() {
            Link::Up(_) | Link::Starting => None,
            Link::Away { why, .. } => Some(why.clone()),
        }
    }

    /// Returns why the server could not be used once, if its first starts have failed.
    pub fn unusable(&self) -> Option<String> {
        let is_unusable = self.offer().is_none() && self.failed_starts() >= FIRST_STARTS;
        is_unusable.then(|| self.away()).flatten()
    }

    /// Returns the number of starts that failed since the server was last in use.
    pub fn failed_starts(&self) -> u32 {
        match &*self.link.borrow() {
            Link::Up(_) | Link::Starting => 0,
            Link::Away { failed_starts, .. } => *failed_starts,
        }
    }

    /// Waits until the offer or the state of the server has changed since this function returned
    /// last. Returns whether the server is still kept in use.
    pub async fn changed(&mut self) -> bool {
        tokio::select! {
            changed = self.offer.changed() => changed.is_ok(),
            changed = self.link.changed() => changed.is_ok(),
        }
    }
}

pub(crate) fn tool(
    offered: &OfferedTool,
    links: &watch::Receiver<Link>,
    timeout: Option<Duration>,
) -> Tool {
    let called = CalledTool {
        server_name: offered.server_name.clone(),
        effect: offered.effect,
        output: offered.output.as_ref().and_then(|schema| {
            // A schema that cannot be used compares nothing, and the tool can still be called.
            let schema = CompiledSchema::of_value(&Value::from(schema.clone()).to_string());
            schema.ok().map(Arc::new)
        }),
    };
    let links = links.clone();
    let tool = Tool::with_parameters(
        &offered.name,
        &offered.description,
        &offered.parameters,
        move |context, args| call(links.clone(), called.clone(), context, args),
    )
    .effect(offered.effect);
    match timeout {
        Some(timeout) => tool.timeout(timeout),
        None => tool,
    }
}
