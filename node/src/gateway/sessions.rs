//! Handles `cmd.sessions.*` and `cmd.session.<session>.*`.

use planck_common::{
    Seq,
    command::{
        Aborted, Because, Empty, Events, HeadAt, ListWaits, MOST_TITLE, Prompt, ReadEvents,
        ReadMessages, Removed, Rename, Renamed, Rewind, SessionInfo, SessionStateNow, SessionVerb,
        SessionsVerb,
    },
    reply::Refusal,
};
use planck_store::{AgentRecord, SessionRecord, SessionStore};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{CommandReply, IncomingCommand, ok, read};
use crate::{
    bus::truncate,
    services::Services,
    sessions::{CommandOrigin, PromptTarget, checked_author},
};

pub(super) async fn all(
    services: &Services,
    origin: CommandOrigin,
    verb: SessionsVerb,
    body: &[u8],
) -> CommandReply {
    match verb {
        SessionsVerb::Start => ok(services.sessions.start(read(body)?, origin).await?),
        SessionsVerb::List => ok(services.handles.store.sessions(read(body)?).await?),
        SessionsVerb::Waits => ok(services.sessions.waits(read(body)?).await?),
    }
}

pub(super) async fn one(
    services: &Services,
    session: &str,
    verb: SessionVerb,
    incoming: &IncomingCommand<'_>,
) -> CommandReply {
    let (session, body) = (
        services.handles.lookup.session(session).await?,
        incoming.body,
    );
    if is_its_hosts(verb)
        && let Some(host) = services.placement.session_host(&session).await?
    {
        return incoming.pass_on(services, &host).await;
    }
    let store = &*services.handles.store;
    match verb {
        SessionVerb::Prompt => prompt(services, &session, read(body)?).await,
        SessionVerb::Events => {
            let room = services.handles.bus.room();
            events(store, &session, read(body)?, room).await
        }
        SessionVerb::Messages => messages(store, &session, read(body)?).await,
        SessionVerb::Info => {
            let Empty {} = read(body)?;
            info(store, session).await
        }
        SessionVerb::Abort => {
            let aborted = services
                .sessions
                .abort(&session, read(body)?, incoming.origin)
                .await?;
            ok(Aborted { aborted })
        }
        SessionVerb::Rewind => rewind(services, &session, read(body)?).await,
        SessionVerb::Resume => ok(services
            .sessions
            .resume(&session, &reason(body, "resumed")?)
            .await?),
        SessionVerb::Close => ok(SessionStateNow {
            state: services
                .takeover
                .close(&session, &reason(body, "closed")?)
                .await?,
        }),
        SessionVerb::Delete => ok(Removed {
            removed: services
                .sessions
                .delete(&session, &reason(body, "deleted")?)
                .await?,
        }),
        SessionVerb::Answer => ok(services.sessions.answer(&session, read(body)?).await?),
        SessionVerb::Outcome => outcome(services, &session, incoming).await,
        SessionVerb::Rename => rename(store, &session, read(body)?).await,
    }
}

async fn rewind(
    services: &Services,
    session: &SessionRecord,
    Rewind { to, by }: Rewind,
) -> CommandReply {
    let by = checked_author(by)?;
    let by = by.as_deref().unwrap_or("client");
    ok(HeadAt {
        head: services.sessions.rewind(session, to, by).await?,
    })
}

/// Returns whether only the host of the session's orchestrator can perform the command.
fn is_its_hosts(verb: SessionVerb) -> bool {
    match verb {
        SessionVerb::Rewind | SessionVerb::Resume | SessionVerb::Close | SessionVerb::Delete => {
            true
        }
        SessionVerb::Prompt
        | SessionVerb::Events
        | SessionVerb::Messages
        | SessionVerb::Info
        | SessionVerb::Abort
        | SessionVerb::Answer
        | SessionVerb::Outcome
        | SessionVerb::Rename => false,
    }
}

async fn outcome(
    services: &Services,
    session: &SessionRecord,
    incoming: &IncomingCommand<'_>,
) -> CommandReply {
    let request = read(incoming.body)?;
    let sessions = &services.sessions;
    ok(sessions.outcome(session, request, incoming.origin).await?)
}

async fn prompt(services: &Services, session: &SessionRecord, prompt: Prompt) -> CommandReply {
    let lead = &session.spec.lead;
    let target = match (&prompt.agent, services.sessions.target_here(lead)) {
        (None, Some(lead)) => lead,
        (wanted, _) => {
            let wanted = wanted.as_deref().unwrap_or(lead);
            PromptTarget::from(&services.handles.lookup.member(session, wanted).await?)
        }
    };
    ok(services.sessions.prompt(target, prompt).await?)
}

/// Returns a page of a session's log that fits into a reply of `room` bytes.
pub(super) async fn events(
    store: &dyn SessionStore,
    session: &SessionRecord,
    request: ReadEvents,
    room: usize,
) -> CommandReply {
    let agent = of(store, session, request.agent.as_deref()).await?;
    let (from, limit) = (
        request.from.unwrap_or(1).max(1),
        request.limit.unwrap_or(500).clamp(1, 500),
    );
    let page = store
        .events(
            &session.id,
            from,
            limit,
            agent.as_ref().map(|agent| &agent.id),
        )
        .await?;
    ok(fit_page(page, room))
}

pub(super) async fn messages(
    store: &dyn SessionStore,
    session: &SessionRecord,
    request: ReadMessages,
) -> CommandReply {
    let agent = of(store, session, request.agent.as_deref()).await?;
    let agent = agent.as_ref().map(|agent| &agent.id);
    ok(store
        .messages(&session.id, agent, request.before, request.limit)
        .await?)
}

