//! Random turns, whose events are lost, doubled and late on their way.

use proptest::prelude::*;

use super::*;

/// The steps that a client has put together: the texts of each saved step, and the calls.
#[derive(Debug, Default, PartialEq)]
struct Put {
    steps: Vec<Vec<(bool, String)>>,
    calls: Vec<String>,
    open: Vec<(bool, String)>,
}

impl Put {
    fn add(&mut self, event: &TurnEvent) {
        match event {
            TurnEvent::StepStarted => assert!(self.open.is_empty(), "a step is open"),
            TurnEvent::Text { part, text } => self.piece(*part, true, text),
            TurnEvent::Reasoning { part, text } => self.piece(*part, false, text),
            TurnEvent::StepReset => self.open.clear(),
            TurnEvent::StepEnded { .. } => self.steps.push(std::mem::take(&mut self.open)),
            TurnEvent::ToolCalled { call_id, .. } => self.calls.push(call_id.to_string()),
            TurnEvent::Started { .. }
            | TurnEvent::ToolStarted { .. }
            | TurnEvent::CaughtUp
            | TurnEvent::ToolProgress { .. }
            | TurnEvent::ToolEnded { .. }
            | TurnEvent::WaitOpened(_)
            | TurnEvent::WaitClosed(_)
            | TurnEvent::Worker(_)
            | TurnEvent::Compacting
            | TurnEvent::Compacted { .. }
            | TurnEvent::Warning { .. }
            | TurnEvent::Ended { .. }
            | TurnEvent::Failed { .. } => {}
        }
    }

    /// Parts come one after the other: a piece continues the last part or begins the next.
    fn piece(&mut self, part: usize, is_text: bool, text: &str) {
        assert!(!text.is_empty());
        if part == self.open.len() {
            self.open.push((is_text, String::new()));
        }
        assert_eq!(part + 1, self.open.len());
        let last = self.open.last_mut().unwrap();
        assert_eq!(last.0, is_text);
        last.1.push_str(text);
    }
}

/// A request of a random turn: its parts, the length of a delta, and how it ends.
type RandomRequest = (Vec<(bool, String)>, usize, RequestEnd);

#[derive(Debug, Clone, Copy, PartialEq)]
enum RequestEnd {
    Saved,
    Retried,
    /// The node dies. A second node goes on.
    Lost,
    /// The node dies after the save.
    SavedAndLost,
}

fn requests() -> impl Strategy<Value = Vec<RandomRequest>> {
    let parts = prop::collection::vec((any::<bool>(), "[a-cäö🦀]{0,9}"), 0..4);
    let end = prop_oneof![
        4 => Just(RequestEnd::Saved), 1 => Just(RequestEnd::Retried),
        1 => Just(RequestEnd::Lost), 1 => Just(RequestEnd::SavedAndLost),
    ];
    prop::collection::vec((parts, 1..5_usize, end), 1..6)
}

/// Returns the events of a turn, and what a client must put together from them.
fn play(requests: &[RandomRequest]) -> (Vec<FollowEvent>, Put) {
    let (mut rows, mut put, mut epoch) = (vec![turn_start(1, "p")], Put::default(), 1);
    for (at, (parts, length, end)) in requests.iter().enumerate() {
        let place = |epoch| (epoch, 1, u32::try_from(at).unwrap() + 1);
        for (part, (is_text, text)) in parts.iter().enumerate() {
            let kind = if *is_text {
                "text_delta"
            } else {
                "thinking_delta"
            };
            let chars: Vec<char> = text.chars().collect();
            for (piece, chars) in chars.chunks(*length).enumerate() {
                let text: String = chars.iter().collect();
                let data = json!({"text": text, "part": part, "offset": piece * length});
                rows.push((kind, ("lead", place(epoch), data)));
            }
        }
        if matches!(end, RequestEnd::Saved | RequestEnd::SavedAndLost) {
            let id = format!("c{at}");
            let kind = |is_text| if is_text { "text" } else { "thinking" };
            let parts = parts.iter().filter(|(_, text)| !text.is_empty());
            put.steps.push(parts.clone().cloned().collect());
            let parts = parts.map(|(is_text, text)| json!({"type": kind(*is_text), "text": text}));
            let content: Vec<Value> = parts.chain([call(&id)]).collect();
            put.calls.push(id);
            let message = json!({"role": "assistant", "content": content});
            rows.push((
                "message",
                ("lead", place(epoch), json!({"message": message})),
            ));
            let end = json!({"call_id": format!("c{at}"), "id": "x", "name": "bash",
                "result": "", "error": false, "duration_ms": 1});
            rows.push(("tool_end", ("lead", place(epoch), end)));
        }
        if *end == RequestEnd::Retried {
            let data = json!({"attempt": 2, "delay_ms": 1, "reason": "r"});
            rows.push(("retry", ("lead", place(epoch), data)));
        }
        if matches!(end, RequestEnd::Lost | RequestEnd::SavedAndLost) {
            epoch += 1;
            if at % 2 == 0 {
                let data = json!({"from_node": null, "reason": "node_dead"});
                rows.push(("session_resumed", ("lead", place(epoch), data)));
            }
        }
    }
    let (kind, (agent, (_, turn, request), data)) = turn_end(1);
    rows.push((kind, (agent, (epoch, turn, request), data)));
    (log(&rows), put)
}

