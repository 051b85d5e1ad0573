use super::*;

const NOW: Moment = Moment::from_millis(1_000);

fn team(incarnation: i64) -> TeamIncarnation {
    TeamIncarnation {
        team: TeamId::parse("t").unwrap(),
        incarnation,
    }
}

fn agent(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

fn node(name: &str) -> NodeId {
    NodeId::parse(name).unwrap()
}

fn alive(on: &str, revision: Revision) -> SeenTeam {
    SeenTeam {
        revision,
        standing: TeamStanding::Alive,
        reason: None,
        node: node(on),
        is_node_gone: false,
    }
}

fn hosting(members: &[&str]) -> Cascade {
    let mut cascade = Cascade::default();
    for member in members {
        cascade.on(
            NOW,
            CascadeInput::AgentStarted {
                team: team(1),
                agent: agent(member),
                is_lead: false,
            },
        );
    }
    cascade.on(
        NOW,
        CascadeInput::TeamRead {
            team: team(1),
            seen: Some(alive("x", 5)),
        },
    );
    cascade
}

fn stopped(incarnation: i64, agents: &[&str], end: TeamEnd) -> CascadeEffect {
    CascadeEffect::StopMembers {
        team: team(incarnation),
        agents: agents.iter().map(|name| agent(name)).collect(),
        end,
    }
}

fn mark(expects: Option<Revision>, end: TeamEnd) -> CascadeEffect {
    CascadeEffect::MarkDead {
        team: team(1),
        expects,
        end,
    }
}

fn read() -> CascadeEffect {
    CascadeEffect::ReadTeam { team: team(1) }
}

fn marked(done: bool) -> CascadeInput {
    CascadeInput::MarkedDead {
        team: team(1),
        done,
    }
}

/// Passes each input to the cascade in order, and checks the effects that it returns.
fn plays(cascade: &mut Cascade, script: Vec<(CascadeInput, Vec<CascadeEffect>)>) {
    for (input, expected) in script {
        let told = format!("{input:?}");
        assert_eq!(cascade.on(NOW, input), expected, "{told}");
    }
}

#[test]
fn death_of_the_orchestrators_node_marks_the_team_dead_and_stops_its_members() {
    let end = TeamEnd::NodeDead;
    let died = CascadeInput::NodeDied { node: node("x") };
    let script = vec![
        (died.clone(), vec![mark(Some(5), end)]),
        (died, vec![]),
        (marked(true), vec![stopped(1, &["a", "b"], end)]),
        (marked(true), vec![]),
    ];
    plays(&mut hosting(&["a", "b"]), script);
}

#[test]
fn death_of_another_node_changes_nothing() {
    plays(
        &mut hosting(&["a"]),
        vec![(CascadeInput::NodeDied { node: node("y") }, vec![])],
    );
}

#[test]
fn record_decides_after_a_refused_mark() {
    let end = TeamEnd::NodeDead;
    let seen = |seen| CascadeInput::TeamRead {
        team: team(1),
        seen,
    };
    let dead = SeenTeam {
        standing: TeamStanding::Dead,
        reason: Some(TeamEnd::Closed),
        ..alive("x", 6)
    };
    let moved = alive("y", 6);
    let rewritten = SeenTeam {
        is_node_gone: true,
        ..alive("x", 6)
    };
    let cases = [
        (Some(dead), vec![stopped(1, &["a"], TeamEnd::Closed)]),
        (Some(moved), vec![]),
        (Some(rewritten), vec![mark(Some(6), end)]),
        (None, vec![mark(None, end)]),
    ];
    for (found, expected) in cases {
        let script = vec![
            (
                CascadeInput::NodeDied { node: node("x") },
                vec![mark(Some(5), end)],
            ),
            (marked(false), vec![read()]),
            (seen(found), expected),
        ];
        plays(&mut hosting(&["a"]), script);
    }
}

#[test]
fn an_answer_that_does_not_come_is_asked_for_again() {
    let mut cascade = hosting(&["a"]);
    cascade.on(NOW, CascadeInput::NodeDied { node: node("x") });
    let later = cascade.next_wake().unwrap();
    assert_eq!(later, NOW + PATIENCE);
    assert_eq!(cascade.on(later, CascadeInput::Woken), [read()]);
}

#[test]
fn a_team_whose_record_was_never_read_is_read_when_a_node_dies() {
    let mut cascade = Cascade::default();
    cascade.on(
        NOW,
        CascadeInput::AgentStarted {
            team: team(1),
            agent: agent("a"),
            is_lead: false,
        },
    );
    let script = vec![
        (CascadeInput::NodeDied { node: node("z") }, vec![read()]),
        (
            CascadeInput::TeamRead {
                team: team(1),
                seen: Some(alive("x", 5)),
            },
            vec![],
        ),
    ];
    plays(&mut cascade, script);
}

#[test]
fn only_the_leads_node_rewrites_a_lost_record() {
    let mut lead = Cascade::default();
    lead.on(
        NOW,
        CascadeInput::AgentStarted {
            team: team(1),
            agent: agent("lead"),
            is_lead: true,
        },
    );
    let missing = || CascadeInput::TeamRead {
        team: team(1),
        seen: None,
    };
    plays(
        &mut lead,
        vec![
            (CascadeInput::Sweep, vec![read()]),
            (
                missing(),
                vec![CascadeEffect::RewriteRecords { team: team(1) }],
            ),
        ],
    );
    plays(
        &mut hosting(&["a"]),
        vec![(CascadeInput::Sweep, vec![read()]), (missing(), vec![])],
    );
}

#[test]
fn record_of_a_stopped_member_is_removed() {
    let mut cascade = hosting(&["a"]);
    let down = || CascadeInput::AgentStopped {
        team: team(1),
        agent: agent("a"),
    };
    let purge = CascadeEffect::RemoveMember {
        team: team(1),
        agent: agent("a"),
    };
    plays(
        &mut cascade,
        vec![
            (down(), vec![purge]),
            (down(), vec![]),
            (CascadeInput::Sweep, vec![]),
        ],
    );
}

#[test]
fn end_of_an_incarnation_ends_the_ones_before_and_none_after() {
    let mut cascade = hosting(&["a"]);
    for (incarnation, member) in [(2, "b"), (3, "c")] {
        cascade.on(
            NOW,
            CascadeInput::AgentStarted {
                team: team(incarnation),
                agent: agent(member),
                is_lead: false,
            },
        );
    }
    let dead = SeenTeam {
        standing: TeamStanding::Dead,
        reason: Some(TeamEnd::Closed),
        ..alive("x", 6)
    };
    let read = CascadeInput::TeamRead {
        team: team(2),
        seen: Some(dead),
    };
    let stopped = vec![
        stopped(1, &["a"], TeamEnd::NodeDead),
        stopped(2, &["b"], TeamEnd::Closed),
    ];
    plays(&mut cascade, vec![(read, stopped)]);
    assert_eq!(cascade.teams().collect::<Vec<_>>(), [&team(3)]);
}
