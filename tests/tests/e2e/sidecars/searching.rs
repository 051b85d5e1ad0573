//! An agent that has more tools than its requests list.

use anyhow::Result;
use planck_common::{command::AgentVerb, event::Event};
use planck_scripted_model::{Reply, Script};
use planck_sidecar::{Sidecar, Tool};
use planck_tests::world::{Backend, World};
use serde_json::{Value, json};

use super::serving::{Serving, found, team_with};
use crate::teams::scene::{Scene, by, member};

const ACTIONS: [&str; 8] = [
    "create", "delete", "update", "send", "list", "export", "archive", "share",
];
const THINGS: [&str; 8] = [
    "invoice", "customer", "parcel", "meeting", "ticket", "contract", "photo", "recipe",
];

/// The name of the sidecar.
const OFFICE: &str = "office";

/// Returns the names of the sidecar's 64 tools, such as `send_invoice`.
fn names() -> Vec<String> {
    let of = |action: &str| THINGS.map(|thing| format!("{action}_{thing}"));
    ACTIONS.iter().flat_map(|action| of(action)).collect()
}

/// Returns a sidecar whose tools say their names.
fn office() -> Sidecar {
    let sidecar = Sidecar::new(OFFICE, "1.0.0").unwrap();
    names().into_iter().fold(sidecar, |sidecar, name| {
        let (action, thing) = name.split_once('_').unwrap();
        let about = format!("Can {action} one {thing} of the office.");
        let parameters = json!({
            "type": "object",
            "properties": {"number": {"type": "integer", "description": format!("Which {thing}")}},
        });
        let said = name.clone();
        let answer = move |_, _| {
            let said = said.clone();
            async move { Ok(format!("did {said}")) }
        };
        sidecar.tool(
            Tool::with_parameters(&name, about, parameters.as_object().unwrap(), answer).pure(),
        )
    })
}

/// Returns a member that has `read` and all tools of the sidecar. It also names the search, as a person
/// does who copies the tools of an agent.
fn talker() -> Value {
    let names = names();
    let tools: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .chain(["read", "tool_search"])
        .collect();
    member("talker", &tools)
}

/// Returns the tools that each of the model's requests lists.
fn listed(world: &World) -> Vec<Vec<String>> {
    let requests = world.model.requests().into_iter();
    requests
        .filter_map(|request| Some(request.asked?.tools))
        .collect()
}

async fn prompt(scene: &mut Scene, text: &str) -> Result<String> {
    let session = &scene.started.session_id;
    let prompted = scene.world.caller.prompt(session, text).await?;
    scene.started.prompt_id = Some(prompted.prompt_id);
    scene.answer().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_finds_a_tool_and_keeps_it_on_the_next_node() -> Result<()> {
    let search = json!({"query": "send an invoice", "limit": 2});
    let script = Script::new()
        .rounds(
            by("talker").user("bill them"),
            [
                Reply::call("tool_search", search),
                Reply::call("send_invoice", json!({"number": 7})),
                Reply::text("{{result:send_invoice}}"),
            ],
        )
        .rounds(
            by("talker").user("once more"),
            [
                Reply::call("share_photo", json!({})),
                Reply::call("shred_photo", json!({})),
                Reply::text("{{result:shred_photo}}"),
            ],
        );
    let world = World::start(Backend::Sqlite, script).await?;
    let serving = Serving::start(&world, office());
    let mut scene = team_with(world, OFFICE, &[talker()], "bill them").await?;
    assert_eq!(scene.answer().await?, "did send_invoice");
    let lists = listed(&scene.world);
    assert_eq!(lists[0], ["read", "tool_search"]);
    assert_eq!(lists[1..].len(), 2, "{lists:?}");
    for list in &lists[1..] {
        assert!(list.contains(&"send_invoice".to_owned()), "{list:?}");
        assert_eq!(list.len(), 4, "two tools were found: {list:?}");
    }
    let before = lists[2].clone();

    scene.again().await?;
    found(&scene.world, OFFICE, 1).await?;
    let told = prompt(&mut scene, "once more").await?;
    assert!(
        told.contains("did you mean `share_photo`? of your 66 tools"),
        "{told}"
    );
    assert!(told.contains("`tool_search`") && told.len() < 300, "{told}");
    let lists = listed(&scene.world);
    assert_eq!(lists[3], before, "the next node lists the same tools");
    let shared = [before.as_slice(), &["share_photo".to_owned()]].concat();
    let mut now = lists[4].clone();
    now.sort_by_key(|name| shared.iter().position(|known| known == name));
    assert_eq!(now, shared, "a tool that was called is listed");

    let info = scene.tell("talker", AgentVerb::Info, json!({})).await?;
    assert_eq!(info["tools"].as_array().map(Vec::len), Some(66), "{info}");
    let log = scene.log_of("talker").await?;
    let warned = log.iter().any(|event| matches!(event, Event::Warning(_)));
    assert!(!warned, "{log:?}");
    scene.end().await?;
    serving.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn all_tools_are_listed_if_they_are_few_enough() -> Result<()> {
    for (of_node, of_member, count) in [("65", None, 65), ("65", Some(64), 2)] {
        let script = Script::new().always(Reply::text("hello"));
        let world = World::start(Backend::Sqlite, script).await?;
        let serving = Serving::start(&world, office());
        let node = world.node_with(&[("PLANCK_TOOLS_LISTED", of_node)]).await?;
        found(&world, OFFICE, 1).await?;
        let mut member = talker();
        member["listed_tools"] = json!(of_member);
        let scene = Scene::start_beside(world, node, &[member], "hi").await?;
        assert_eq!(scene.answer().await?, "hello");
        assert_eq!(
            listed(&scene.world)[0].len(),
            count,
            "{of_node} {of_member:?}"
        );
        scene.end().await?;
        serving.end().await?;
    }
    Ok(())
}
