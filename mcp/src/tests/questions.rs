//! What a server asks a person during a call.

use planck_common::{AgentId, CallId, SessionId, TeamId};
use planck_sidecar::{
    ToolAnswer, ToolQuestion, WaitDecision,
    local::{LocalCall, LocalEnd, LocalTool},
};
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::*;

const ELICIT: &str = "elicitation/create";

/// The tool `slow` of a server.
fn slow(link: Link) -> LocalTool {
    let (_, links) = watch::channel(link);
    LocalTool::new(tool(&offered("slow", ToolEffect::Mutating), &links, None))
}

async fn run(tool: &LocalTool, id: &str, answer: Option<ToolAnswer>) -> Result<LocalEnd, String> {
    let call = LocalCall {
        call_id: CallId::parse(id).unwrap(),
        agent_id: AgentId::mint(),
        session_id: SessionId::mint(),
        team_id: TeamId::mint(),
        epoch: 1,
        args: RawValue::from_string("{}".into()).unwrap().into(),
        answer,
        cancel: CancellationToken::new(),
    };
    timeout(PATIENCE, tool.run(call, |_, _| ())).await.unwrap()
}

fn question(end: Result<LocalEnd, String>) -> ToolQuestion {
    match end {
        Ok(LocalEnd::Question(question)) => question,
        other => panic!("no question: {other:?}"),
    }
}

fn answer(question: ToolQuestion, value: Value) -> Option<ToolAnswer> {
    Some(ToolAnswer {
        decision: WaitDecision::Answer,
        value: Some(value),
        reason: None,
        state: question.state,
    })
}

fn done() -> Value {
    json!({"content": [{"type": "text", "text": "done"}]})
}

