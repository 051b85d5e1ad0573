//! Work as tasks of the protocol.

use super::*;

impl Served {
    /// Returns a client that declares tasks, and that can put a question to its user.
    fn tasked(&self, front: usize) -> McpClient {
        McpClient {
            capabilities: json!({
                "elicitation": {"form": {}},
                "extensions": {"io.modelcontextprotocol/tasks": {}},
            }),
            ..self.client(front, NEW)
        }
    }
}

impl McpClient {
    async fn begin(&self, arguments: Value) -> String {
        let task = self.call("run_team", arguments).await;
        assert_eq!(
            (&task["resultType"], &task["status"]),
            (&json!("task"), &json!("working"))
        );
        task["taskId"].as_str().unwrap().to_owned()
    }

    /// Waits until a task has this status.
    async fn reaches(&self, task: &str, status: &str) -> Value {
        let ends = tokio::time::Instant::now() + PATIENCE;
        loop {
            let found = self.ask("tasks/get", json!({"taskId": task})).await;
            let found = found["result"].clone();
            if found["status"] == status {
                assert_eq!(found["taskId"], task);
                return found;
            }
            assert_eq!(found["status"], "working", "{found}");
            assert!(tokio::time::Instant::now() < ends, "{found}");
            tokio::time::sleep(PACE).await;
        }
    }
}

#[tokio::test]
async fn task_is_followed_at_any_front() {
    let served = Served::start(ScriptedModel::new().pace(PACE).text(STORY)).await;
    let task = served
        .tasked(0)
        .begin(json!({"prompt": "Tell a story."}))
        .await;
    let done = served.tasked(1).reaches(&task, "completed").await;
    let result = &done["result"];
    assert_eq!(result["structuredContent"]["answer"], STORY, "{done}");
    assert!(
        done["createdAt"].as_str() <= done["lastUpdatedAt"].as_str(),
        "{done}"
    );
    // The tools know the same work.
    let session = task.split('.').next().unwrap();
    let work = served
        .client(0, OLD)
        .work("status", json!({"session": session}))
        .await;
    assert_eq!(work["answer"], STORY);
    // Without the capability a client gets the result of the tool.
    let plain = served
        .client(0, NEW)
        .ask("tasks/get", json!({"taskId": task}))
        .await;
    assert_eq!(plain["error"]["code"], -32_021, "{plain}");
}

#[tokio::test]
async fn task_that_needs_input_gets_it_from_the_user() {
    let model = ScriptedModel::new().call("paint", json!({"colour": "red"}));
    let served = Served::start(model.text("Painted.")).await;
    let client = served.tasked(0);
    let task = client
        .begin(json!({"prompt": "Paint.", "team": "asker"}))
        .await;
    let asked = client.reaches(&task, "input_required").await;
    let requests = asked["inputRequests"].as_object().unwrap();
    let (key, form) = requests.iter().next().unwrap();
    assert_eq!(form["method"], "elicitation/create", "{asked}");
    assert!(
        form["params"]["message"]
            .as_str()
            .unwrap()
            .contains("paint"),
        "{asked}"
    );
    // A client that cannot ask its user is told of the tool.
    let mute = McpClient {
        capabilities: json!({"extensions": {"io.modelcontextprotocol/tasks": {}}}),
        ..served.tasked(1)
    };
    let told = mute.reaches(&task, "input_required").await;
    assert_eq!(told["inputRequests"], json!({}), "{told}");
    assert!(
        told["statusMessage"].as_str().unwrap().contains("`answer`"),
        "{told}"
    );
    let answer = json!({"action": "accept", "content": {"decision": "allow"}});
    let responses = json!({key: answer, "other:1": {"action": "decline"}});
    let update = json!({"taskId": task, "inputResponses": responses});
    let updated = served.tasked(1).ask("tasks/update", update).await;
    assert!(updated["result"].is_object(), "{updated}");
    let done = client.reaches(&task, "completed").await;
    assert_eq!(done["result"]["structuredContent"]["answer"], "Painted.");
}

#[tokio::test]
async fn task_is_cancelled() {
    let served = Served::start(ScriptedModel::new().pace(PACE * 20).text(STORY)).await;
    let client = served.tasked(0);
    let task = client.begin(json!({"prompt": "Tell a story."})).await;
    let cancelled = served
        .tasked(1)
        .ask("tasks/cancel", json!({"taskId": task}))
        .await;
    assert!(cancelled["result"].is_object(), "{cancelled}");
    client.reaches(&task, "cancelled").await;
    // A repetition is harmless.
    let again = client.ask("tasks/cancel", json!({"taskId": task})).await;
    assert!(again["result"].is_object(), "{again}");
    client.reaches(&task, "cancelled").await;
}

#[tokio::test]
async fn task_that_does_not_exist_is_refused() {
    let served = Served::with(ScriptedModel::new(), keys()).await;
    let client = McpClient {
        key: Some("ann"),
        ..served.tasked(0)
    };
    for task in [
        "",
        "..",
        "../x.y.1",
        "a.b",
        "a.*.1",
        "missing.prompt.1",
        "a.b.99999999999999",
    ] {
        for (method, more) in [
            ("get", json!({})),
            ("cancel", json!({})),
            ("update", json!({})),
        ] {
            let mut params = json!({"taskId": task});
            if method == "update" {
                params["inputResponses"] = more;
            }
            let answer = client.ask(&format!("tasks/{method}"), params).await;
            let code = answer["error"]["code"].as_i64();
            assert_eq!(code, Some(-32_602), "{method} {task}: {answer}");
        }
    }
    let viewer = McpClient {
        key: Some("viewer"),
        ..client
    };
    let refused = viewer.ask("tasks/cancel", json!({"taskId": "a.b.1"})).await;
    assert!(
        refused["error"]["message"]
            .as_str()
            .unwrap()
            .contains("needs `use`"),
        "{refused}"
    );
}
