use super::*;

const QUIET: Moment = Moment::from_millis(9_000);

fn node(name: &str) -> NodeId {
    NodeId::parse(name).unwrap()
}

fn led(is_led_here: bool, is_new_incarnation: bool) -> LedTeam {
    LedTeam {
        is_led_here,
        is_new_incarnation,
        tools_from: Some(Moment::from_millis(5_000)),
        ..LedTeam::led_here(OnNodeDeath::Resume)
    }
}

fn member(holder: LeaseHolder) -> MemberFacts {
    MemberFacts {
        is_hosted_here: false,
        holder,
        is_for_work: true,
        quiet_from: Some(QUIET),
    }
}

fn lead(holder: LeaseHolder) -> LeadFacts {
    LeadFacts {
        is_hosted_here: false,
        holder,
        is_alone: false,
        is_ending: false,
    }
}

#[test]
fn first_sweep_is_at_once_and_the_second_when_silence_shows_the_dead() {
    let mut schedule = SweepSchedule::new(Duration::from_secs(10));
    let pauses: Vec<u128> = [0.0, 0.0, 0.0, 1.0]
        .map(|random| schedule.pause(random).as_millis())
        .into();
    assert_eq!(pauses, [0, 5_200, 8_000, 12_000]);
    assert!(schedule.begin());
    let full = (1..=FULL_SWEEP).filter(|_| schedule.begin()).count();
    assert_eq!(full, 1);
}

#[test]
fn node_counts_as_gone_only_by_the_registry_or_by_its_process() {
    let cases = [
        (Some(true), None, NodeLife::Gone),
        (Some(true), Some(true), NodeLife::Gone),
        (Some(false), Some(false), NodeLife::Gone),
        (None, Some(false), NodeLife::Gone),
        (None, Some(true), NodeLife::Alive),
        (Some(false), None, NodeLife::Alive),
        (None, None, NodeLife::Unknown),
    ];
    for (is_gone, process_lives, life) in cases {
        assert_eq!(NodeLife::of(is_gone, process_lives), life);
    }
}

#[test]
fn lease_of_a_living_node_is_not_claimed() {
    let (me, other) = (node("me"), node("other"));
    let cases = [
        (None, false, LeaseHolder::Nobody, Some(ClaimCause::Free)),
        (
            Some(&me),
            false,
            LeaseHolder::ThisNode,
            Some(ClaimCause::Free),
        ),
        (Some(&other), true, LeaseHolder::Living, None),
        (
            Some(&other),
            false,
            LeaseHolder::Gone,
            Some(ClaimCause::HolderGone),
        ),
    ];
    for (holder, is_alive, expected, cause) in cases {
        let holder = LeaseHolder::of(holder, &me, is_alive);
        assert_eq!(holder, expected);
        assert_eq!(holder.claimable(), cause);
    }
}

#[test]
fn closed_session_opens_only_for_a_prompt() {
    assert_eq!(sweep_step(true, false, true), SweepStep::TakeUp);
    assert_eq!(sweep_step(false, true, false), SweepStep::TakeUp);
    assert_eq!(sweep_step(false, false, true), SweepStep::FinishClose);
    assert_eq!(sweep_step(false, false, false), SweepStep::Leave);
}

#[test]
fn session_is_lost_with_its_node_only_if_it_is_to_stop() {
    for has_begun in [false, true] {
        assert!(is_lost(LeaseHolder::Gone, OnNodeDeath::Stop, has_begun));
        assert!(!is_lost(LeaseHolder::Gone, OnNodeDeath::Resume, has_begun));
        assert!(!is_lost(LeaseHolder::Living, OnNodeDeath::Stop, has_begun));
        assert!(!is_lost(LeaseHolder::Nobody, OnNodeDeath::Stop, has_begun));
        assert_eq!(
            is_lost(LeaseHolder::ThisNode, OnNodeDeath::Stop, has_begun),
            has_begun
        );
    }
}

#[test]
fn new_incarnation_begins_unless_the_lead_only_moves() {
    let hosted = LeadFacts {
        is_hosted_here: true,
        ..lead(LeaseHolder::ThisNode)
    };
    assert_eq!(lead_step(hosted), LeadStep::Hosted);
    let cases = [
        (LeaseHolder::Living, LeadStep::HostedElsewhere),
        (LeaseHolder::Nobody, LeadStep::MoveOrBegin),
        (LeaseHolder::ThisNode, LeadStep::BeginIncarnation),
        (LeaseHolder::Gone, LeadStep::BeginIncarnation),
    ];
    for (holder, step) in cases {
        assert_eq!(lead_step(lead(holder)), step);
    }
}