fn form() -> Value {
    json!({"message": "Which colour?", "requestedSchema": {
        "type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}})
}

impl FakeServer {
    async fn elicit(&mut self, id: u64) {
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": ELICIT, "params": form()}))
            .await;
    }
}

/// Makes a call during which the server asks. Returns the question, and the call as the server has it.
async fn asked(tool: &LocalTool, server: &mut FakeServer) -> (ToolQuestion, Value) {
    let asking = async {
        let call = server.next("tools/call").await;
        server.elicit(7).await;
        call
    };
    let (end, call) = tokio::join!(run(tool, "c1", None), asking);
    (question(end), call)
}

#[tokio::test]
async fn a_server_that_asks_holds_the_call() {
    let (session, mut server) = FakeServer::open().await;
    let (live, link) = up(&session);
    let tool = slow(link);
    let (question, call) = asked(&tool, &mut server).await;
    assert_eq!(question.message, "Which colour?");
    assert_eq!(question.schema, Some(json!({"type": "string"})));
    assert!(live.is_busy(), "the server is not restarted meanwhile");

    let answering = async {
        let said = server.message().await;
        assert_eq!(said["id"], 7);
        assert_eq!(
            said["result"],
            json!({"action": "accept", "content": {"colour": "red"}})
        );
        server.answer(&call, done()).await;
    };
    let again = run(&tool, "c1", answer(question, json!("red")));
    let (end, ()) = tokio::join!(again, answering);
    assert_eq!(end, Ok(LocalEnd::Answer("done".into())));
    assert!(!live.is_busy());
}

#[tokio::test]
async fn a_call_that_is_not_held_any_more_may_have_taken_effect() {
    let (session, mut server) = FakeServer::open().await;
    let tool = slow(up(&session).1);
    let (asked, _) = asked(&tool, &mut server).await;
    let answer = answer(asked, json!("red"));
    let (other, _server) = FakeServer::open().await;
    let end = run(&slow(up(&other).1), "c1", answer).await;
    let why = end.unwrap_err();
    assert!(
        why.contains("may or may not") && why.contains("that asked has ended"),
        "{why}"
    );
}

#[tokio::test]
async fn a_call_whose_server_is_away_after_the_answer_may_have_taken_effect() {
    let (session, mut server) = FakeServer::open().await;
    let tool = slow(up(&session).1);
    let (asked, _) = asked(&tool, &mut server).await;
    let answer = answer(asked, json!("red"));
    let away = Link::Away {
        why: "it ended: SIGKILL".into(),
        failed_starts: 0,
    };
    let why = run(&slow(away), "c1", answer).await.unwrap_err();
    let is_honest = why.contains("may or may not") && !why.contains("nothing was done");
    assert!(is_honest && why.contains("SIGKILL"), "{why}");
}

#[tokio::test]
async fn a_question_that_may_belong_to_two_calls_is_declined() {
    let (session, mut server) = FakeServer::open().await;
    let tool = slow(up(&session).1);
    let declining = async {
        let calls = [
            server.next("tools/call").await,
            server.next("tools/call").await,
        ];
        server.elicit(7).await;
        let said = server.message().await;
        assert_eq!(said["result"], json!({"action": "decline"}));
        for call in &calls {
            server.answer(call, done()).await;
        }
    };
    let calls = async { tokio::join!(run(&tool, "c1", None), run(&tool, "c2", None)) };
    let (ends, ()) = tokio::join!(calls, declining);
    let done = || Ok(LocalEnd::Answer("done".into()));
    assert_eq!(ends, (done(), done()));
}

#[tokio::test]
async fn a_caller_that_takes_no_questions_declines_them() {
    let (session, mut server) = FakeServer::open().await;
    let harness = sidecar(ToolEffect::Mutating, up(&session).1);
    let declining = async {
        let call = server.next("tools/call").await;
        server.elicit(7).await;
        let said = server.message().await;
        assert_eq!(said["result"], json!({"action": "decline"}));
        server.answer(&call, done()).await;
    };
    let (said, ()) = tokio::join!(harness.call("slow", "{}"), declining);
    assert_eq!(said, Ok("done".into()));
}

#[tokio::test]
async fn a_server_that_wants_the_call_again_gets_it_with_the_answers() {
    let (session, mut server) = FakeServer::open().await;
    let tool = slow(up(&session).1);
    let asking = async {
        let call = server.next("tools/call").await;
        let requests = json!({"colour": {"method": ELICIT, "params": form()}, "folders": {"method": "roots/list"}});
        let wants = json!({"resultType": "input_required", "inputRequests": requests, "requestState": "s1"});
        server.answer(&call, wants).await;
    };
    let (end, ()) = tokio::join!(run(&tool, "c1", None), asking);
    let answer = answer(question(end), json!("red"));
    // Another connection gets the call, as after a failover.
    let (session, mut server) = FakeServer::open().await;
    let tool = slow(up(&session).1);
    let answering = async {
        let call = server.next("tools/call").await;
        let params = &call["params"];
        assert_eq!(params["requestState"], "s1");
        let accepted = json!({"action": "accept", "content": {"colour": "red"}});
        assert_eq!(
            params["inputResponses"],
            json!({"colour": accepted, "folders": {"roots": []}})
        );
        server.answer(&call, done()).await;
    };
    let (end, ()) = tokio::join!(run(&tool, "c1", answer), answering);
    assert_eq!(end, Ok(LocalEnd::Answer("done".into())));
}

#[tokio::test]
async fn a_server_that_wants_a_call_without_end_is_refused() {
    let (session, mut server) = FakeServer::open().await;
    let tool = slow(up(&session).1);
    let wanting = async {
        for round in 0..10 {
            let call = server.next("tools/call").await;
            let wants = json!({"resultType": "input_required", "requestState": round.to_string()});
            server.answer(&call, wants).await;
        }
    };
    let (end, ()) = tokio::join!(run(&tool, "c1", None), wanting);
    let why = end.unwrap_err();
    assert!(why.contains("wanted the call again 10 times"), "{why}");
}
