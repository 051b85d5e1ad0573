//! Checks each right that a role of `deploy/nats-cluster.conf` has, and rights that the role must
//! not have.

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use planck_common::command::{AgentVerb, NodeVerb, SessionVerb, SessionsVerb};

use super::gate::{
    Act::{self, Join, Publish, Subscribe},
    Form, ROLES, SecuredServer,
};

const MAY: &[(&str, &[Act])] = &[
    (
        "node",
        &[
            Publish("agent.a1"),
            Publish("session.s1"),
            Publish("node.n1"),
            Publish("cluster.node_dead"),
            Publish("cmd.agent.a1.prompt"),
            Publish("cmd.node.n1.host"),
            Publish("tool.calculator.add"),
            Publish("compact.short.short"),
            Publish("cancel.calculator"),
            Publish("$SRV.INFO"),
            Publish("$SRV.INFO.calculator"),
            Publish("$KV.planck_registry.node.n1"),
            Publish("$JS.API.STREAM.INFO.KV_planck_registry"),
            Join("cmd.agent.*.*", "planck"),
            Join("cmd.node.n1.*", "planck"),
            Subscribe("node.*"),
            Subscribe("sidecar.*"),
            Subscribe("_INBOX_node.abc"),
            Subscribe("$SRV.*.planck-node"),
        ],
    ),
    (
        "sidecar",
        &[
            Publish("sidecar.calculator"),
            Join("tool.calculator.add", "calculator"),
            Join("compact.calculator.short", "calculator"),
            Subscribe("cancel.calculator"),
            Subscribe("_INBOX_sidecar.abc"),
            Subscribe("$SRV.INFO.calculator"),
        ],
    ),
    (
        "client",
        &[
            Publish("cmd.sessions.start"),
            Publish("cmd.sessions.list"),
            Publish("cmd.session.s1.delete"),
            Publish("cmd.agent.a1.stop"),
            Publish("cmd.nodes.list"),
            Publish("cmd.teams.list"),
            Publish("cmd.models.list"),
            Publish("cmd.sidecars.list"),
            Publish("cmd.node.n1.info"),
            Publish("cmd.node.n1.drain"),
            Subscribe("session.>"),
            Subscribe("agent.*"),
            Subscribe("node.*"),
            Subscribe("cluster.*"),
            Subscribe("_INBOX_client.abc"),
        ],
    ),
    (
        "answerer",
        &[
            Publish("cmd.sessions.list"),
            Publish("cmd.session.s1.prompt"),
            Publish("cmd.session.s1.abort"),
            Publish("cmd.session.s1.events"),
            Publish("cmd.session.s1.messages"),
            Publish("cmd.session.s1.info"),
            Publish("cmd.agent.a1.prompt"),
            Publish("cmd.agent.a1.abort"),
            Publish("cmd.agent.a1.info"),
            Publish("cmd.agent.a1.snapshot"),
            Subscribe("session.*"),
            Subscribe("_INBOX_answerer.abc"),
        ],
    ),
    (
        "observer",
        &[
            Subscribe("session.>"),
            Subscribe("agent.>"),
            Subscribe("node.*"),
            Subscribe("cluster.*"),
        ],
    ),
];

/// Actions on JetStream and its streams, other buckets and the system account that no role may do.
const STORES: &[Act] = &[
    Publish("$JS.API.STREAM.DELETE.KV_planck_registry"),
    Publish("$JS.API.STREAM.PURGE.KV_planck_registry"),
    Publish("$JS.API.STREAM.UPDATE.KV_planck_registry"),
    Publish("$JS.API.STREAM.CREATE.other"),
    Publish("$JS.API.STREAM.MSG.DELETE.KV_planck_registry"),
    Publish("$JS.API.STREAM.NAMES"),
    Publish("$JS.API.CONSUMER.CREATE.other"),
    Publish("$KV.other.key"),
    Publish("$SYS.REQ.SERVER.PING"),
];

const REGISTRY: &[Act] = &[
    Publish("$JS.API.INFO"),
    Publish("$JS.API.STREAM.INFO.KV_planck_registry"),
    Publish("$JS.API.STREAM.MSG.GET.KV_planck_registry"),
    Publish("$JS.API.DIRECT.GET.KV_planck_registry"),
    Publish("$JS.API.CONSUMER.CREATE.KV_planck_registry"),
    Publish("$KV.planck_registry.store"),
    Publish("$KV.planck_registry.node.n1"),
    Subscribe("$KV.planck_registry.>"),
    Subscribe("$KV.>"),
    Subscribe("$JS.>"),
];

