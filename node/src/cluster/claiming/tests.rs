use super::*;

const START: Moment = Moment::from_millis(10_000);
const TOOLS_FROM: Moment = Moment::from_millis(12_000);

fn node(name: &str) -> NodeId {
    NodeId::parse(name).unwrap()
}

fn lease(on: &str, epoch: i64) -> Lease {
    Lease {
        node: Some(node(on)),
        epoch,
        incarnation: 3,
    }
}

fn plan(hosts: &[&str], policy: Policy) -> Plan {
    let hosts = hosts.iter().map(|name| node(name)).collect();
    Plan {
        me: node("me"),
        seen: lease("dead", 7),
        hosts,
        policy,
        tools_from: TOOLS_FROM,
        grace: Duration::from_millis(4_500),
    }
}

fn begin(hosts: &[&str], policy: Policy) -> Claim {
    let (claim, effects) = Claim::begin(plan(hosts, policy), START);
    assert_eq!(effects, [Effect::TakeLease { seen: 7 }]);
    claim
}

/// What each input leads to; the time is that of the claim in milliseconds.
fn plays(claim: &mut Claim, script: Vec<(u64, Input, Vec<Effect>)>) {
    for (after, input, expected) in script {
        let told = format!("{after} {input:?}");
        assert_eq!(
            claim.on(START + Duration::from_millis(after), input),
            expected,
            "{told}"
        );
    }
}

fn stop(name: &str) -> Effect {
    Effect::StopTeam {
        node: node(name),
        incarnation: 3,
    }
}

fn stopped(name: &str) -> Input {
    Input::Stopped { node: node(name) }
}

const BURY: Effect = Effect::Bury { incarnation: 3 };
const CREATE: Effect = Effect::CreateTeam { incarnation: 4 };
const STARTED: Effect = Effect::Start {
    epoch: 8,
    incarnation: 4,
    tools_from: TOOLS_FROM,
};

#[test]
fn fence_then_stop_then_record_then_start() {
    let script = vec![
        (1, Input::LeaseTaken, vec![stop("a"), stop("b"), BURY]),
        (2, Input::Buried, vec![]),
        (3, stopped("b"), vec![]),
        (4, stopped("a"), vec![CREATE]),
        (5, Input::TeamCreated, vec![STARTED]),
        (6, Input::TeamCreated, vec![]),
    ];
    plays(&mut begin(&["a", "b"], Policy::Resume), script);
}

#[test]
fn who_does_not_answer_is_waited_for_a_second() {
    let mut claim = begin(&["a"], Policy::Resume);
    plays(
        &mut claim,
        vec![
            (1, Input::LeaseTaken, vec![stop("a"), BURY]),
            (2, Input::Buried, vec![]),
        ],
    );
    assert_eq!(
        claim.next_wake(),
        Some(START + Duration::from_millis(1_001))
    );
    plays(
        &mut claim,
        vec![
            (1_000, Input::Woken, vec![]),
            (1_001, Input::Woken, vec![CREATE]),
        ],
    );
    let tools_from = Moment::from_millis(14_501);
    let started = Effect::Start {
        epoch: 8,
        incarnation: 4,
        tools_from,
    };
    plays(&mut claim, vec![(1_100, Input::TeamCreated, vec![started])]);
}

#[test]
fn nothing_is_created_before_the_last_life_is_dead() {
    let mut claim = begin(&[], Policy::Resume);
    let script = vec![
        (0, Input::LeaseTaken, vec![BURY]),
        (1_500, Input::Woken, vec![]),
        (2_000, Input::Woken, vec![BURY]),
        (2_100, Input::Buried, vec![CREATE]),
        (4_100, Input::Woken, vec![CREATE]),
        (4_200, Input::TeamCreated, vec![STARTED]),
    ];
    plays(&mut claim, script);
}

#[test]
fn a_claim_with_an_unknown_outcome_is_looked_up() {
    let unsure = || (2_000, Input::Woken, vec![Effect::ReadLease]);
    let read = |lease| Input::LeaseRead(lease);
    let cases = [
        (lease("me", 8), vec![BURY]),
        (lease("other", 8), vec![Effect::Lost]),
        (lease("me", 9), vec![Effect::Lost]),
        (lease("dead", 7), vec![Effect::TakeLease { seen: 7 }]),
    ];
    for (found, expected) in cases {
        let mut claim = begin(&[], Policy::Resume);
        plays(&mut claim, vec![unsure(), (2_001, read(found), expected)]);
    }
}

#[test]
fn the_loser_stops() {
    let mut claim = begin(&["a"], Policy::Resume);
    plays(
        &mut claim,
        vec![
            (1, Input::LeaseRefused, vec![Effect::Lost]),
            (5_000, Input::Woken, vec![]),
        ],
    );
    assert_eq!(claim.next_wake(), None);
    let mut claim = begin(&[], Policy::Resume);
    let script = vec![
        (1, Input::LeaseTaken, vec![BURY]),
        (2, Input::Buried, vec![CREATE]),
        (3, Input::TeamTaken, vec![Effect::Lost]),
    ];
    plays(&mut claim, script);
}

#[test]
fn a_session_that_is_not_to_go_on_is_closed() {
    let close = Effect::Close {
        epoch: 8,
        incarnation: 4,
    };
    let script = vec![
        (1, Input::LeaseTaken, vec![BURY]),
        (2, Input::Buried, vec![close]),
    ];
    plays(&mut begin(&[], Policy::Stop), script);
}

#[test]
fn everybody_agrees_whose_turn_it_is() {
    let session = SessionId::parse("s").unwrap();
    let nodes: Vec<NodeId> = ["a", "b", "c", "d"].into_iter().map(node).collect();
    let mut turns: Vec<Duration> = nodes
        .iter()
        .map(|me| turn(&session, me, nodes.iter().filter(|other| *other != me)))
        .collect();
    turns.sort();
    assert_eq!(turns, [Duration::ZERO, TURN, TURN * 2, TURN * 3]);
}
