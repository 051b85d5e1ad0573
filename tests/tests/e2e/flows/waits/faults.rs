//! Waits under faults and load: many at once, answers that race, a host that dies, a drain, NATS
//! away, and a database that is frozen.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_common::{
    CallId,
    command::{Answered, SessionVerb, SessionsVerb, Waits},
    event::EventKind,
    reply::Code,
    wait::WaitDecision,
};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    caller::{session_at, sessions},
    eventually::{eventually, within},
    node::Node,
    world::{Backend, World},
};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

use super::{Asking, TAKEN_UP, of_kind, result_of_the_call};

const LONG: Duration = Duration::from_secs(90);

/// Starts a session whose agent asks before it changes anything.
async fn asking(world: World, node: Node, prompt: &str) -> Result<Asking> {
    let body = json!({
        "dir": world.dir(),
        "members": [{ "type": "agent", "tools": ["bash", "write"] }],
        "permissions": "careful",
        "prompt": prompt,
    });
    let started = world.caller.start(&body).await?;
    Ok(Asking {
        world,
        node,
        started,
    })
}

/// Three clients answer each of 100 calls of one agent at once, with different decisions. Each call
/// has one decision, which is the acknowledged one, and only allowed calls run.
#[tokio::test(flavor = "multi_thread")]
async fn hundred_waits_of_one_agent_each_have_one_decision() -> Result<()> {
    const CALLS: usize = 100;
    let calls = (0..CALLS).fold(Reply::new(), |reply, n| {
        reply.and_call(
            "write",
            json!({ "path": format!("out-{n}"), "content": "x" }),
        )
    });
    let script = Script::new()
        .rule(When::any().result_of("write"), "Done.")
        .always(calls);
    let world = World::start(Backend::Postgres, script).await?;
    let (node, other) = (world.node().await?, world.node().await?);
    let asking = asking(world, node, "write them").await?;
    let waits = within(LONG, "every call waits", async || {
        let waits = asking.waits(json!({ "limit": 500 })).await.ok()?;
        (waits.len() == CALLS).then_some(waits)
    });
    let waits = waits.await?;
    let to = session_at(&asking.started.session_id, SessionVerb::Answer);
    let mut accepted: BTreeMap<CallId, Vec<WaitDecision>> = BTreeMap::new();
    // Ten waits at a time, so that the clients' requests overlap without a flood.
    for some in waits.chunks(10) {
        let mut clients = JoinSet::new();
        for wait in some {
            for (by, decision) in [("ann", "allow"), ("bob", "deny"), ("cid", "allow")] {
                let body = json!({ "wait": wait.id, "decision": decision, "by": by });
                let (caller, to) = (asking.world.caller.clone(), to.clone());
                clients.spawn(async move { caller.try_request::<Answered>(&to, &body).await });
            }
        }
        while let Some(done) = clients.join_next().await {
            if let Ok(answered) = done?? {
                accepted
                    .entry(answered.wait)
                    .or_default()
                    .push(answered.decision);
            }
        }
    }
    let log = asking.ended().await?;
    let closed = of_kind(&log, EventKind::WaitClosed);
    assert_eq!((closed.len(), accepted.len()), (CALLS, CALLS));
    for closed in &closed {
        let id = closed["id"].as_str().context("an id")?;
        let decisions = &accepted[id];
        let said = closed["decision"].as_str();
        assert!(
            decisions
                .iter()
                .all(|decision| Some(decision.name()) == said),
            "{id}: {decisions:?} were acknowledged, and the log has {said:?}"
        );
    }
    let allowed = closed
        .iter()
        .filter(|closed| closed["decision"] == "allow")
        .count();
    let written = std::fs::read_dir(asking.world.dir())?.flatten();
    let written = written.filter(|file| file.file_name().to_string_lossy().starts_with("out-"));
    assert_eq!(written.count(), allowed);
    assert_eq!(of_kind(&log, EventKind::ToolStart).len(), allowed);
    other.leave().await?;
    asking.node.leave().await
}

/// A call that appends to a file and then runs for a minute.
fn slow_call() -> Script {
    let command = "echo begun >> ledger; sleep 60";
    Script::new()
        .rule(When::any().result_of("bash"), "I see.")
        .always(Reply::call("bash", json!({ "command": command })))
}