/// Actions that no client, answerer or observer may do. Most are a node's own.
const NODES: &[Act] = &[
    Publish("session.s1"),
    Publish("agent.a1"),
    Publish("node.n1"),
    Publish("cluster.node_dead"),
    Publish("cmd.node.n1.host"),
    Publish("cmd.node.n1.relay"),
    Publish("cmd.node.n1.stop_team"),
    Publish("tool.calculator.add"),
    Publish("cancel.calculator"),
    Join("cmd.agent.*.*", "planck"),
    Join("cmd.sessions.*", "planck"),
    Subscribe("cmd.>"),
    Subscribe("tool.calculator.*"),
    Subscribe(">"),
];

const INBOXES: &[Act] = &[
    Subscribe("_INBOX.>"),
    Subscribe("_INBOX.abc"),
    Publish("_INBOX_node.abc"),
    Publish("_INBOX.abc"),
];

const MAY_NOT: &[(&str, &[&[Act]])] = &[
    (
        "node",
        &[
            STORES,
            &[
                Subscribe("_INBOX_client.>"),
                Subscribe("_INBOX.>"),
                Publish("_INBOX_client.abc"),
                Subscribe(">"),
            ],
        ],
    ),
    (
        "sidecar",
        &[
            STORES,
            REGISTRY,
            INBOXES,
            &[
                Publish("cmd.sessions.start"),
                Publish("cmd.sessions.list"),
                Publish("cmd.session.s1.prompt"),
                Publish("cmd.agent.a1.stop"),
                Publish("cmd.node.n1.host"),
                Publish("session.s1"),
                Publish("agent.a1"),
                Publish("node.n1"),
                Publish("tool.calculator.add"),
                Publish("cancel.calculator"),
                Subscribe("session.>"),
                Subscribe("agent.>"),
                Subscribe("cmd.>"),
                Subscribe("node.*"),
                Subscribe("_INBOX_node.>"),
                Subscribe("_INBOX_client.>"),
                Subscribe(">"),
            ],
        ],
    ),
    (
        "client",
        &[
            STORES,
            REGISTRY,
            NODES,
            INBOXES,
            &[Subscribe("_INBOX_node.>"), Subscribe("_INBOX_answerer.>")],
        ],
    ),
    (
        "answerer",
        &[
            STORES,
            REGISTRY,
            NODES,
            INBOXES,
            &[
                Publish("cmd.sessions.start"),
                Publish("cmd.session.s1.delete"),
                Publish("cmd.session.s1.close"),
                Publish("cmd.session.s1.rewind"),
                Publish("cmd.session.s1.resume"),
                Publish("cmd.agent.a1.stop"),
                Publish("cmd.agent.a1.add_tool"),
                Publish("cmd.agent.a1.change_model"),
                Publish("cmd.node.n1.drain"),
                Subscribe("_INBOX_client.>"),
            ],
        ],
    ),
    (
        "observer",
        &[
            STORES,
            REGISTRY,
            NODES,
            INBOXES,
            &[
                Publish("cmd.sessions.list"),
                Publish("cmd.sessions.start"),
                Publish("cmd.session.s1.info"),
                Publish("sidecar.calculator"),
                Publish("anything"),
                Publish("_INBOX_observer.abc"),
                Subscribe("_INBOX_observer.abc"),
                Subscribe("_INBOX_client.>"),
                Subscribe("_INBOX_node.>"),
                Subscribe("sidecar.*"),
            ],
        ],
    ),
];

/// Returns whether an answerer may send a verb. A new verb needs a decision.
fn answerer_sends_to_sessions(verb: SessionsVerb) -> bool {
    match verb {
        SessionsVerb::List | SessionsVerb::Waits => true,
        SessionsVerb::Start => false,
    }
}

fn answerer_sends_to_session(verb: SessionVerb) -> bool {
    match verb {
        SessionVerb::Prompt
        | SessionVerb::Events
        | SessionVerb::Messages
        | SessionVerb::Info
        | SessionVerb::Abort
        | SessionVerb::Answer
        | SessionVerb::Outcome => true,
        SessionVerb::Rewind
        | SessionVerb::Rename
        | SessionVerb::Resume
        | SessionVerb::Close
        | SessionVerb::Delete => false,
    }
}

