//! Local compaction of a running session, as clients and the model see it.

use anyhow::Result;
use planck_common::{
    command::{AgentVerb, SessionVerb},
    event::{Event, TurnOutcome},
};
use planck_scripted_model::{ModelRequest, Reply, Script, ScriptedFault, When};
use planck_tests::{
    caller::session_at,
    world::{Backend, World},
};
use serde_json::{Value, json};

use super::scene::{Scene, by, member};

/// Settings of a node for a context window that is so small that a few answers fill it.
const WINDOW: &[(&str, &str)] = &[
    ("PLANCK_MODELS_ENTRIES_TEST_PROVIDER", "scripted"),
    ("PLANCK_MODELS_ENTRIES_TEST_CONTEXT_WINDOW", "4000"),
    ("PLANCK_COMPACTION_KEEP_RECENT", "3"),
];

fn summaries() -> When {
    When::any().system("summar")
}

async fn talker(world: World) -> Result<Scene> {
    let (node, recorder) = (world.node_with(WINDOW).await?, world.record().await?);
    let started = world
        .caller
        .start(&json!({ "dir": world.dir(), "members": [member("talker", &[])] }))
        .await?;
    Ok(Scene {
        world,
        node: Some(node),
        recorder,
        started,
    })
}

async fn say(scene: &Scene, text: &str) -> Result<Event> {
    let accepted = scene
        .world
        .caller
        .prompt(&scene.started.session_id, text)
        .await?;
    Ok(scene
        .recorder
        .answered(&accepted.prompt_id)
        .await?
        .event()
        .unwrap()?)
}

fn long_answers() -> Script {
    Script::new()
        .rule(summaries(), Reply::text("They spoke of numbers."))
        .rule(by("talker"), Reply::text("blah ".repeat(300)))
}

fn last_request(scene: &Scene) -> ModelRequest {
    let mut asked = scene
        .world
        .model
        .requests()
        .into_iter()
        .rev()
        .filter_map(|request| request.asked);
    asked
        .find(|asked| asked.system.contains("You are talker."))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_context_is_summarised_and_the_next_node_loads_the_summary() -> Result<()> {
    let mut scene = talker(World::start(Backend::Sqlite, long_answers()).await?).await?;
    for n in 0..12 {
        say(&scene, &format!("number {n}")).await?;
    }
    let log = scene.log_of("talker").await?;
    let compacted: Vec<_> = log
        .iter()
        .filter_map(|event| {
            if let Event::Compacted(compacted) = event {
                Some(compacted)
            } else {
                None
            }
        })
        .collect();
    assert!(!compacted.is_empty(), "the window is small");
    assert!(
        compacted
            .iter()
            .all(|one| one.tokens_after < one.tokens_before && one.by == "local" && one.kept >= 3),
        "{compacted:?}"
    );
    assert!(
        log.iter()
            .any(|event| matches!(event, Event::Checkpoint(_)))
    );
    scene
        .recorder
        .until("it was told before", |event| event.kind == "compacting")
        .await?;

    let before = last_request(&scene);
    assert!(
        format!("{:?}", before.messages[0]).contains("They spoke of numbers."),
        "{:?}",
        before.messages[0]
    );
    let page: Value = scene
        .world
        .caller
        .ask(
            &session_at(&scene.started.session_id, SessionVerb::Messages),
            &json!({}),
        )
        .await?;
    assert_eq!(page["messages"][0]["custom"], "summary");
    let earlier = json!({ "before": page["before"] });
    let earlier: Value = scene
        .world
        .caller
        .ask(
            &session_at(&scene.started.session_id, SessionVerb::Messages),
            &earlier,
        )
        .await?;
    assert!(
        earlier["messages"]
            .as_array()
            .is_some_and(|messages| !messages.is_empty()),
        "what was said is kept"
    );

    scene.node.take().unwrap().leave().await?;
    scene.node = Some(scene.world.node_with(WINDOW).await?);
    scene.tell("talker", AgentVerb::Nudge, json!({})).await?;
    scene.is_asked("talker", "Continue.").await?;
    let after = last_request(&scene);
    assert_eq!(after.system, before.system);
    assert_eq!(
        after.messages[..before.messages.len()],
        before.messages[..],
        "the view is the same but for what was said since"
    );
    assert_eq!(after.messages.len(), before.messages.len() + 2);
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_compaction_changes_nothing() -> Result<()> {
    let script = Script::new()
        .rule(summaries(), Reply::fault(ScriptedFault::status(400)))
        .rule(by("talker"), Reply::text("blah ".repeat(300)));
    let scene = talker(World::start(Backend::Sqlite, script).await?).await?;
    for n in 0..12 {
        let Event::TurnEnd(end) = say(&scene, &format!("number {n}")).await? else {
            panic!()
        };
        assert_eq!(end.outcome, TurnOutcome::Completed);
    }
    let log = scene.log_of("talker").await?;
    assert!(
        log.iter().any(
            |event| matches!(event, Event::Warning(warning) if warning.code == "not_compacted")
        )
    );
    assert!(
        !log.iter()
            .any(|event| matches!(event, Event::Compacted(_) | Event::Checkpoint(_)))
    );
    assert_eq!(
        last_request(&scene).messages.len(),
        23,
        "nothing is missing"
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_ends_a_compaction() -> Result<()> {
    let script = Script::new()
        .rule(summaries(), Reply::fault(ScriptedFault::HangBeforeHead))
        .rule(by("talker"), Reply::text("blah ".repeat(300)));
    let scene = talker(World::start(Backend::Sqlite, script).await?).await?;
    let mut number = 0;
    let hung = loop {
        let accepted = scene
            .world
            .caller
            .prompt(&scene.started.session_id, &format!("number {number}"))
            .await?;
        let started = scene
            .recorder
            .until("it compacts or ends", |event| {
                event.kind == "compacting"
                    || planck_tests::recorder::ends(event, &accepted.prompt_id)
            })
            .await?;
        if started.kind == "compacting" {
            break accepted;
        }
        number += 1;
        assert!(number < 20, "it never compacts");
    };
    let done = scene.tell("talker", AgentVerb::Abort, json!({})).await?;
    assert_eq!(done["state"], "idle");
    let Some(Ok(Event::TurnEnd(end))) = scene.recorder.answered(&hung.prompt_id).await?.event()
    else {
        panic!()
    };
    assert_eq!(end.outcome, TurnOutcome::Aborted);
    assert!(
        !scene
            .log_of("talker")
            .await?
            .iter()
            .any(|event| matches!(event, Event::Compacted(_)))
    );
    scene.end().await
}