/// Kills the host after another node has stored the answer. If the host had not read the answer, the
/// call runs once on the other node. If the call was running, it may have taken effect, so it does
/// not run again.
#[tokio::test(flavor = "multi_thread")]
async fn host_that_dies_after_the_answer_leaves_the_call_to_its_effect() -> Result<()> {
    for was_running in [false, true] {
        let script = match was_running {
            true => slow_call(),
            false => super::script(),
        };
        let world = World::start(Backend::Postgres, script).await?;
        let node = world.node().await?;
        let mut asking = asking(world, node, "write it").await?;
        let id = asking.waiting().await?.id;
        let other = asking.world.node().await?;
        let ledger = asking.world.dir().join("ledger");
        let allow = json!({ "wait": id, "decision": "allow" });
        if was_running {
            asking.answer(&allow).await?;
            // The file is there before it has its line.
            let begun = async || {
                let text = std::fs::read_to_string(&ledger).ok();
                text.filter(|text| !text.is_empty())
            };
            eventually("the call runs", begun).await?;
        } else {
            asking.node.pause()?;
            // The request may reach the node that does not answer, so it is sent again.
            let answered = within(LONG, "another node stores the answer", async || {
                asking.answer(&allow).await.ok()
            });
            answered.await?;
        }
        asking.node.kill().await?;
        let log = asking.ended().await?;
        let closed = of_kind(&log, EventKind::WaitClosed);
        assert_eq!((closed.len(), &closed[0]["decision"]), (1, &json!("allow")));
        assert_eq!(of_kind(&log, EventKind::ToolStart).len(), 1);
        let result = result_of_the_call(&log);
        if was_running {
            assert_eq!(std::fs::read_to_string(&ledger)?, "begun\n", "{result}");
            assert!(result.contains("may or may not"), "{result}");
        } else {
            assert_eq!(asking.written().as_deref(), Some("hello"), "{result}");
        }
        other.leave_despite(&[""]).await?;
    }
    Ok(())
}

/// A waiting agent does not hold up a drain. Another node has it afterwards, and its wait.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_agent_does_not_hold_up_a_drain() -> Result<()> {
    let world = World::start(Backend::Postgres, super::script()).await?;
    let node = world.node().await?;
    let mut asking = asking(world, node, "write it").await?;
    let id = asking.waiting().await?.id;
    let other = asking.world.node().await?;
    kill(Pid::from_raw(asking.node.pid()), Signal::SIGTERM)?;
    // A turn in progress would keep the node for `node.drain_timeout`, which is 2 min.
    let status = timeout(Duration::from_secs(60), asking.node.ended())
        .await
        .context("the drain is held up")??;
    assert!(status.success(), "{status}: {}", asking.node.log());
    within(TAKEN_UP, "the other node has the agent", async || {
        let agent = asking
            .world
            .caller
            .agent(&asking.started.orchestrator)
            .await;
        (agent.ok()?.node_id.as_ref() == Some(other.id())).then_some(())
    })
    .await?;
    asking
        .answer(&json!({ "wait": id, "decision": "allow" }))
        .await?;
    let log = asking.ended().await?;
    assert_eq!(asking.written().as_deref(), Some("hello"));
    assert_eq!(of_kind(&log, EventKind::ToolStart).len(), 1);
    assert_eq!(of_kind(&log, EventKind::WaitClosed).len(), 1);
    other.leave().await
}