/// The fate of an event on its way.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Passed,
    Lost,
    Doubled,
    /// A durable event is late, so that later pieces overtake it.
    Late(usize),
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        6 => Just(Fate::Passed), 1 => Just(Fate::Lost), 1 => Just(Fate::Doubled),
        1 => (1..9_usize).prop_map(Fate::Late),
    ];
    prop::collection::vec(fate, 60)
}

/// Returns the events as they arrive. Durable events keep their order and are never lost.
fn deliver(items: &[FollowEvent], fates: &[Fate], joined: usize) -> Vec<FollowEvent> {
    let mut arrived: Vec<(usize, FollowEvent)> = Vec::new();
    let mut earliest = 0;
    for (at, item) in items.iter().enumerate() {
        let fate = fates[at % fates.len()];
        if matches!(item, FollowEvent::Durable(_)) {
            let delay = if let Fate::Late(delay) = fate {
                delay
            } else {
                0
            };
            earliest = earliest.max(at + delay);
            arrived.push((earliest, item.clone()));
        } else if at >= joined && !matches!(fate, Fate::Lost) {
            arrived.push((at, item.clone()));
        }
        if matches!(fate, Fate::Doubled) && at >= joined {
            arrived.push((earliest.max(at), item.clone()));
        }
    }
    arrived.push((joined.min(items.len()), FollowEvent::CaughtUp));
    arrived.sort_by_key(|(at, _)| *at);
    arrived.into_iter().map(|(_, item)| item).collect()
}

proptest! {
    #[test]
    fn text_that_was_put_together_equals_the_saved_messages(
        requests in requests(), fates in fates(), joined in 0..80_usize,
    ) {
        let (items, expected) = play(&requests);
        let mut reader = reader(prompt("p"));
        let mut put = Put::default();
        let mut ends = 0;
        for item in deliver(&items, &fates, joined) {
            for event in reader.take(&item) {
                if matches!(event, TurnEvent::CaughtUp) {
                    continue;
                }
                prop_assert_eq!(ends, 0, "an event after the end");
                put.add(&event);
                ends += usize::from(matches!(event, TurnEvent::Ended { .. }));
            }
        }
        prop_assert_eq!(ends, 1);
        prop_assert_eq!(put, expected);
    }

    #[test]
    fn reader_along_the_whole_turn_resets_only_failed_requests(requests in requests()) {
        let (items, _) = play(&requests);
        let failed = requests.iter().filter(|(parts, _, end)| {
            let is_failed = matches!(end, RequestEnd::Retried | RequestEnd::Lost);
            is_failed && parts.iter().any(|(_, text)| !text.is_empty())
        });
        let mut reader = reader(prompt("p"));
        reader.take(&FollowEvent::CaughtUp);
        let resets = take(&mut reader, &items)
            .iter()
            .filter(|event| matches!(event, TurnEvent::StepReset))
            .count();
        prop_assert_eq!(resets, failed.count());
    }
}
