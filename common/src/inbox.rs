//! Inboxes: the subjects on which replies arrive, and the rule for the reply subjects to which a
//! responder may publish.

use std::time::{Duration, Instant};

use crate::subject::Prefix;

/// The first word of every client's inboxes, unless configured otherwise.
const DEFAULT: &str = "_INBOX";
/// The first word of the subjects that a server substitutes for a reply subject when a request
/// crosses accounts.
const SERVICE_IMPORT: &str = "_R_";
/// The first word of the subjects that a server substitutes when a request crosses a gateway. Two
/// hashes and the requester's own reply subject follow it.
const GATEWAY: &str = "_GR_";
/// The first words of the cluster's own subjects.
const OWN: [&str; 9] = [
    "agent", "session", "node", "cluster", "sidecar", "cancel", "tool", "compact", "cmd",
];
/// The minimum time between two log lines about refused requests.
const QUIET: Duration = Duration::from_secs(60);
/// The maximum length of a reply subject in bytes. Requests with longer ones are refused.
const LONGEST: usize = 1_024;

/// The prefix of a connection's inboxes, without the last dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxPrefix(String);

/// The error for a text that is not an inbox prefix.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "malformed inbox prefix `{0}`: expected words of A-Z a-z 0-9 _ - joined by dots, the first of them none of Planck's own"
)]
pub struct MalformedInbox(String);

impl InboxPrefix {
    /// Parses a prefix such as `_INBOX_node` or `_INBOX.node`.
    ///
    /// # Errors
    /// A word is malformed, or the first word is one with which Planck's own subjects begin.
    pub fn parse(text: &str) -> Result<Self, MalformedInbox> {
        let is_own = text
            .split('.')
            .next()
            .is_some_and(|first| OWN.contains(&first));
        if is_own || !text.split('.').all(crate::id::is_id) {
            return Err(MalformedInbox(text.into()));
        }
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn covers(&self, subject: &str) -> bool {
        subject
            .strip_prefix(&self.0)
            .is_some_and(|rest| rest.starts_with('.'))
    }
}

impl Default for InboxPrefix {
    fn default() -> Self {
        Self(DEFAULT.into())
    }
}

/// The rule that decides to which reply subjects a responder may publish. The responder has more
/// rights than the requester, and its reply is a valid command because readers ignore keys that
/// they do not know. Without this rule, a user who may only list sessions could make a node delete
/// one, or overwrite a record of the registry.
#[derive(Debug, Clone, Default)]
pub struct ReplyRule {
    cluster: Prefix,
    more: Vec<InboxPrefix>,
}

impl ReplyRule {
    /// Returns the rule of a cluster whose users have inboxes under `more` in addition to those
    /// that begin with `_INBOX`.
    pub fn new(cluster: Prefix, more: Vec<InboxPrefix>) -> Self {
        Self { cluster, more }
    }

    /// Returns whether a reply may be published to a subject.
    pub fn admits(&self, subject: &str) -> bool {
        let words: Vec<&str> = subject.split('.').collect();
        let is_literal = |word: &&str| {
            !word.is_empty()
                && word
                    .bytes()
                    .all(|b| b.is_ascii_graphic() && !matches!(b, b'*' | b'>'))
        };
        let [first, rest @ ..] = words.as_slice() else {
            return false;
        };
        if subject.len() > LONGEST
            || rest.is_empty()
            || !words.iter().all(is_literal)
            || self.is_own(subject)
        {
            return false;
        }
        match (*first, rest) {
            // The server removes the first three words, and the reply goes to the rest.
            (GATEWAY, [_, _, to @ ..]) => self.admits(&to.join(".")),
            (GATEWAY, _) => false,
            (SERVICE_IMPORT, _) => true,
            _ => {
                first.starts_with(DEFAULT) || self.more.iter().any(|prefix| prefix.covers(subject))
            }
        }
    }