/// NATS is away while a call waits. Afterwards the wait can be answered, or has expired and counts
/// as denied.
#[tokio::test(flavor = "multi_thread")]
async fn wait_outlives_an_outage_of_nats_or_expires_in_it() -> Result<()> {
    for expires in [false, true] {
        let after = if expires { "3s" } else { "1h" };
        let world = World::start(Backend::Postgres, super::script()).await?;
        let node = world
            .node_with(&[("PLANCK_WAITS_EXPIRE_AFTER", after)])
            .await?;
        let mut asking = asking(world, node, "write it").await?;
        let wait = asking.waiting().await?;
        asking.world.nats.kill()?;
        // The outage is longer than the time in which the wait expires.
        tokio::time::sleep(Duration::from_secs(5)).await;
        asking.world.nats.restart()?;
        let allow = json!({ "wait": wait.id, "decision": "allow" });
        let to = session_at(&asking.started.session_id, SessionVerb::Answer);
        let answered = within(LONG, "the answer gets a reply", async || {
            let tried = asking
                .world
                .caller
                .try_request::<Answered>(&to, &allow)
                .await;
            let answered = tried.ok()?;
            let is_away = answered
                .as_ref()
                .is_err_and(|refusal| refusal.code == Code::Unavailable);
            (!is_away).then_some(answered)
        });
        let answered = answered.await?;
        let log = asking.ended().await?;
        let closed = of_kind(&log, EventKind::WaitClosed);
        if expires {
            assert_eq!(answered.unwrap_err().code, Code::Exists);
            assert_eq!(closed[0]["decision"], "expired");
            assert_eq!(asking.written(), None);
        } else {
            assert_eq!(answered.unwrap().decision, WaitDecision::Allow);
            assert_eq!(closed[0]["decision"], "allow");
            assert_eq!(asking.written().as_deref(), Some("hello"));
        }
        asking
            .node
            .leave_despite(&["NATS", "suspended", "registry"])
            .await?;
    }
    Ok(())
}

/// Reads the waits of a session in a state, in pages of at most 30.
async fn in_pages(asking: &Asking, state: &str) -> Result<Vec<CallId>> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let session = &asking.started.session_id;
        let filter = json!({ "session": session, "state": state, "limit": 30, "after": after });
        let to = sessions(SessionsVerb::Waits);
        let page: Waits = asking.world.caller.read(&to, &filter).await?;
        assert!(page.waits.len() <= 30);
        ids.extend(page.waits.into_iter().map(|wait| wait.id));
        after = page.next;
        if after.is_none() {
            return Ok(ids);
        }
    }
}

/// Four agents of one session have 200 calls that wait at once. The lists are bounded and come in
/// pages. Each call takes one answer, which two clients send at once, and runs once.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_waits_of_one_session_come_in_pages_and_run_once() -> Result<()> {
    const AGENTS: usize = 4;
    const CALLS: usize = 50;
    let calls = |agent: usize| {
        (0..CALLS).fold(Reply::new(), |reply, n| {
            let command = format!("echo {agent}-{n} >> ledger");
            reply.and_call("bash", json!({ "command": command }))
        })
    };
    let script = (0..AGENTS).fold(
        Script::new().rule(When::any().result_of("bash"), "Done."),
        |script, agent| script.rule(When::any().last(&format!("write as {agent}")), calls(agent)),
    );
    let world = World::start(Backend::Postgres, script).await?;
    let node = world.node().await?;
    let member = |agent: usize| {
        let tools: &[&str] = match agent {
            0 => &["bash", "spawn_agent"],
            _ => &["bash"],
        };
        json!({ "type": format!("agent-{agent}"), "tools": tools })
    };
    let members: Vec<Value> = (0..AGENTS).map(member).collect();
    let body = json!({ "dir": world.dir(), "members": members, "permissions": "careful" });
    let started = world.caller.start(&body).await?;
    let asking = Asking {
        world,
        node,
        started,
    };
    let session = &asking.started.session_id;
    for agent in 0..AGENTS {
        let to = session_at(session, SessionVerb::Prompt);
        let prompt =
            json!({ "text": format!("write as {agent}"), "agent": format!("agent-{agent}") });
        let _accepted: Value = asking.world.caller.ask(&to, &prompt).await?;
    }
    within(LONG, "every call waits", async || {
        let open = in_pages(&asking, "open").await.ok()?;
        (open.len() == AGENTS * CALLS).then_some(())
    })
    .await?;
    let open = in_pages(&asking, "open").await?;
    let distinct: BTreeSet<&CallId> = open.iter().collect();
    assert_eq!(
        (open.len(), distinct.len()),
        (AGENTS * CALLS, AGENTS * CALLS)
    );
    let first = asking.waits(json!({ "session": session })).await?;
    assert_eq!(first.len(), 100, "a page has at most 100 waits by default");
    assert_eq!(asking.world.caller.session(session).await?.waits.len(), 100);

    let to = session_at(session, SessionVerb::Answer);
    for wait in &open {
        let allow = |by: &str| json!({ "wait": wait, "decision": "allow", "by": by });
        let (ann, bob) = (allow("ann"), allow("bob"));
        let caller = &asking.world.caller;
        let (one, other) = tokio::try_join!(
            caller.try_request::<Answered>(&to, &ann),
            caller.try_request::<Answered>(&to, &bob)
        )?;
        let (first, second) = match (one, other) {
            (Ok(first), Err(second)) | (Err(second), Ok(first)) => (first, second),
            both => bail!("two answers or none were stored: {both:?}"),
        };
        assert_eq!(second.code, Code::Exists, "{first:?} {second}");
    }
    let log = within(LONG, "every turn has ended", async || {
        let log = asking.world.caller.log(session, 1).await.ok()?;
        (of_kind(&log, EventKind::TurnEnd).len() == AGENTS).then_some(log)
    });
    let log = log.await?;
    let closed = of_kind(&log, EventKind::WaitClosed);
    let ids: BTreeSet<&str> = closed
        .iter()
        .filter_map(|wait| wait["id"].as_str())
        .collect();
    assert_eq!((closed.len(), ids.len()), (AGENTS * CALLS, AGENTS * CALLS));
    assert_eq!(of_kind(&log, EventKind::ToolStart).len(), AGENTS * CALLS);
    let ledger = std::fs::read_to_string(asking.world.dir().join("ledger"))?;
    let ran: BTreeSet<&str> = ledger.lines().collect();
    assert_eq!(
        (ledger.lines().count(), ran.len()),
        (AGENTS * CALLS, AGENTS * CALLS)
    );
    assert!(in_pages(&asking, "open").await?.is_empty());
    assert_eq!(in_pages(&asking, "closed").await?.len(), AGENTS * CALLS);
    asking.node.leave().await
}

