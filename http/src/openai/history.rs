//! Compares the history that a client sends with the turns of a session. The client's history is
//! not trusted: it only chooses a session, and only its last message is new.

use super::{
    ask::{Said, normal},
    log::LoggedTurn,
};

const INTRODUCTION: &str = "The conversation so far, as the client shows it:";
const NEXT: &str = "The next message is:";

/// How a client's history and a session fit together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    /// The history is all that happened in the session. The next turn follows.
    Next,
    /// The session already has the turn for which the request asks, as its last one.
    Asked,
    /// The history is another one, or only a part of what happened.
    Other,
}

/// Compares a history, and the new prompt after it, with the turns of a session.
pub fn fit(turns: &[LoggedTurn], history: &[Said], prompt: &str, is_retry: bool) -> Fit {
    // A turn that failed before it said anything is not in the history of the client.
    let is_shown = |turn: &&LoggedTurn| !turn.is_over || !turn.said.is_empty();
    let shown: Vec<_> = turns.iter().filter(is_shown).collect();
    // The first turn of some sessions has the beginning of the history as a transcript.
    let told = shown
        .first()
        .map_or(0, |first| told(first, history, prompt));
    let history = history.get(told..).unwrap_or_default();
    let Some(rest) = shown.get(history.len()..) else {
        return Fit::Other;
    };
    let mut pairs = shown.iter().zip(history);
    let mut is_first = told > 0;
    let is_same = pairs.all(|(turn, said)| {
        let asked = std::mem::replace(&mut is_first, false) || asks(turn, &said.user);
        asked && answers(turn, &said.assistant)
    });
    if !is_same {
        return Fit::Other;
    }
    match rest {
        [] => Fit::Next,
        [turn] if asks(turn, prompt) && (is_retry || !turn.is_over) => Fit::Asked,
        _ => Fit::Other,
    }
}

/// Returns whether the prompt of a turn contains a text. The front may have put instructions in
/// front of it.
pub fn asks(turn: &LoggedTurn, prompt: &str) -> bool {
    turn.asked.ends_with(&normal(prompt))
}

/// Returns whether the replies of a turn are those that the client shows. The client may have
/// stopped reading before the end, and may have read pieces of a reply that was made again.
fn answers(turn: &LoggedTurn, answer: &str) -> bool {
    let answer = normal(answer);
    let is_shown = |said: &String| {
        (said.starts_with(&answer) && !answer.is_empty())
            || (answer.ends_with(said) && !said.is_empty())
    };
    // A completion that was not streamed has only what was said last.
    !turn.is_over || is_shown(&turn.said) || is_shown(&turn.latest)
}

/// Returns how many turns of the history a session's first prompt tells as a transcript.
fn told(first: &LoggedTurn, history: &[Said], prompt: &str) -> usize {
    if !first.asked.contains(INTRODUCTION) {
        return 0;
    }
    let length = |text: &str| normal(text).len() + 1;
    let mut total = length(INTRODUCTION) + length(NEXT);
    let mut fitting = Vec::new();
    for (at, said) in history.iter().enumerate() {
        total += length(&shown(said));
        let user = history
            .get(at + 1)
            .map_or(prompt, |next| next.user.as_str());
        if total + normal(user).len() <= first.asked.len() {
            fitting.push(at + 1);
        }
        if total > first.asked.len() {
            break;
        }
    }
    // Instructions before the transcript make shorter prompts fit too, so a few are tried.
    let told = |count: &&usize| {
        let user = history
            .get(**count)
            .map_or(prompt, |next| next.user.as_str());
        let whole = transcript(history.get(..**count).unwrap_or_default()) + user;
        asks(first, &whole)
    };
    fitting
        .iter()
        .rev()
        .take(8)
        .find(told)
        .copied()
        .unwrap_or(0)
}

fn shown(said: &Said) -> String {
    let (user, assistant) = (said.user.trim(), said.assistant.trim());
    format!("User: {user}\n\nAssistant: {assistant}\n\n")
}