/// Returns the agent that a request names, which may be stopped, or `None` if the request names
/// none.
async fn of(
    store: &dyn SessionStore,
    session: &SessionRecord,
    agent: Option<&str>,
) -> Result<Option<AgentRecord>, Refusal> {
    match agent {
        Some(agent) => crate::lookup::find_in_log(store, session, agent)
            .await
            .map(Some),
        None => Ok(None),
    }
}

pub(super) async fn info(store: &dyn SessionStore, session: SessionRecord) -> CommandReply {
    let agents = store.agents(&session.id).await?;
    let open = store
        .waits(Some(&session.id), &ListWaits::default())
        .await?;
    let mut records = agents.iter();
    let lead = records.find(|agent| agent.id == session.spec.lead);
    ok(SessionInfo {
        permissions: lead.map_or_else(Vec::new, |lead| lead.spec.permissions.clone()),
        title: session.title(),
        team: session.spec.team,
        waits: open.waits.into_iter().map(|wait| wait.id).collect(),
        agents: agents.iter().map(AgentRecord::row).collect(),
        id: session.id,
        name: session.name,
        state: session.state,
        workspace: session.spec.workspace,
        dir: session.spec.dir,
        team_id: session.spec.team_id,
        owner: session.owner,
        head: session.head,
        usage: session.totals,
        limits: session.spec.limits,
        metadata: session.metadata,
    })
}

async fn rename(
    store: &dyn SessionStore,
    session: &SessionRecord,
    Rename { title }: Rename,
) -> CommandReply {
    let title = title.as_deref().and_then(one_line);
    let length = title.as_deref().unwrap_or_default().chars().count();
    if length > MOST_TITLE {
        return Err(Refusal::bad_request(format!(
            "`title` has {length} characters, over the limit of {MOST_TITLE}"
        )));
    }
    let metadata = session.with_title(title.as_deref());
    store.set_metadata(&session.id, &metadata).await?;
    ok(Renamed { title })
}

/// Returns the words of a title on one line, as a list can show them, or `None` if it has no word.
fn one_line(title: &str) -> Option<String> {
    let between = |c: char| c.is_whitespace() || c.is_control();
    let words = title.split(between).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.collect();
    (!words.is_empty()).then(|| words.join(" "))
}

fn reason(body: &[u8], default: &str) -> Result<String, Refusal> {
    let Because { reason } = read(body)?;
    Ok(reason.unwrap_or_else(|| default.into()))
}

/// The maximum size in bytes of a reply without its events.
const FRAME: usize = 256;

/// Keeps as many events as fit into `room` bytes. If the first event alone is too large, its
/// content is cut, so that a reader can continue after it.
fn fit_page(page: Events, room: usize) -> Events {
    let Events {
        events,
        mut next,
        head,
    } = page;
    let mut left = room.saturating_sub(FRAME);
    let mut kept: Vec<Box<RawValue>> = Vec::with_capacity(events.len());
    for event in events {
        let size = event.get().len() + 1;
        if size <= left {
            left -= size;
            kept.push(event);
        } else if kept.is_empty() {
            kept.push(cut(event, left));
            left = 0;
        } else {
            next = seq(&event).unwrap_or(next);
            break;
        }
    }
    Events {
        events: kept,
        next,
        head,
    }
}

fn cut(event: Box<RawValue>, room: usize) -> Box<RawValue> {
    let cut = truncate::fit(event.get(), room).into_owned();
    RawValue::from_string(cut).unwrap_or(event)
}

fn seq(event: &RawValue) -> Option<Seq> {
    #[derive(Deserialize)]
    struct Place {
        seq: Seq,
    }
    serde_json::from_str::<Place>(event.get())
        .ok()
        .map(|place| place.seq)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{one_line, *};

    #[test]
    fn title_is_one_line_with_single_spaces() {
        for (said, title) in [
            ("Mend the parser", Some("Mend the parser")),
            ("  Mend \n the\tparser\u{1b} ", Some("Mend the parser")),
            (" \n", None),
            ("", None),
        ] {
            assert_eq!(one_line(said).as_deref(), title, "{said:?}");
        }
    }

    fn event(seq: i64, text: usize) -> Box<RawValue> {
        let event = json!({ "seq": seq, "type": "message", "data": { "role": "user", "content": "x".repeat(text) } });
        RawValue::from_string(event.to_string()).unwrap()
    }

    fn page(sizes: &[usize]) -> Events {
        let events = sizes
            .iter()
            .zip(1..)
            .map(|(size, seq)| event(seq, *size))
            .collect();
        Events {
            events,
            next: sizes.len() as i64 + 1,
            head: 100,
        }
    }

    fn kept(sizes: &[usize], room: usize) -> (usize, i64) {
        let fitted = fit_page(page(sizes), room);
        let whole = serde_json::to_string(&fitted).unwrap();
        assert!(whole.len() <= room, "{} over {room}", whole.len());
        (fitted.events.len(), fitted.next)
    }

    #[test]
    fn events_that_fit_are_kept_and_the_rest_follows() {
        assert_eq!(kept(&[10, 10, 10], 10_000), (3, 4));
        assert_eq!(kept(&[1_000, 1_000, 9_000], 10_000), (2, 3));
        assert_eq!(kept(&[9_000, 9_000], 10_000), (1, 2));
        assert_eq!(kept(&[], 10_000), (0, 1));
    }

    #[test]
    fn a_single_event_that_does_not_fit_is_cut() {
        assert_eq!(kept(&[50_000, 10], 10_000), (1, 2));
        assert_eq!(kept(&[50_000], 10_000), (1, 2));
        let fitted = fit_page(page(&[50_000]), 10_000);
        let cut: Value = serde_json::from_str(fitted.events[0].get()).unwrap();
        assert_eq!((&cut["truncated"], &cut["seq"]), (&json!(true), &json!(1)));
    }
}
