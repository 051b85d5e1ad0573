use planck_common::{AgentId, CallId, InputId, SessionId, usage::Usage};

use super::*;
use crate::{
    openai::{
        history::LoggedTurn,
        segment::{Beginning, EndKind, PiecePlace, SegmentEnd, SegmentPieceKind},
    },
    turn::Until,
};

fn writer() -> ResponseWriter {
    let session = SessionId::parse("s").unwrap();
    let opened = opening::OpenedResponse {
        id: ResponseId {
            session,
            place: 0,
            after: None,
        },
        head: 0,
        agent: AgentId::parse("a").unwrap(),
        input: InputId::parse("i").unwrap(),
        beginning: Beginning::Turn,
        asked: None,
        model: "m".into(),
        is_task: false,
        names: Vec::new(),
        until: Until::default(),
        warnings: Vec::new(),
    };
    ResponseWriter::new(&opened, 0, Echo::default())
}

fn text(stage: u64, end: usize, text: &str) -> SegmentEvent {
    SegmentEvent::Piece {
        kind: SegmentPieceKind::Text,
        place: PiecePlace {
            stage,
            part: 0,
            end,
        },
        text: text.into(),
    }
}

fn end(stage: u64, how: EndKind) -> SegmentEvent {
    let usage = Usage::default();
    SegmentEvent::End(SegmentEnd { how, stage, usage })
}

fn written(events: Vec<SegmentEvent>) -> (Vec<NumberedEvent>, Value) {
    let mut writer = writer();
    let mut out = writer.first();
    for event in events {
        out.extend(writer.write(event));
    }
    (out, serde_json::to_value(writer.response()).unwrap())
}

#[test]
fn request_that_is_made_again_has_a_new_item() {
    let again = vec![
        text(2, 5, "Hello"),
        SegmentEvent::Saved,
        end(3, EndKind::Done),
    ];
    let mut live = vec![text(1, 2, "He"), text(1, 3, "y"), SegmentEvent::Void];
    live.extend(again.clone());
    let (live, response) = written(live);
    let (replayed, same) = written(again);
    assert!(live.is_sorted_by(|a, b| a.number < b.number));
    let given_up = live
        .iter()
        .find(|event| event.event["item"]["status"] == "incomplete");
    assert_eq!(given_up.unwrap().event["item"]["content"][0]["text"], "Hey");
    let added = |event: &&NumberedEvent| event.event["type"] == "response.output_item.added";
    let indices = |events: &[NumberedEvent]| -> Vec<Value> {
        let added = events.iter().filter(added);
        added
            .map(|event| event.event["output_index"].clone())
            .collect()
    };
    assert_eq!(
        (indices(&live), indices(&replayed)),
        (vec![0.into(), 1.into()], vec![0.into()])
    );
    // The log has only the second try, whose events have the same numbers.
    let numbers =
        |events: &[NumberedEvent]| events.iter().map(|event| event.number).collect::<Vec<_>>();
    assert!(numbers(&live).ends_with(&numbers(&replayed)[2..]));
    assert_eq!(response, same);
    assert_eq!(response["output"].as_array().unwrap().len(), 1);
}

#[test]
fn end_of_a_turn_is_the_status_of_its_response() {
    let failed = EndKind::Failed {
        code: "provider".into(),
        reason: "no luck".into(),
    };
    for (how, status, kind) in [
        (EndKind::Done, "completed", "response.completed"),
        (EndKind::Called, "completed", "response.completed"),
        (EndKind::Cut, "incomplete", "response.incomplete"),
        (EndKind::Refused, "incomplete", "response.incomplete"),
        (EndKind::Aborted, "cancelled", "response.incomplete"),
        (failed, "failed", "response.failed"),
    ] {
        let (events, response) = written(vec![text(1, 1, "a"), end(1, how)]);
        assert_eq!(response["status"], status);
        assert_eq!(events.last().unwrap().event["type"], kind);
    }
}

#[test]
fn text_before_calls_is_an_item_before_theirs() {
    let call = |id: &str| SegmentEvent::Called {
        stage: 2,
        call_id: CallId::parse(id).unwrap(),
        name: "f".into(),
        args: "{}".into(),
    };
    let (events, response) = written(vec![
        text(1, 1, "a"),
        SegmentEvent::Saved,
        call("c1"),
        call("c2"),
        end(2, EndKind::Called),
    ]);
    assert!(events.is_sorted_by(|a, b| a.number < b.number));
    let items = response["output"].as_array().unwrap();
    let calls: Vec<_> = items.iter().map(|item| item["call_id"].as_str()).collect();
    assert_eq!(calls, [None, Some("call_s_0_c1"), Some("call_s_0_c2")]);
}

#[test]
fn client_gets_the_rest_of_a_piece() {
    let (events, _) = written(vec![text(1, 5, "Grüße"), text(1, 6, "!")]);
    let delta = events
        .iter()
        .find(|event| event.event["delta"] == "Grüße")
        .unwrap();
    for (missing, expected) in [
        (0, None),
        (1, Some("e")),
        (3, Some("üße")),
        (6, Some("Grüße")),
    ] {
        let rest = rest(delta.clone(), Some(delta.number - missing));
        let text = rest.map(|rest| rest.event["delta"].as_str().unwrap().to_owned());
        assert_eq!(text.as_deref(), expected, "{missing}");
    }
}

fn turns(starts: &[Seq]) -> LoggedTurns {
    let turn = |start: &Seq| LoggedTurn {
        place: start - 1,
        start: *start,
        input: InputId::parse("i").unwrap(),
        message: Some(start + 1),
        asked: String::new(),
        said: String::new(),
        latest: String::new(),
        is_over: true,
    };
    LoggedTurns {
        turns: starts.iter().map(turn).collect(),
        ..LoggedTurns::default()
    }
}

#[test]
fn only_the_latest_response_is_deleted() {
    use Deletion::{Rewind, Session};
    for (place, is_own, role, starts, expected) in [
        (0, true, Role::Operate, &[3][..], Some(Session)),
        (0, true, Role::Use, &[3], Some(Rewind(4))),
        (0, false, Role::Operate, &[3], Some(Rewind(4))),
        (3, true, Role::Operate, &[7], Some(Rewind(8))),
        (0, true, Role::Operate, &[3, 7], None),
    ] {
        let session = KnownSession {
            id: SessionId::parse("s").unwrap(),
            head: 9,
            agent: AgentId::parse("a").unwrap(),
            model: "planck".into(),
            is_own,
            has_waits: false,
            names: Vec::new(),
        };
        let id = ResponseId {
            session: session.id.clone(),
            place,
            after: None,
        };
        let decided = deletion(&id, &session, &turns(starts), role);
        assert_eq!(decided.ok(), expected, "{place} {is_own} {role:?}");
    }
}