/// Writes a history as a text for the prompt of a new session.
pub fn transcript(history: &[Said]) -> String {
    let turns: String = history.iter().map(shown).collect();
    format!("{INTRODUCTION}\n\n{turns}{NEXT}\n\n")
}

#[cfg(test)]
mod tests {
    use planck_common::InputId;

    use super::*;

    fn turn(asked: &str, said: &str, is_over: bool) -> LoggedTurn {
        LoggedTurn {
            place: 0,
            start: 1,
            input: InputId::parse("i").unwrap(),
            message: Some(2),
            asked: asked.into(),
            said: said.into(),
            latest: said.into(),
            is_over,
        }
    }

    fn said(user: &str, assistant: &str) -> Said {
        Said {
            user: user.into(),
            assistant: assistant.into(),
        }
    }

    #[test]
    fn history_continues_the_session_that_it_shows() {
        let (one, two) = (turn("hi", "hello", true), turn("more", "much more", true));
        let failed = turn("oh", "", true);
        let running = turn("more", "", false);
        let (first, second) = (said("hi", " hello\n"), said("more", "much"));
        let again = said("hi", "hel hello");
        let turns = |turns: &[&LoggedTurn]| turns.iter().copied().cloned().collect::<Vec<_>>();
        for (turns, history, is_retry, expected) in [
            (turns(&[&one]), vec![first.clone()], false, Fit::Next),
            (turns(&[&one]), vec![again], false, Fit::Next),
            (
                turns(&[&one, &failed]),
                vec![first.clone()],
                false,
                Fit::Next,
            ),
            (
                turns(&[&one, &two]),
                vec![first.clone(), second.clone()],
                false,
                Fit::Next,
            ),
            // The client regenerates an answer, or edits a question.
            (turns(&[&one, &two]), vec![first.clone()], false, Fit::Other),
            (turns(&[&one, &two]), vec![first.clone()], true, Fit::Asked),
            (
                turns(&[&one, &running]),
                vec![first.clone()],
                false,
                Fit::Asked,
            ),
            (
                turns(&[&one, &running]),
                vec![first.clone(), second.clone()],
                false,
                Fit::Next,
            ),
            (turns(&[&one]), vec![second], false, Fit::Other),
            (turns(&[&one]), vec![said("hi", "")], false, Fit::Other),
            (turns(&[&one]), vec![said("hi", "bye")], false, Fit::Other),
            (turns(&[]), vec![first.clone()], false, Fit::Other),
            (turns(&[&running]), vec![], true, Fit::Asked),
        ] {
            let found = fit(&turns, &history, "more", is_retry);
            assert_eq!(found, expected, "{turns:?} {history:?}");
        }
    }

    #[test]
    fn answer_is_all_that_was_said_or_what_was_said_last() {
        let turn = LoggedTurn {
            latest: "It has three.".into(),
            ..turn("hi", "They work. It has three.", true)
        };
        for (answer, expected) in [
            ("They work.\n\nIt has three.", Fit::Next),
            ("It has three.", Fit::Next),
            ("It has four.", Fit::Other),
        ] {
            let found = fit(
                std::slice::from_ref(&turn),
                &[said("hi", answer)],
                "more",
                false,
            );
            assert_eq!(found, expected, "{answer}");
        }
    }

    #[test]
    fn session_with_a_transcript_is_continued() {
        let history = [
            said("hi", "hello"),
            said("more", "much more"),
            said("and?", "yes"),
        ];
        for count in 1..=2 {
            let next = &history[count].user;
            let first = format!("Be brief. {}{next}", transcript(&history[..count]));
            let mut turns = vec![turn(&normal(&first), &history[count].assistant, true)];
            let later = history.iter().skip(count + 1);
            turns.extend(later.map(|said| turn(&said.user, &said.assistant, true)));
            assert_eq!(fit(&turns, &history, "so?", false), Fit::Next, "{count}");
        }
    }

    #[test]
    fn instructions_before_a_prompt_do_not_count() {
        let turn = turn("Be brief. hi", "hello", true);
        assert_eq!(
            fit(&[turn], &[said("hi", "hello")], "more", false),
            Fit::Next
        );
    }
}
