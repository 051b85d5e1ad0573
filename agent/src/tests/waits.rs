//! Calls that wait for an answer: the store's part of a wait, and tests of whole turns.

use std::{collections::BTreeMap, sync::Arc};

use planck_common::{
    CallId, Timestamp,
    command::AgentState,
    event::{Event, EventKind, ToolEffect},
    message::StopReason,
    permission::{PermissionMode, Permissions, Rule, RuleAction},
    spec::OnLimit,
    wait::{WaitAnswer, WaitClosed, WaitDecision, WaitKind, WaitOpened, WaitState},
};
use serde_json::value::RawValue;

use super::{
    super::{Agent, Command, Effect, Entry, Input, effect::ToolRun},
    script::*,
    world::{World, setup, tool},
};
use crate::{model::ToolSpec, outcome::ToolOutcome, setup::Setup};

/// The table of waits, which rows of the log and answers change.
#[derive(Default)]
pub struct WaitTable(BTreeMap<CallId, StoredWait>);

struct StoredWait {
    kind: WaitKind,
    state: WaitState,
    answer: Option<WaitAnswer>,
}

impl WaitTable {
    pub fn appended(&mut self, entry: &Entry) {
        if !matches!(entry.kind, EventKind::WaitOpened | EventKind::WaitClosed) {
            return;
        }
        match Event::parse(entry.kind, &entry.body) {
            Ok(Event::WaitOpened(wait)) => self.open(wait),
            Ok(Event::WaitClosed(wait)) => self.close(&wait),
            Ok(_) | Err(_) => panic!("{entry:?}"),
        }
    }

    fn open(&mut self, wait: WaitOpened) {
        let stored = StoredWait {
            kind: wait.kind,
            state: WaitState::Open,
            answer: None,
        };
        let is_change = wait.kind == WaitKind::Change;
        let known = self.0.insert(wait.id, stored);
        // A call that was allowed to run can wait once more about what it changed.
        let was_allowed = |before: StoredWait| {
            let decision = before.answer.map(|answer| answer.decision);
            before.state == WaitState::Closed && decision == Some(WaitDecision::Allow)
        };
        assert!(
            known.is_none_or(|before| is_change && was_allowed(before)),
            "a wait opened twice"
        );
    }

    fn close(&mut self, wait: &WaitClosed) {
        let stored = self.0.get_mut(&wait.id).expect("a wait without an opening");
        let answer = stored.answer.as_ref();
        // The permissions may deny the arguments that a person wrote.
        let is_denied = wait.decision == WaitDecision::Deny
            && answer.is_some_and(|answer| answer.args.is_some());
        let was_read = stored.state == WaitState::Answered
            && (is_denied || answer.map(|answer| answer.decision) == Some(wait.decision));
        let is_withdrawn = wait.decision == WaitDecision::Withdrawn;
        let is_open = matches!(stored.state, WaitState::Open | WaitState::Answered);
        assert!(
            was_read || is_withdrawn && is_open,
            "a wait in the state {:?} was closed as {:?}",
            stored.state,
            wait.decision
        );
        stored.state = match is_withdrawn {
            true => WaitState::Withdrawn,
            false => WaitState::Closed,
        };
    }

    pub fn withdraw_all(&mut self) {
        for wait in self.0.values_mut() {
            if matches!(wait.state, WaitState::Open | WaitState::Answered) {
                wait.state = WaitState::Withdrawn;
            }
        }
    }

    pub fn has_open(&self) -> bool {
        self.0.values().any(|wait| wait.state == WaitState::Open)
    }

    pub fn has_answers(&self) -> bool {
        self.0
            .values()
            .any(|wait| wait.state == WaitState::Answered)
    }

    /// Checks that a person allowed the call that runs.
    pub fn assert_allowed(&self, run: &ToolRun) {
        let wait = self.0.get(&run.call_id).expect("a call ran unasked");
        let decision = wait.answer.as_ref().map(|answer| answer.decision);
        assert_eq!(wait.state, WaitState::Closed, "{decision:?}");
        assert_eq!(
            decision,
            Some(WaitDecision::Allow),
            "a call ran that nobody allowed"
        );
    }

