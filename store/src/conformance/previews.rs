//! Cases for what a list says about its sessions besides their records.

use planck_common::{
    command::{AgentState, ListSessions, SessionRow},
    event::{EventKind, json},
    message::{MessageBody, MessageMetadata, MessageRole, Part},
    usage::Usage,
};
use serde_json::json;

use super::{
    World,
    team::{Team, entry, new_session, turn_end, turn_start, warnings},
};
use crate::preview;
use planck_agent::Entry;

fn said(role: MessageRole, parts: Vec<Part>) -> Entry {
    let body = MessageBody {
        role,
        custom: None,
        content: parts,
        metadata: MessageMetadata::default(),
    };
    entry(EventKind::Message, 1, json(&body))
}

fn asked(text: &str) -> Entry {
    said(MessageRole::User, vec![Part::text(text)])
}

fn answered(text: &str) -> Entry {
    said(MessageRole::Assistant, vec![Part::text(text)])
}

async fn row(team: &Team) -> SessionRow {
    let page = team.store.sessions(ListSessions::default()).await.unwrap();
    let mut rows = page.sessions.into_iter();
    rows.find(|row| row.id == team.session).unwrap()
}

fn texts(row: &SessionRow) -> [Option<&str>; 3] {
    [&row.first_prompt, &row.last_line, &row.failure].map(|text| text.as_deref())
}

pub async fn a_list_says_what_sessions_are_about(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let new = row(&team).await;
    assert_eq!((new.team.as_deref(), new.cost_usd), (None, 0.0));
    assert_eq!(texts(&new), [None; 3], "nothing was said");

    let task = vec![turn_start(1), asked("a task"), answered("a worker")];
    let done = team
        .batch(1, 0, task)
        .with(|save| save.state = AgentState::Idle);
    team.write(done).await;
    let call: Part = serde_json::from_value(
        json!({"type": "tool_call", "id": "x", "call_id": "x", "name": "read",
        "args": {"path": "x"}}),
    )
    .unwrap();
    let entries = vec![
        turn_start(1),
        asked("Count\n the \"words\"\u{fffd}"),
        answered("First line.\n\nLast  line.\n \n"),
        said(MessageRole::Assistant, vec![call]),
        said(MessageRole::User, vec![Part::text("and now?")]),
    ];
    let priced = team.batch(0, 0, entries).with(|save| {
        save.usage = Usage {
            cost_usd: 0.25,
            ..Usage::default()
        }
    });
    let seqs = team.write(priced).await;
    let now = row(&team).await;
    assert_eq!(now.cost_usd, 0.25);
    let first = Some("Count the \"words\"\u{fffd}");
    assert_eq!(texts(&now), [first, Some("Last line."), None]);

    let error =
        json!({"reason": "status\n400", "code": "provider", "retryable": false, "inputs": []});
    let ended = |entries| {
        team.batch(0, seqs[4], entries)
            .with(|save| save.state = AgentState::Idle)
    };
    let failed = ended(vec![entry(EventKind::Error, 1, error.to_string())]);
    team.write(failed).await;
    assert_eq!(
        texts(&row(&team).await),
        [first, Some("Last line."), Some("status 400")]
    );
    team.log(0, vec![turn_start(2)]).await;
    assert_eq!(row(&team).await.failure, None, "another turn began");

    team.store
        .rewind(&team.session, 1, seqs[1], "me")
        .await
        .unwrap();
    let rewound = [None, None, Some("status 400")];
    assert_eq!(
        texts(&row(&team).await),
        rewound,
        "the end of a turn whose beginning is visible stays visible"
    );
}

pub async fn a_list_reads_the_ends_of_logs_only(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let rows = usize::try_from(preview::ROWS).unwrap();
    let mut long = vec![turn_start(1)];
    long.extend(warnings(rows));
    long.extend([asked("late"), answered("early")]);
    long.extend(warnings(rows));
    long.push(turn_end(1));
    team.log(0, long).await;
    assert_eq!(texts(&row(&team).await), [None; 3]);
    let image = "A".repeat(4 * usize::try_from(preview::BODY).unwrap());
    let huge = |text: &str| {
        vec![
            Part::text(text),
            serde_json::from_value(json!({"type": "image", "mime": "image/png", "data": image}))
                .unwrap(),
        ]
    };
    let other = Team::start(world, 1).await;
    other
        .log(
            0,
            vec![
                turn_start(1),
                said(MessageRole::User, huge("See this")),
                said(MessageRole::Assistant, huge("It is long.")),
            ],
        )
        .await;
    assert_eq!(texts(&row(&other).await), [Some("See this"), None, None]);
}

pub async fn a_page_of_sessions_is_bounded_in_bytes(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let workspace = "w".repeat(100_000);
    let mut ids = vec![team.session.clone()];
    for _ in 0..12 {
        let mut session = new_session(1);
        session.spec.workspace.clone_from(&workspace);
        ids.insert(0, session.id.clone());
        team.store.create(session, &team.node).await.unwrap();
    }
    let (mut seen, mut filter, mut pages) = (vec![], ListSessions::default(), 0);
    loop {
        let page = team.store.sessions(filter.clone()).await.unwrap();
        assert!(json(&page).len() < 600_000, "{}", json(&page).len());
        seen.extend(page.sessions.into_iter().map(|row| row.id));
        pages += 1;
        filter.after = page.next;
        if filter.after.is_none() {
            break;
        }
    }
    assert_eq!((seen, pages), (ids, 3));
}