#[test]
fn node_that_is_alone_only_takes_the_lease() {
    for (holder, after_death) in [(LeaseHolder::Nobody, false), (LeaseHolder::Gone, true)] {
        let alone = LeadFacts {
            is_alone: true,
            ..lead(holder)
        };
        assert_eq!(lead_step(alone), LeadStep::TakeLease { after_death });
    }
}

#[test]
fn plan_stops_living_hosts_and_waits_for_dead_ones() {
    let host = |name, is_alive, quiet_from| TeamHost {
        node: node(name),
        is_alive,
        quiet_from,
    };
    let seen = LeadLease {
        node: Some(node("dead")),
        epoch: 7,
        incarnation: 3,
    };
    let hosts = vec![
        host("dead", false, Some(QUIET)),
        host("living", true, None),
        host("unseen", false, None),
    ];
    let now = Moment::from_millis(6_000);
    let grace = Duration::from_secs(4);
    let plan = claim_plan((node("me"), seen), hosts, ClaimPolicy::Resume, now, grace);
    assert_eq!(plan.hosts.into_iter().collect::<Vec<_>>(), [node("living")]);
    assert_eq!(plan.tools_from, QUIET);
}

#[test]
fn members_are_looked_after_by_the_node_of_their_lead() {
    let cases = [
        (led(true, false), LeaseHolder::Gone, MemberStep::Place),
        (led(true, false), LeaseHolder::Living, MemberStep::Leave),
        (led(true, true), LeaseHolder::Living, MemberStep::Place),
        (led(false, false), LeaseHolder::Gone, MemberStep::Leave),
        (
            led(false, false),
            LeaseHolder::ThisNode,
            MemberStep::ClaimHere,
        ),
    ];
    for (led, holder, step) in cases {
        assert_eq!(member_plan(led, member(holder)).step, step, "{holder:?}");
    }
    let ending = MemberFacts {
        is_for_work: false,
        ..member(LeaseHolder::Gone)
    };
    let step = member_plan(led(true, false), ending).step;
    assert_eq!(step, MemberStep::ClaimHere);
    let hosted = MemberFacts {
        is_hosted_here: true,
        ..member(LeaseHolder::ThisNode)
    };
    assert_eq!(member_plan(led(true, true), hosted).step, MemberStep::Leave);
}

#[test]
fn member_that_is_not_to_go_on_is_stopped_with_its_node() {
    let stop = LedTeam {
        on_node_death: OnNodeDeath::Stop,
        ..led(true, false)
    };
    let plan = member_plan(stop, member(LeaseHolder::Gone));
    assert_eq!((plan.step, plan.after_death), (MemberStep::StopLost, true));
    let free = member_plan(stop, member(LeaseHolder::Nobody));
    assert_eq!(free.step, MemberStep::Place);
}

#[test]
fn session_that_ends_after_a_death_stops_no_member_for_good() {
    let stop = LedTeam {
        on_node_death: OnNodeDeath::Stop,
        ..led(true, false)
    };
    let ending = MemberFacts {
        is_for_work: false,
        ..member(LeaseHolder::Gone)
    };
    let plan = member_plan(stop, ending);
    assert_eq!((plan.step, plan.after_death), (MemberStep::ClaimHere, true));
}

#[test]
fn tools_of_a_member_wait_for_its_dead_node() {
    let from = |holder| member_plan(led(true, false), member(holder)).tools_from;
    assert_eq!(from(LeaseHolder::Gone), Some(QUIET));
    assert_eq!(from(LeaseHolder::Nobody), Some(Moment::from_millis(5_000)));
}

/// A node that did not answer when it was asked to start the member may have lost only NATS.
#[test]
fn tools_of_a_member_wait_until_the_last_holder_sees_the_claim_in_sql() {
    let plan = member_plan(led(true, true), member(LeaseHolder::Living));
    let now = Moment::from_millis(4_000);
    assert_eq!(plan.tools_from_claim(now, false), plan.tools_from);
    let seen_from = now + SEEN_IN_SQL;
    assert_eq!(plan.tools_from_claim(now, true), Some(seen_from));
}

#[test]
fn agent_whose_lease_moved_is_superseded() {
    let here = [("same", 2), ("gone", 2), ("back", 2)];
    let held = BTreeMap::from([("same", 2), ("back", 4), ("elsewhere", 1)]);
    assert_eq!(superseded(&here, &held), ["gone", "back"]);
}

#[test]
fn tools_of_a_member_wait_when_another_node_leads() {
    let (now, grace) = (Moment::from_millis(1_000), Duration::from_millis(4_500));
    let led = LedTeam::led_elsewhere(OnNodeDeath::Resume, now, grace);
    let plan = member_plan(led, member(LeaseHolder::ThisNode));
    assert_eq!(plan.step, MemberStep::ClaimHere);
    assert_eq!(plan.tools_from, Some(now + grace));
}