    fn is_own(&self, subject: &str) -> bool {
        let own = self
            .cluster
            .off(subject)
            .and_then(|rest| rest.split('.').next());
        own.is_some_and(|first| OWN.contains(&first))
    }
}

/// A counter of the requests that a responder refused. It limits the log lines about them, because
/// any client can send a flood of requests.
#[derive(Debug, Default)]
pub struct Refusals {
    count: u64,
    logged: Option<Instant>,
}

impl Refusals {
    /// Counts a refused request. Returns the number of refused requests so far if a log line about
    /// them is due, otherwise `None`. A line is due at most once a minute.
    pub fn add(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self
            .logged
            .is_some_and(|last| now.duration_since(last) < QUIET)
        {
            return None;
        }
        self.logged = Some(now);
        Some(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_go_to_inboxes_only() {
        let prefix = |text: &str| Prefix::parse(text).unwrap();
        let team = InboxPrefix::parse("replies.team").unwrap();
        let (plain, own, odd) = (
            ReplyRule::default(),
            ReplyRule::new(prefix("p2"), vec![team]),
            ReplyRule::new(prefix("_INBOX"), Vec::new()),
        );
        for (rule, subject, admitted) in [
            (&plain, "_INBOX.abc", true),
            (&plain, "_INBOX.abc.1", true),
            (&plain, "_INBOX_client.abc.1", true),
            (&plain, "_R_.abc.def", true),
            (&plain, "_GR_.abcdef.ghijkl._INBOX.abc", true),
            (&plain, "_GR_.abcdef.ghijkl._R_.abc", true),
            (&plain, "_GR_.abcdef.ghijkl.cmd.session.vic.delete", false),
            (
                &plain,
                "_GR_.abcdef.ghijkl.$KV.planck_registry.store",
                false,
            ),
            (
                &plain,
                "_GR_.abcdef.ghijkl._GR_.a.b.cmd.session.vic.delete",
                false,
            ),
            (&plain, "_GR_._INBOX.abc", false),
            (&plain, "_INBOX", false),
            (&plain, "_INBOX.", false),
            (&plain, "_INBOX..a", false),
            (&plain, "_INBOX.*", false),
            (&plain, "_INBOX.a.>", false),
            (&plain, "_INBOX.a b", false),
            (&plain, "_INBOX.a\r\nPUB x 0", false),
            (&plain, "", false),
            (&plain, ".", false),
            (&plain, "cmd.session.vic.delete", false),
            (&plain, "session.s1", false),
            (&plain, "agent.a1", false),
            (&plain, "tool.calculator.add", false),
            (&plain, "sidecar.calculator", false),
            (&plain, "$KV.planck_registry.store", false),
            (&plain, "$JS.API.STREAM.DELETE.KV_planck_registry", false),
            (&plain, "$SRV.INFO", false),
            (&plain, "replies.team.x", false),
            (&own, "replies.team.x", true),
            (&own, "replies.team", false),
            (&own, "replies.teams.x", false),
            (&own, "p2.cmd.session.vic.delete", false),
            (&own, "p2.replies.team.x", false),
            (&own, "_INBOX.abc", true),
            (&odd, "_INBOX.abc", true),
            (&odd, "_INBOX.cmd.session.vic.delete", false),
            (&odd, "_INBOX.node.n1", false),
        ] {
            assert_eq!(rule.admits(subject), admitted, "{subject:?} with {rule:?}");
        }
        assert!(!plain.admits(&format!("_INBOX.{}", "a".repeat(LONGEST))));
    }

    #[test]
    fn flood_of_refusals_is_logged_once_a_minute() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let told = [0, 1, 59, 60, 61, 119, 120]
            .map(|second| refusals.add(start + Duration::from_secs(second)));
        assert_eq!(told, [Some(1), None, None, Some(4), None, None, Some(7)]);
    }

    #[test]
    fn inbox_prefix_must_not_begin_with_an_own_subject() {
        for good in ["_INBOX", "_INBOX_node", "_INBOX.node", "replies"] {
            assert_eq!(InboxPrefix::parse(good).unwrap().as_str(), good);
        }
        for bad in [
            "", ".", "a..b", "a.", "a.*", ">", "$JS.API", "a b", "cmd", "node.x", "session",
        ] {
            assert!(InboxPrefix::parse(bad).is_err(), "{bad}");
        }
    }
}
