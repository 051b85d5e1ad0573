use super::*;

const START: Moment = Moment::from_millis(10_000);
const TOOLS_FROM: Moment = Moment::from_millis(12_000);

fn node(name: &str) -> NodeId {
    NodeId::parse(name).unwrap()
}

fn lease(on: &str, epoch: i64) -> LeadLease {
    LeadLease {
        node: Some(node(on)),
        epoch,
        incarnation: 3,
    }
}

fn plan(hosts: &[&str], policy: ClaimPolicy) -> ClaimPlan {
    let hosts = hosts.iter().map(|name| node(name)).collect();
    ClaimPlan {
        me: node("me"),
        seen: lease("dead", 7),
        hosts,
        policy,
        tools_from: TOOLS_FROM,
        grace: Duration::from_millis(4_500),
    }
}

fn begin(hosts: &[&str], policy: ClaimPolicy) -> TeamClaim {
    let (claim, effects) = TeamClaim::begin(plan(hosts, policy), START);
    assert_eq!(effects, [ClaimEffect::TakeLease { seen: 7 }]);
    claim
}

/// Passes each input to the claim at its number of milliseconds after the start, and checks the
/// effects.
fn plays(claim: &mut TeamClaim, script: Vec<(u64, ClaimInput, Vec<ClaimEffect>)>) {
    for (after, input, expected) in script {
        let what = format!("{after} {input:?}");
        assert_eq!(
            claim.on(START + Duration::from_millis(after), input),
            expected,
            "{what}"
        );
    }
}

fn stop(name: &str) -> ClaimEffect {
    ClaimEffect::StopTeam {
        node: node(name),
        incarnation: 3,
    }
}

fn stopped(name: &str) -> ClaimInput {
    ClaimInput::Stopped { node: node(name) }
}

const MARK_DEAD: ClaimEffect = ClaimEffect::MarkTeamDead { incarnation: 3 };
const CREATE: ClaimEffect = ClaimEffect::CreateTeam { incarnation: 4 };
const STARTED: ClaimEffect = ClaimEffect::Start {
    epoch: 8,
    incarnation: 4,
    tools_from: TOOLS_FROM,
};

#[test]
fn lease_then_stop_then_record_then_start() {
    let script = vec![
        (
            1,
            ClaimInput::LeaseTaken,
            vec![stop("a"), stop("b"), MARK_DEAD],
        ),
        (2, ClaimInput::TeamMarkedDead, vec![]),
        (3, stopped("b"), vec![]),
        (4, stopped("a"), vec![CREATE]),
        (5, ClaimInput::TeamCreated, vec![STARTED]),
        (6, ClaimInput::TeamCreated, vec![]),
    ];
    plays(&mut begin(&["a", "b"], ClaimPolicy::Resume), script);
}

#[test]
fn silent_host_is_waited_for_one_second() {
    let mut claim = begin(&["a"], ClaimPolicy::Resume);
    plays(
        &mut claim,
        vec![
            (1, ClaimInput::LeaseTaken, vec![stop("a"), MARK_DEAD]),
            (2, ClaimInput::TeamMarkedDead, vec![]),
        ],
    );
    assert_eq!(
        claim.next_wake(),
        Some(START + Duration::from_millis(1_001))
    );
    plays(
        &mut claim,
        vec![
            (1_000, ClaimInput::Woken, vec![]),
            (1_001, ClaimInput::Woken, vec![CREATE]),
        ],
    );
    let tools_from = Moment::from_millis(14_501);
    let started = ClaimEffect::Start {
        epoch: 8,
        incarnation: 4,
        tools_from,
    };
    plays(
        &mut claim,
        vec![(1_100, ClaimInput::TeamCreated, vec![started])],
    );
}

#[test]
fn next_record_waits_for_the_death_of_the_last() {
    let mut claim = begin(&[], ClaimPolicy::Resume);
    let script = vec![
        (0, ClaimInput::LeaseTaken, vec![MARK_DEAD]),
        (1_500, ClaimInput::Woken, vec![]),
        (2_000, ClaimInput::Woken, vec![MARK_DEAD]),
        (2_100, ClaimInput::TeamMarkedDead, vec![CREATE]),
        (4_100, ClaimInput::Woken, vec![CREATE]),
        (4_200, ClaimInput::TeamCreated, vec![STARTED]),
    ];
    plays(&mut claim, script);
}

#[test]
fn claim_with_an_unknown_outcome_reads_the_lease() {
    let unsure = || (2_000, ClaimInput::Woken, vec![ClaimEffect::ReadLease]);
    let read = |lease| ClaimInput::LeaseRead(lease);
    let cases = [
        (lease("me", 8), vec![MARK_DEAD]),
        (lease("other", 8), vec![ClaimEffect::Lost]),
        (lease("me", 9), vec![ClaimEffect::Lost]),
        (lease("dead", 7), vec![ClaimEffect::TakeLease { seen: 7 }]),
    ];
    for (found, expected) in cases {
        let mut claim = begin(&[], ClaimPolicy::Resume);
        plays(&mut claim, vec![unsure(), (2_001, read(found), expected)]);
    }
}

#[test]
fn refused_claim_starts_nothing() {
    let mut claim = begin(&["a"], ClaimPolicy::Resume);
    plays(
        &mut claim,
        vec![
            (1, ClaimInput::LeaseRefused, vec![ClaimEffect::Lost]),
            (5_000, ClaimInput::Woken, vec![]),
        ],
    );
    assert_eq!(claim.next_wake(), None);
    let mut claim = begin(&[], ClaimPolicy::Resume);
    let script = vec![
        (1, ClaimInput::LeaseTaken, vec![MARK_DEAD]),
        (2, ClaimInput::TeamMarkedDead, vec![CREATE]),
        (3, ClaimInput::TeamTaken, vec![ClaimEffect::Lost]),
    ];
    plays(&mut claim, script);
}

#[test]
fn stop_policy_closes_the_session() {
    let close = ClaimEffect::Close {
        epoch: 8,
        incarnation: 4,
    };
    let script = vec![
        (1, ClaimInput::LeaseTaken, vec![MARK_DEAD]),
        (2, ClaimInput::TeamMarkedDead, vec![close]),
    ];
    plays(&mut begin(&[], ClaimPolicy::Stop), script);
}
