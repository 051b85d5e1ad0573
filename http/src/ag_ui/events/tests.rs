use planck_common::{AgentId, usage::Usage};
use serde_json::value::RawValue;

use super::*;

fn id(id: &str) -> CallId {
    CallId::parse(id).unwrap()
}

fn encoder() -> RunEncoder {
    let run = json!({"threadId": "t", "runId": "r", "parentRunId": "p"});
    RunEncoder::new(SessionId::parse("s").unwrap(), run)
}

fn started() -> TurnEvent {
    TurnEvent::Started {
        turn: 3,
        has_shape: false,
    }
}

fn text(part: usize, text: &str) -> TurnEvent {
    let text = text.into();
    TurnEvent::Text { part, text }
}

fn reasoning(part: usize, text: &str) -> TurnEvent {
    let text = text.into();
    TurnEvent::Reasoning { part, text }
}

const STEP: TurnEvent = TurnEvent::StepStarted;
const STEP_ENDED: TurnEvent = TurnEvent::StepEnded { seq: 9 };

fn called(call: &str) -> TurnEvent {
    TurnEvent::ToolCalled {
        call_id: id(call),
        name: "read".into(),
        args: RawValue::from_string(r#"{"a":1}"#.into()).unwrap(),
        invalid: None,
    }
}

fn result(call: &str, result: &str) -> TurnEvent {
    TurnEvent::ToolEnded {
        call_id: id(call),
        result: result.into(),
        is_error: false,
    }
}

fn wait(call: &str, kind: &str) -> TurnEvent {
    let wait = json!({"id": call, "kind": kind, "title": "t", "request": {}, "digest": "d"});
    TurnEvent::WaitOpened(serde_json::from_value(wait).unwrap())
}

fn closed(call: &str, decision: &str) -> TurnEvent {
    let wait = json!({"id": call, "decision": decision});
    TurnEvent::WaitClosed(serde_json::from_value(wait).unwrap())
}

fn ended(outcome: TurnOutcome) -> TurnEvent {
    TurnEvent::Ended {
        output: None,
        seq: 12,
        outcome,
        refused: false,
        limit: None,
        usage: Usage::default(),
    }
}

fn worker(state: WorkerState) -> TurnEvent {
    TurnEvent::Worker(WorkerUpdate {
        id: AgentId::parse("w").unwrap(),
        name: "ann".into(),
        state,
        text: None,
        waits: Vec::new(),
    })
}

/// Returns the events: the type, and what tells it from others of the type.
fn written(encoder: &mut RunEncoder, events: Vec<TurnEvent>) -> Vec<String> {
    let events = events.into_iter().flat_map(|event| encoder.take(event));
    let shown = events.map(|event| {
        let keys = [
            "messageId",
            "toolCallId",
            "parentMessageId",
            "delta",
            "content",
        ];
        let more = keys.iter().filter_map(|key| event.get(*key));
        let kind = event["type"].as_str().unwrap().to_owned();
        let shown = more.fold(kind, |text, value| {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            format!("{text} {value}")
        });
        match event.get("outcome") {
            Some(outcome) => format!("{shown} {}", outcome["type"].as_str().unwrap()),
            None => shown,
        }
    });
    shown.collect()
}

#[track_caller]
fn check(events: Vec<TurnEvent>, expected: &[&str]) {
    assert_eq!(written(&mut encoder(), events), expected);
}

#[test]
fn each_part_of_a_step_is_a_message_and_calls_belong_to_the_last_text() {
    check(
        vec![
            started(),
            STEP,
            reasoning(0, "Hm"),
            text(1, "Yes"),
            text(1, "."),
            called("c1"),
            STEP_ENDED,
            result("c1", "one"),
            STEP,
            called("c2"),
            STEP_ENDED,
            result("c2", "two"),
            ended(TurnOutcome::Completed),
        ],
        &[
            "REASONING_START s-3-1-0",
            "REASONING_MESSAGE_START s-3-1-0",
            "REASONING_MESSAGE_CONTENT s-3-1-0 Hm",
            "REASONING_MESSAGE_END s-3-1-0",
            "REASONING_END s-3-1-0",
            "TEXT_MESSAGE_START s-3-1-1",
            "TEXT_MESSAGE_CONTENT s-3-1-1 Yes",
            "TEXT_MESSAGE_CONTENT s-3-1-1 .",
            "TEXT_MESSAGE_END s-3-1-1",
            "TOOL_CALL_START c1 s-3-1-1",
            "TOOL_CALL_ARGS c1 {\"a\":1}",
            "TOOL_CALL_END c1",
            "TOOL_CALL_RESULT c1-result c1 one",
            "TOOL_CALL_START c2 s-3-2",
            "TOOL_CALL_ARGS c2 {\"a\":1}",
            "TOOL_CALL_END c2",
            "TOOL_CALL_RESULT c2-result c2 two",
            "RUN_FINISHED success",
        ],
    );
}

#[test]
fn run_ends_when_all_calls_wait_and_not_before() {
    let mut run = encoder();
    let calls = vec![started(), STEP, called("c1"), called("c2"), STEP_ENDED];
    let _ = written(&mut run, calls);
    let waits = vec![wait("c1", "approval"), TurnEvent::CaughtUp];
    assert_eq!(written(&mut run, waits), [""; 0]);
    let events = run.take(wait("c2", "client_tool"));
    let [finished] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!(
        finished["outcome"]["interrupts"],
        json!([{"id": "c1:d", "reason": "tool_call", "message": "t", "toolCallId": "c1",
            "responseSchema": {"type": "object", "required": ["approved"], "properties": {
                "approved": {"type": "boolean"}, "reason": {"type": "string"},
                "editedArgs": {"type": "object"}}},
            "metadata": {"planck": {"id": "c1", "kind": "approval", "title": "t", "request": {},
                "digest": "d"}}}])
    );
    assert!(run.is_over());
    assert_eq!(finished.get("parentRunId"), None);
}

#[test]
fn tool_of_the_client_and_a_budget_end_a_run_differently() {
    let pending = |kind: &str| {
        let mut run = encoder();
        let mut events = vec![started(), TurnEvent::CaughtUp, STEP];
        events.extend((kind == "client_tool").then(|| called("c1")));
        let _ = written(&mut run, events);
        run.take(wait("c1", kind)).remove(0)["outcome"].clone()
    };
    let own = json!({"type": "success", "pendingToolCallIds": ["c1"]});
    assert_eq!(pending("client_tool"), own);
    let budget = pending("budget");
    assert_eq!(budget["interrupts"][0]["reason"], "planck:budget");
    assert_eq!(budget["interrupts"][0].get("toolCallId"), None);
}

#[test]
fn answered_run_goes_on_after_the_wait() {
    let events = || {
        vec![
            started(),
            STEP,
            text(0, "I write."),
            called("c1"),
            called("c2"),
            STEP_ENDED,
            wait("c1", "approval"),
            wait("c2", "approval"),
            TurnEvent::CaughtUp,
            closed("c1", "allow"),
            result("c1", "one"),
            // This wait is answered too, so the run does not end here.
            closed("c2", "deny"),
            result("c2", "two"),
            ended(TurnOutcome::Aborted),
        ]
    };
    let answered = || HashSet::from([id("c1"), id("c2")]);
    let known = |messages: Value| {
        let body = json!({"threadId": "t", "runId": "r", "messages": messages});
        let body: super::super::RunInput = serde_json::from_value(body).unwrap();
        body.read().unwrap().known
    };
    let rest = [
        "TOOL_CALL_RESULT c1-result c1 one",
        "TOOL_CALL_RESULT c2-result c2 two",
        "RUN_FINISHED cancelled",
    ];
    let call = |id: &str, arguments: &str| {
        let function = json!({"name": "read", "arguments": arguments});
        json!({"id": id, "type": "function", "function": function})
    };
    let said = |text: &str, calls: Value| {
        json!([{"id": "s-3-1-0", "role": "assistant", "content": text,
        "toolCalls": calls}])
    };
    let calls = || json!([call("c1", "{\"a\":1}"), call("c2", "{\"a\":1}")]);
    let has = said("I write.", calls());
    let mut run = encoder()
        .folding(MessageFold::default())
        .knowing(known(has), answered());
    assert_eq!(written(&mut run, events()), rest);
    // A client that lacks a part gets the messages first.
    for has in [
        said("I wr", calls()),
        said("I write.", json!([call("c1", "{\"a\":1}")])),
        said("I write.", json!([call("c1", "{\"a\":1}"), call("c2", "")])),
        json!([]),
    ] {
        let mut run = encoder()
            .folding(MessageFold::default())
            .knowing(known(has), answered());
        let shown = written(&mut run, events());
        assert_eq!(shown[0], "MESSAGES_SNAPSHOT");
        assert_eq!(shown[1..], rest);
    }
}

#[test]
fn result_that_the_client_has_sent_is_not_sent_back() {
    let body = json!({"threadId": "t", "runId": "r", "messages": [
        {"id": "s-3-1", "role": "assistant", "toolCalls": [{"id": "c1", "type": "function",
            "function": {"name": "read", "arguments": "{\"a\":1}"}}]},
        {"id": "x", "role": "tool", "toolCallId": "c1", "content": "1"}]});
    let body: super::super::RunInput = serde_json::from_value(body).unwrap();
    let known = body.read().unwrap().known;
    let mut run = encoder()
        .folding(MessageFold::default())
        .knowing(known, HashSet::from([id("c1")]));
    let events = vec![
        started(),
        STEP,
        called("c1"),
        STEP_ENDED,
        wait("c1", "client_tool"),
        closed("c1", "answer"),
        result("c1", "1"),
        ended(TurnOutcome::Completed),
    ];
    assert_eq!(written(&mut run, events), ["RUN_FINISHED success"]);
}

#[test]
fn void_step_ends_the_events_if_the_client_has_seen_it() {
    let mut run = encoder();
    let void = vec![started(), STEP, TurnEvent::StepReset, text(0, "One")];
    let shown = written(&mut run, void);
    assert_eq!(
        shown,
        [
            "TEXT_MESSAGE_START s-3-1-0",
            "TEXT_MESSAGE_CONTENT s-3-1-0 One"
        ]
    );
    assert!(!run.is_void());
    let shown = written(&mut run, vec![TurnEvent::StepReset]);
    assert_eq!(shown, ["TEXT_MESSAGE_END s-3-1-0"]);
    assert!(run.is_void());
}

#[test]
fn client_with_a_void_step_gets_the_messages_and_forgets_the_reasoning() {
    let prompt = json!({"id": "m1", "role": "user", "content": "Hi"});
    let body = json!({"threadId": "t", "runId": "r", "messages": [prompt]});
    let body: super::super::RunInput = serde_json::from_value(body).unwrap();
    let mut run = encoder().knowing(body.read().unwrap().known, HashSet::new());
    let void = vec![started(), STEP, reasoning(0, "No"), TurnEvent::StepReset];
    let _ = written(&mut run, void);
    assert!(run.is_void());
    let mut known = run.into_known();
    let messages = || MessageFold::of(vec![prompt.clone()]);
    assert_eq!(messages().snapshot(&known), None);
    known.forget();
    let empty = json!({"id": "s-3-1-0", "role": "reasoning", "content": ""});
    assert_eq!(
        messages().snapshot(&known),
        Some(json!({"type": "MESSAGES_SNAPSHOT", "messages": [prompt, empty]}))
    );
}

#[test]
fn snapshot_has_what_a_client_of_the_events_would_have() {
    let mut run = encoder().folding(MessageFold::of(vec![
        json!({"id": "m1", "role": "user", "content": "Hi"}),
    ]));
    let shown = [
        started(),
        STEP,
        reasoning(0, "void"),
        worker(WorkerState::Working),
        TurnEvent::StepReset,
        reasoning(0, "Hm"),
        reasoning(0, "m."),
        text(1, "Yes."),
        called("c1"),
        STEP_ENDED,
        worker(WorkerState::Idle),
        result("c1", "one"),
        STEP,
        text(0, "Mo"),
        TurnEvent::CaughtUp,
        text(0, "re."),
    ];
    let events: Vec<_> = shown
        .into_iter()
        .flat_map(|event| run.take(event))
        .collect();
    let agent = json!({"id": "w", "name": "ann", "state": "idle", "text": null, "waits": []});
    let function = json!({"name": "read", "arguments": "{\"a\":1}"});
    assert_eq!(
        events[0]["messages"],
        json!([
            {"id": "m1", "role": "user", "content": "Hi"},
            {"id": "s-3-w", "role": "activity", "activityType": "planck.agent", "content": agent},
            {"id": "s-3-1-0", "role": "reasoning", "content": "Hmm."},
            {"id": "s-3-1-1", "role": "assistant", "content": "Yes.",
                "toolCalls": [{"id": "c1", "type": "function", "function": function}]},
            {"id": "c1-result", "role": "tool", "toolCallId": "c1", "content": "one"},
            {"id": "s-3-2-0", "role": "assistant", "content": "Mo"},
        ])
    );
    // The client adds what follows to the message that it has.
    assert_eq!(events[1]["type"], "TEXT_MESSAGE_START");
    assert_eq!(
        (&events[2]["messageId"], &events[2]["delta"]),
        (&json!("s-3-2-0"), &json!("re."))
    );
}

#[test]
fn end_has_the_answer_in_its_shape_and_the_usage() {
    let mut run = encoder();
    let _ = run.take(started());
    let output = RawValue::from_string(r#"{"b":2}"#.into()).unwrap();
    let usage = Usage {
        input_tokens: 1,
        output_tokens: 2,
        cache_read_tokens: 4,
        cache_write_tokens: 8,
        cost_usd: 0.0,
    };
    let events = run.take(TurnEvent::Ended {
        output: Some(output),
        seq: 12,
        outcome: TurnOutcome::Limit,
        refused: false,
        limit: Some("turns".into()),
        usage,
    });
    assert_eq!(
        events,
        [
            json!({"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "result": {"b": 2},
            "outcome": {"type": "success"},
            "usage": [{"inputTokens": 13, "outputTokens": 2, "totalTokens": 15,
                "cachedInputTokens": 4, "cacheWriteInputTokens": 8}],
            "metadata": {"planck": {"session": "s", "turn": 3, "seq": 12, "outcome": "limit",
                "limit": "turns", "refused": false}}})
        ]
    );
}
