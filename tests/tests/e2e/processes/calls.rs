//! The limits of calls: how many run at once, how often an equal call is repeated, and how large a
//! result is.

use std::fs;

use anyhow::Result;
use planck_scripted_model::{Reply, Script, When};
use planck_tests::world::{Backend, World};
use serde_json::json;

use crate::teams::scene::{Scene, by, member};

#[tokio::test(flavor = "multi_thread")]
async fn at_most_16_calls_run_at_once() -> Result<()> {
    let count = "mkdir -p at; own=$(mktemp -p at); ls at | wc -l; sleep 0.4; rm $own";
    let calls = (0..20).fold(Reply::new(), |reply, n| {
        reply.and_call("bash", json!({ "command": format!("true {n}; {count}") }))
    });
    let script = Script::new().rounds(by("agent"), [calls, Reply::text("done")]);
    let scene = Scene::start(script, &[member("agent", &["bash"])], "go").await?;
    scene.answer().await?;
    let ends = scene.results("agent", "bash").await?;
    let most = ends
        .iter()
        .map(|end| end.result.trim().parse::<u32>().unwrap())
        .max();
    assert!(
        ends.len() == 20 && most.is_some_and(|most| (2..=16).contains(&most)),
        "{most:?} at once"
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_call_is_remarked_on_and_then_refused() -> Result<()> {
    let again = Reply::call("bash", json!({ "command": "echo again >> runs" }));
    let script = Script::new()
        .rule(
            When::any().result("call 11 in a row"),
            Reply::text("I give up"),
        )
        .always(again);
    let scene = Scene::start(script, &[member("agent", &["bash"])], "go").await?;
    assert_eq!(scene.answer().await?, "I give up");
    assert_eq!(
        fs::read_to_string(scene.world.dir().join("runs"))?
            .lines()
            .count(),
        9
    );
    let ends = scene.results("agent", "bash").await?;
    let said = |at: usize| ends[at].result.as_str();
    assert_eq!(said(1), "");
    assert!(
        said(2).contains("[this is call 3 in a row of bash with the same arguments"),
        "{}",
        said(2)
    );
    assert!(
        ends[9].error && said(9).starts_with("not run: this is call 10 in a row"),
        "{}",
        said(9)
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn long_and_unreadable_results_are_cut() -> Result<()> {
    let calls = Reply::call("bash", json!({ "command": "yes line | head -n 5000" })).and_call(
        "bash",
        json!({ "command": "head -c 3000 /dev/zero | tr '\\0' '\\377'" }),
    );
    let script = Script::new().rounds(by("agent"), [calls, Reply::text("done")]);
    let scene = Scene::start_on(
        World::start(Backend::Postgres, script).await?,
        &[member("agent", &["bash"])],
        "go",
    )
    .await?;
    scene.answer().await?;
    let mut said: Vec<String> = scene
        .results("agent", "bash")
        .await?
        .into_iter()
        .map(|end| end.result)
        .collect();
    said.sort();
    assert_eq!(said[0], "[binary, 3000 bytes]");
    assert!(said[1].lines().count() == 2001 && said[1].ends_with("[output truncated]"));
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_cut_at_the_configured_size() -> Result<()> {
    let calls = Reply::call("bash", json!({ "command": "seq 3000; seq 3000 >&2" }))
        .and_call("read", json!({ "path": "long" }));
    let lines: String = (1..=3000)
        .map(|n| format!("line {n} of many words\n"))
        .collect();
    for (caps, whole) in [
        (["2000", "50000"], false),
        (["7000", "100000"], true),
        (["7000", "20000"], false),
    ] {
        let script = Script::new().rounds(by("agent"), [calls.clone(), Reply::text("done")]);
        let world = World::start(Backend::Sqlite, script).await?;
        fs::write(world.dir().join("long"), &lines)?;
        let environment = [
            ("PLANCK_TOOLS_MAX_LINES", caps[0]),
            ("PLANCK_TOOLS_MAX_BYTES", caps[1]),
        ];
        let (node, recorder) = (world.node_with(&environment).await?, world.record().await?);
        let start = json!({ "dir": world.dir(), "members": [member("agent", &["bash", "read"])], "prompt": "go" });
        let started = world.caller.start(&start).await?;
        let scene = Scene {
            world,
            node: Some(node),
            recorder,
            started,
        };
        scene.answer().await?;
        for (tool, last) in [("bash", "3000\n"), ("read", "line 3000 of many words\n")] {
            let result = &scene.results("agent", tool).await?[0].result;
            assert_eq!(
                result.ends_with(last),
                whole,
                "{caps:?} {tool}: {} bytes",
                result.len()
            );
            assert_eq!(
                result.ends_with("[output truncated]"),
                !whole,
                "{caps:?} {tool}: {} bytes",
                result.len()
            );
        }
        let asked = scene.world.model.requests()[0].body.to_string();
        let told = format!(
            "At most {} lines or {} bytes are returned",
            caps[0], caps[1]
        );
        assert!(asked.contains(&told), "{told}: {asked}");
        scene.end().await?;
    }
    Ok(())
}