/// Postgres is frozen when the answer arrives: until the client has its reply, or only for a moment.
/// The answer is refused with an error that says to try again, or it is accepted. In the end the
/// call runs once.
#[tokio::test(flavor = "multi_thread")]
async fn answer_while_the_database_is_frozen_is_refused_for_now_or_runs_once() -> Result<()> {
    let script = || {
        let call = Reply::call("bash", json!({ "command": "echo ran >> ledger" }));
        Script::new()
            .rule(When::any().result_of("bash"), "Done.")
            .always(call)
    };
    for stays_frozen in [true, false] {
        let world = World::start_alone(script()).await?;
        let node = world.node().await?;
        let asking = asking(world, node, "write it").await?;
        let id = asking.waiting().await?.id;
        let allow = json!({ "wait": id, "decision": "allow", "by": "ann" });
        let to = session_at(&asking.started.session_id, SessionVerb::Answer);
        let mut frozen = Some(asking.world.pause_database()?);
        let (caller, body) = (asking.world.caller.clone(), allow.clone());
        let sent = tokio::spawn(async move {
            let body = body.to_string();
            let request = caller.nats.request(to.to_string(), body.into());
            timeout(LONG, request).await
        });
        if !stays_frozen {
            // The answer is on its way to Postgres when it continues.
            tokio::time::sleep(Duration::from_millis(500)).await;
            frozen.take();
        }
        let reply = sent.await??.context("no reply")?;
        let reply: Value = serde_json::from_slice(&reply.payload)?;
        drop(frozen);
        if reply.get("ok").is_none() {
            assert_eq!(reply["error"]["retryable"], true, "{reply}");
        }
        // The answer again has the reply of the first one, if that was stored after all.
        let answered = within(LONG, "the answer is stored", async || {
            asking.answer(&allow).await.ok()
        });
        assert_eq!(answered.await?.decision, WaitDecision::Allow);
        let log = asking.ended().await?;
        let closed = of_kind(&log, EventKind::WaitClosed);
        assert_eq!((closed.len(), &closed[0]["decision"]), (1, &json!("allow")));
        assert_eq!(of_kind(&log, EventKind::ToolStart).len(), 1);
        let ledger = std::fs::read_to_string(asking.world.dir().join("ledger"))?;
        assert_eq!(ledger, "ran\n");
        asking
            .node
            .leave_despite(&["database", "Postgres", "store", "sweep"])
            .await?;
    }
    Ok(())
}