fn answerer_sends_to_agent(verb: AgentVerb) -> bool {
    match verb {
        AgentVerb::Prompt | AgentVerb::Info | AgentVerb::Snapshot | AgentVerb::Abort => true,
        AgentVerb::Stop
        | AgentVerb::Nudge
        | AgentVerb::Checkpoint
        | AgentVerb::AddTool
        | AgentVerb::RemoveTool
        | AgentVerb::ChangeModel => false,
    }
}

/// Returns whether users may send a verb, or only nodes among themselves, and whether an answerer is
/// among these users.
fn users_send_to_node(verb: NodeVerb) -> (bool, bool) {
    match verb {
        NodeVerb::Info => (true, true),
        NodeVerb::Drain => (true, false),
        NodeVerb::Host | NodeVerb::Wake | NodeVerb::Relay | NodeVerb::StopTeam => (false, false),
    }
}

/// Returns the subject of every verb of the protocol, and the roles that may publish there.
fn verbs() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut all = Vec::new();
    let mut add = |subject: String, client: bool, answerer: bool| {
        let mut roles = vec!["node"];
        roles.extend(client.then_some("client"));
        roles.extend(answerer.then_some("answerer"));
        all.push((&*subject.leak(), roles));
    };
    for verb in SessionsVerb::ALL {
        let subject = format!("cmd.sessions.{}", verb.name());
        add(subject, true, answerer_sends_to_sessions(*verb));
    }
    for verb in SessionVerb::ALL {
        let subject = format!("cmd.session.s1.{}", verb.name());
        add(subject, true, answerer_sends_to_session(*verb));
    }
    for verb in AgentVerb::ALL {
        let subject = format!("cmd.agent.a1.{}", verb.name());
        add(subject, true, answerer_sends_to_agent(*verb));
    }
    for verb in NodeVerb::ALL {
        let (client, answerer) = users_send_to_node(*verb);
        add(format!("cmd.node.n1.{}", verb.name()), client, answerer);
    }
    all
}

/// Subjects that the nodes of both accounts use mean two things.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_a_proof_and_the_cluster_see_nothing_of_each_other() -> Result<()> {
    let secured = SecuredServer::start(Form::Passwords)?;
    let (cluster, proof) = (
        secured.attacker("node").await?.nats,
        secured.attacker("prove").await?.nats,
    );
    let mut seen_by_proof = proof.subscribe(">").await?;
    let mut seen_by_cluster = cluster.subscribe("cmd.>").await?;
    proof.flush().await?;
    cluster.flush().await?;
    cluster.publish("agent.a1", "the cluster's".into()).await?;
    proof
        .publish("cmd.sessions.start", "the proof's".into())
        .await?;
    cluster
        .publish("cmd.sessions.list", "the cluster's".into())
        .await?;
    proof.flush().await?;
    cluster.flush().await?;
    let of_proof = seen_by_proof.next().await.context("no message")?;
    let of_cluster = seen_by_cluster.next().await.context("no message")?;
    assert_eq!(of_proof.payload, "the proof's");
    assert_eq!(of_cluster.payload, "the cluster's");
    Ok(())
}

async fn rights_hold(form: Form) -> Result<()> {
    let gate = SecuredServer::start(form)?;
    let mut wrong = Vec::new();
    for (role, acts) in MAY {
        let mut attacker = gate.attacker(role).await?;
        for act in *acts {
            if !attacker.may(*act).await? {
                wrong.push(format!("{role} may not {act:?}"));
            }
        }
    }
    for (role, groups) in MAY_NOT {
        let mut attacker = gate.attacker(role).await?;
        for act in groups.iter().copied().flatten() {
            if attacker.may(*act).await? {
                wrong.push(format!("{role} may {act:?}"));
            }
        }
    }
    for role in ROLES {
        let mut attacker = gate.attacker(role).await?;
        for (subject, roles) in verbs() {
            if attacker.may(Publish(subject)).await? != roles.contains(&role) {
                wrong.push(format!(
                    "{subject} is open to {roles:?}, and {role} finds otherwise"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn each_role_has_its_rights_and_no_others_by_password() -> Result<()> {
    rights_hold(Form::Passwords).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn each_role_has_its_rights_and_no_others_by_nkey() -> Result<()> {
    rights_hold(Form::Nkeys).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn each_role_has_its_rights_and_no_others_by_certificate() -> Result<()> {
    rights_hold(Form::Certificates).await
}