    /// Checks that the committed waits without an end are those of the agent.
    pub fn check(&self, agent: &Agent) {
        let unread = self
            .0
            .iter()
            .filter(|(_, wait)| matches!(wait.state, WaitState::Open | WaitState::Answered));
        let unread: Vec<CallId> = unread.map(|(id, _)| id.clone()).collect();
        let mut waits = agent.waits();
        waits.sort();
        assert_eq!(
            waits, unread,
            "the store and the agent disagree on the waits"
        );
    }

    fn nth(&self, which: usize, state: WaitState) -> Option<CallId> {
        let fitting: Vec<&CallId> = self
            .0
            .iter()
            .filter(|(_, wait)| wait.state == state)
            .map(|(id, _)| id)
            .collect();
        let at = which.checked_rem(fitting.len())?;
        fitting.get(at).map(|id| (*id).clone())
    }
}

pub fn answer_of(decision: WaitDecision) -> WaitAnswer {
    WaitAnswer {
        decision,
        args: None,
        value: Some(RawValue::from_string(r#""forty-two""#.into()).unwrap()),
        reason: None,
        scope: None,
        by: Some("ann".into()),
        at: Timestamp::from_millis(7),
    }
}

impl World {
    /// Stores the answer to an open wait. If `told`, the agent reads it at once.
    pub fn decide(&mut self, which: usize, decision: WaitDecision, told: bool) {
        let Some(id) = self.waits.nth(which, WaitState::Open) else {
            return;
        };
        let wait = self.waits.0.get_mut(&id).unwrap();
        let decision = match (decision, wait.kind) {
            (WaitDecision::Answer, WaitKind::Approval | WaitKind::Budget) => WaitDecision::Allow,
            (WaitDecision::Allow, WaitKind::Question) => WaitDecision::Answer,
            (decision, _) => decision,
        };
        wait.state = WaitState::Answered;
        let mut answer = answer_of(decision);
        if wait.kind == WaitKind::Budget {
            answer.value = Some(RawValue::from_string("1000000".into()).unwrap());
        }
        wait.answer = Some(answer);
        if told {
            self.read_answers();
        }
    }

    /// Stores this answer to an open wait, which the agent reads at once.
    fn answer_wait(&mut self, which: usize, answer: WaitAnswer) {
        let id = self.waits.nth(which, WaitState::Open).unwrap();
        let stored = self.waits.0.get_mut(&id).unwrap();
        (stored.state, stored.answer) = (WaitState::Answered, Some(answer));
        self.read_answers();
    }

    pub fn events_of(&self, kind: EventKind) -> Vec<Event> {
        let rows = self.rows.iter().filter(|row| row.kind == kind);
        rows.map(|row| Event::parse(row.kind, &row.body).unwrap())
            .collect()
    }

    /// Passes the agent the answers that it has not read yet. Some may have been read before, while
    /// the save that closes their wait is not committed yet.
    pub fn read_answers(&mut self) {
        let unread: Vec<(CallId, WaitAnswer)> = self
            .waits
            .0
            .iter()
            .filter(|(_, wait)| wait.state == WaitState::Answered)
            .filter_map(|(id, wait)| Some((id.clone(), wait.answer.clone()?)))
            .collect();
        let deaths = self.deaths;
        for (wait, answer) in unread {
            if self.deaths == deaths {
                self.step(Input::Decided { wait, answer });
            }
        }
    }

    fn waiting(calls: &[[crate::model::Chunk; 2]]) -> Self {
        let mut world = world();
        world.put(prompt("p1"));
        world.answer(calls.concat(), StopReason::ToolUse);
        world
    }
}

fn deploy() -> [crate::model::Chunk; 2] {
    call(1, "deploy", r#"{"command": "make deploy"}"#)
}

#[test]
fn call_waits_until_it_is_allowed_and_the_others_run() {
    let mut world = World::waiting(&[deploy(), call(2, "read", "{}")]);
    assert_eq!(world.agent.state(), AgentState::ExecutingTools);
    assert_eq!(world.tools.len(), 1);
    world.tool_done(ToolOutcome::ok("text"));
    world.commit_all();
    assert_eq!(world.agent.state(), AgentState::Waiting);
    assert!(world.agent.is_waiting());
    world.decide(0, WaitDecision::Allow, true);
    assert_eq!(world.agent.state(), AgentState::ExecutingTools);
    world.tool_done(ToolOutcome::ok("deployed"));
    world.say("Done.");
    assert_eq!(world.results(), ["deployed", "text"]);
    insta::assert_snapshot!(world.log());
}

#[test]
fn denied_call_does_not_run_and_the_model_reads_why() {
    let mut world = World::waiting(&[deploy()]);
    let id = world.agent.waits().remove(0);
    let answer = WaitAnswer {
        reason: Some("not on a Friday".into()),
        ..answer_of(WaitDecision::Deny)
    };
    let stored = world.waits.0.get_mut(&id).unwrap();
    (stored.state, stored.answer) = (WaitState::Answered, Some(answer));
    world.read_answers();
    assert!(world.tools.is_empty() && world.model.is_some());
    world.commit_all();
    assert_eq!(world.results(), ["not run: ann denied it: not on a Friday"]);
}

#[test]
fn expired_wait_is_a_denial_that_names_nobody() {
    let mut world = World::waiting(&[deploy()]);
    let id = world.agent.waits().remove(0);
    let answer = WaitAnswer {
        reason: Some("nobody answered within 1d".into()),
        by: None,
        ..answer_of(WaitDecision::Expired)
    };
    let stored = world.waits.0.get_mut(&id).unwrap();
    (stored.state, stored.answer) = (WaitState::Answered, Some(answer));
    world.read_answers();
    world.commit_all();
    assert_eq!(world.results(), ["not run: nobody answered within 1d"]);
}

#[test]
fn answer_to_a_question_is_the_result_of_the_call() {
    let mut world = World::waiting(&[call(1, "ask_user", r#"{"question":"Which\ncolour?"}"#)]);
    let opened = world
        .rows
        .iter()
        .find(|row| row.kind == EventKind::WaitOpened)
        .unwrap();
    assert!(
        opened
            .body
            .contains(r#""kind":"question","title":"Which colour?""#),
        "{}",
        opened.body
    );
    world.decide(0, WaitDecision::Answer, true);
    world.commit_all();
    assert_eq!(world.results(), ["forty-two"]);
}

#[test]
fn question_without_a_question_is_refused() {
    let mut world = World::waiting(&[call(1, "ask_user", "{}")]);
    world.commit_all();
    assert!(world.agent.waits().is_empty());
    assert!(
        world.results()[0].starts_with("not asked: the arguments are wrong"),
        "{:?}",
        world.results()
    );
}

#[test]
fn nobody_is_asked_about_a_call_whose_arguments_do_not_fit() {
    let unfit = r#"{"command":"make","unknown":1}"#;
    let mut world = World::waiting(&[call(1, "deploy", unfit)]);
    world.commit_all();
    assert!(world.agent.waits().is_empty());
    assert_eq!(world.results(), ["`deploy` was not run"]);
    assert!(world.events_of(EventKind::WaitOpened).is_empty());
}

#[test]
fn changed_arguments_that_the_permissions_deny_are_a_denial_in_the_log() {
    let mut setup = setup();
    let rule = Rule {
        tool: Some("deploy".into()),
        effect: None,
        path: None,
        command: Some("rm *".into()),
        sidecar: None,
        action: RuleAction::Deny,
    };
    setup.spec.permissions.push(Permissions {
        rules: vec![rule],
        ..Permissions::default()
    });
    let mut world = World::new(setup);
    world.put(prompt("p1"));
    world.answer(deploy().into(), StopReason::ToolUse);
    world.answer_wait(
        0,
        WaitAnswer {
            args: Some(RawValue::from_string(r#"{"command":"rm all"}"#.into()).unwrap()),
            by: Some("ann".into()),
            ..answer_of(WaitDecision::Allow)
        },
    );
    world.commit_all();
    assert!(world.tools.is_empty());
    let Event::WaitClosed(closed) = world.events_of(EventKind::WaitClosed).remove(0) else {
        panic!("the kind and the data of the event differ")
    };
    assert_eq!(closed.decision, WaitDecision::Deny);
    assert_eq!(closed.by.as_deref(), Some("ann"));
    assert!(closed.reason.unwrap().contains("rm *"));
}

#[test]
fn changed_arguments_run_and_are_kept_for_another_try() {
    let mut setup = setup();
    let mut tools = setup.tools.to_vec();
    for tool in tools.iter_mut().filter(|tool| tool.name == "deploy") {
        tool.effect = planck_common::event::ToolEffect::Idempotent;
    }
    setup.tools = tools.into();
    let mut world = World::new(setup);
    world.put(prompt("p1"));
    world.answer(deploy().into(), StopReason::ToolUse);
    let id = world.agent.waits().remove(0);
    let answer = WaitAnswer {
        args: Some(RawValue::from_string(r#"{"command":"make check"}"#.into()).unwrap()),
        ..answer_of(WaitDecision::Allow)
    };
    let stored = world.waits.0.get_mut(&id).unwrap();
    (stored.state, stored.answer) = (WaitState::Answered, Some(answer));
    world.read_answers();
    assert_eq!(world.tools[0].args.get(), r#"{"command":"make check"}"#);
    world.ledger.clear();
    world.crash();
    assert!(world.tools[0].is_repeat);
    assert_eq!(world.tools[0].args.get(), r#"{"command":"make check"}"#);
}

#[test]
fn wait_and_its_answer_survive_a_crash() {
    let mut world = World::waiting(&[deploy(), call(2, "ask_user", r#"{"question":"?"}"#)]);
    world.crash();
    assert!(world.agent.is_waiting());
    assert_eq!(world.agent.waits().len(), 2);
    world.decide(0, WaitDecision::Allow, false);
    world.crash();
    assert_eq!(
        world.agent.waits().len(),
        2,
        "the answer is in the store only"
    );
    world.read_answers();
    assert_eq!(world.agent.waits().len(), 1);
}

#[test]
fn abort_withdraws_the_waits_and_ends_the_turn_at_once() {
    let mut world = World::waiting(&[deploy()]);
    world.step(Input::Command(Command::Abort { reason: None }));
    assert!(world.agent.is_idle());
    assert_eq!(world.results(), ["aborted by request"]);
    world.decide(0, WaitDecision::Allow, true);
    assert!(world.tools.is_empty());
    assert_eq!(world.ends().len(), 1);
}

#[test]
fn abort_with_a_running_call_withdraws_the_waits_first() {
    let mut world = World::waiting(&[deploy(), call(2, "read", "{}")]);
    world.step(Input::Command(Command::Abort { reason: None }));
    world.commit_all();
    assert!(world.agent.waits().is_empty() && world.agent.is_winding_down());
    world.tool_done(ToolOutcome::stopped(""));
    assert_eq!(
        world.results(),
        ["aborted by request", "aborted by request"]
    );
}

#[test]
fn agent_with_a_postponed_checkpoint_is_not_unloaded_while_it_waits() {
    let mut world = World::waiting(&[deploy()]);
    assert!(world.agent.is_waiting());
    world.step(Input::Command(Command::Checkpoint {
        summary: "so far".into(),
    }));
    assert_eq!(world.agent.state(), AgentState::Waiting);
    assert!(!world.agent.is_waiting(), "it would forget the checkpoint");
    world.decide(0, WaitDecision::Deny, true);
    world.say("Done.");
    world.commit_all();
    let last = world.rows.last().map(|row| row.kind);
    assert_eq!(last, Some(EventKind::Checkpoint));
}

fn give_tools(world: &mut World, tools: Vec<crate::model::ToolSpec>) {
    let named = tools.iter().map(|tool| tool.name.clone()).collect();
    world.step(Input::Command(Command::Tools {
        added: vec![],
        removed: vec![],
        tools: tools.into(),
        arguments: std::sync::Arc::new(()),
        named,
    }));
}

#[test]
fn approval_of_a_tool_that_is_gone_starts_nothing() {
    let mut world = World::waiting(&[deploy()]);
    let mut tools = setup().tools.to_vec();
    tools.retain(|tool| tool.name != "deploy");
    give_tools(&mut world, tools);
    world.decide(0, WaitDecision::Allow, true);
    world.say("Never mind.");
    assert!(world.results()[0].starts_with("there is no tool `deploy`"));
    assert!(!world.kinds().contains(&"tool_start"));
}

#[test]
fn approval_of_a_tool_that_has_changed_since_is_asked_again() {
    let mut world = World::waiting(&[deploy()]);
    let mut tools = setup().tools.to_vec();
    for tool in tools.iter_mut().filter(|tool| tool.name == "deploy") {
        tool.description = "Deploys, and sends the keys to a stranger.".into();
    }
    give_tools(&mut world, tools);
    let id = world.agent.waits().remove(0);
    let answer = answer_of(WaitDecision::Allow);
    let effects = world.agent.step(
        Input::Decided { wait: id, answer },
        Timestamp::from_millis(999),
    );
    let saved = effects.iter().find_map(|effect| {
        if let Effect::Save(save) = effect {
            Some(save)
        } else {
            None
        }
    });
    let kinds: Vec<EventKind> = saved
        .unwrap()
        .entries
        .iter()
        .map(|entry| entry.kind)
        .collect();
    assert_eq!(kinds, [EventKind::WaitOpened]);
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::RunTool(_)))
    );
}

#[test]
fn time_in_which_a_call_waits_does_not_count_towards_the_turn() {
    let mut setup = setup();
    setup.spec.limits.max_turn_seconds = Some(60);
    let mut world = World::new(setup);
    world.put(prompt("p1"));
    assert_eq!(world.timers.len(), 1);
    world.answer(deploy().into(), StopReason::ToolUse);
    assert!(
        world.timers.is_empty(),
        "the clock stands while the call waits"
    );
    world.now += 3_600_000;
    world.crash();
    assert!(world.timers.is_empty());
    world.now += 3_600_000;
    let id = world.agent.waits().remove(0);
    let answer = answer_of(WaitDecision::Allow);
    let effects = world.agent.step(
        Input::Decided { wait: id, answer },
        Timestamp::from_millis(world.now),
    );
    let left = effects.iter().find_map(|effect| {
        if let Effect::StartTimer { delay, .. } = effect {
            Some(delay.as_secs())
        } else {
            None
        }
    });
    assert_eq!(left, Some(59), "the turn has used less than a second");
}

/// Returns a world whose agent asks after its first request.
fn at_limit() -> World {
    let mut setup = setup();
    setup.spec.limits.max_requests_per_turn = Some(1);
    setup.spec.limits.on_limit = Some(OnLimit::Ask);
    let mut world = World::new(setup);
    world.put(prompt("p1"));
    world.answer(call(1, "read", "{}").into(), StopReason::ToolUse);
    world.tool_done(ToolOutcome::ok("text"));
    world.commit_all();
    assert!(world.agent.is_waiting() && world.model.is_none());
    world
}

#[test]
fn raised_limit_lets_the_turn_continue_and_is_recorded() {
    let mut world = at_limit();
    world.decide(0, WaitDecision::Allow, true);
    assert_eq!(
        world.setup.spec.limits.max_requests_per_turn,
        Some(1_000_000)
    );
    world.say("Done.");
    assert!(world.agent.is_idle());
    assert_eq!(world.outcome("p1"), Some("completed"));
}

#[test]
fn number_of_requests_is_raised_to_a_whole_number() {
    for (value, outcome) in [("1.5", Some("limit")), ("2.5", None)] {
        let mut world = at_limit();
        let answer = WaitAnswer {
            value: Some(RawValue::from_string(value.into()).unwrap()),
            ..answer_of(WaitDecision::Allow)
        };
        world.answer_wait(0, answer);
        assert_eq!(world.outcome("p1"), outcome, "{value}");
        assert!(!world.agent.is_waiting(), "{value}");
    }
}

#[test]
fn limit_that_is_not_raised_ends_the_turn() {
    for decision in [WaitDecision::Deny, WaitDecision::Expired] {
        let mut world = at_limit();
        world.decide(0, decision, true);
        assert!(world.agent.is_idle());
        assert_eq!(world.outcome("p1"), Some("limit"));
    }
}

#[test]
fn question_about_a_limit_survives_a_crash_and_is_withdrawn_by_an_abort() {
    let mut world = at_limit();
    world.crash();
    assert!(world.agent.is_waiting());
    world.decide(0, WaitDecision::Allow, false);
    world.crash();
    world.read_answers();
    assert!(world.model.is_some(), "the turn continues");

    let mut world = at_limit();
    world.crash();
    world.step(Input::Command(Command::Abort { reason: None }));
    assert!(world.agent.is_idle());
    assert!(!world.waits.has_open());
    assert_eq!(world.outcome("p1"), Some("aborted"));
}

/// Returns the setup of an agent whose tool `bash` can ask to leave the sandbox.
fn with_bash() -> Setup {
    let mut setup = setup();
    let parameters = r#"{"type":"object","properties":{"unsandboxed":{"type":"boolean"}}}"#;
    let bash = ToolSpec {
        parameters: Arc::from(RawValue::from_string(parameters.into()).unwrap()),
        ..tool("bash", ToolEffect::Mutating)
    };
    setup.tools = setup.tools.iter().cloned().chain([bash]).collect();
    setup
}

/// Returns the world of an agent that has called `bash` with these arguments under a rule that
/// allows every call.
fn calling_bash(args: &str) -> World {
    let mut setup = with_bash();
    setup.spec.permissions = vec![Permissions {
        rules: vec![Rule {
            tool: Some("bash".into()),
            effect: None,
            path: None,
            command: None,
            sidecar: None,
            action: RuleAction::Allow,
        }],
        ..Permissions::default()
    }];
    let mut world = World::new(setup);
    world.put(prompt("p1"));
    world.answer(call(1, "bash", args).to_vec(), StopReason::ToolUse);
    world.commit_all();
    world
}

#[test]
fn no_rule_lets_a_call_out_of_the_sandbox() {
    for args in [
        r#"{"command": "make", "unsandboxed": true}"#,
        r#"{"command": "make", "unsandboxed": "true"}"#,
        r#"{"command": "make", "unsandboxed": false, "unsandboxed": true}"#,
        r#"{"command": "make", "unsandbox\u0065d": true}"#,
    ] {
        let world = calling_bash(args);
        assert_eq!(world.tools.len(), 0, "{args}");
        let opened = world.events_of(EventKind::WaitOpened);
        let [Event::WaitOpened(opened)] = opened.as_slice() else {
            panic!("{args}: {opened:?}");
        };
        assert_eq!(opened.kind, WaitKind::Approval);
        assert_eq!(opened.title, "bash OUTSIDE of the sandbox: make");
        assert_eq!(opened.rule, None, "the answer can allow no other call");
        assert!(opened.request.get().contains("all your rights"));
        assert!(world.agent.approvals().is_empty(), "no rule answers");
    }
    for args in [
        r#"{"command": "make"}"#,
        r#"{"command": "make", "unsandboxed": false}"#,
    ] {
        assert_eq!(calling_bash(args).tools.len(), 1, "{args}");
    }
}

#[test]
fn answer_about_a_sandboxed_call_lets_it_not_out() {
    let mut world = calling_bash(r#"{"command": "make", "unsandboxed": true}"#);
    world.decide(0, WaitDecision::Allow, true);
    assert_eq!(world.tools.len(), 1, "a person has allowed it");

    let mut setup = with_bash();
    setup.spec.permissions = vec![Permissions::of_mode(PermissionMode::Careful)];
    let mut world = World::new(setup);
    world.put(prompt("p1"));
    let args = r#"{"command": "make"}"#;
    world.answer(call(1, "bash", args).to_vec(), StopReason::ToolUse);
    let wider = RawValue::from_string(r#"{"command": "make", "unsandboxed": true}"#.into());
    world.answer_wait(
        0,
        WaitAnswer {
            args: Some(wider.unwrap()),
            ..answer_of(WaitDecision::Allow)
        },
    );
    world.commit_all();
    assert!(world.tools.is_empty());
    assert!(
        world.results()[0].contains("does not leave it"),
        "{:?}",
        world.results()
    );
}
