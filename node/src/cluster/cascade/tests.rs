use super::*;

const NOW: Moment = Moment::from_millis(1_000);

fn life(incarnation: i64) -> Life {
    Life {
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
        node_died: false,
    }
}

fn hosting(members: &[&str]) -> Cascade {
    let mut cascade = Cascade::default();
    for member in members {
        cascade.on(
            NOW,
            Input::Up {
                life: life(1),
                agent: agent(member),
                lead: false,
            },
        );
    }
    cascade.on(
        NOW,
        Input::Read {
            life: life(1),
            seen: Some(alive("x", 5)),
        },
    );
    cascade
}

fn stopped(incarnation: i64, agents: &[&str], end: TeamEnd) -> Effect {
    Effect::Stop {
        life: life(incarnation),
        agents: agents.iter().map(|name| agent(name)).collect(),
        end,
    }
}

fn mark(expects: Option<Revision>, end: TeamEnd) -> Effect {
    Effect::MarkDead {
        life: life(1),
        expects,
        end,
    }
}

fn read() -> Effect {
    Effect::Read { life: life(1) }
}

fn marked(done: bool) -> Input {
    Input::Marked {
        life: life(1),
        done,
    }
}

/// What each input leads to, one after the other.
fn plays(cascade: &mut Cascade, script: Vec<(Input, Vec<Effect>)>) {
    for (input, expected) in script {
        let told = format!("{input:?}");
        assert_eq!(cascade.on(NOW, input), expected, "{told}");
    }
}

#[test]
fn a_dead_orchestrators_team_is_marked_and_its_members_dropped() {
    let end = TeamEnd::NodeDead;
    let died = Input::NodeDied { node: node("x") };
    let script = vec![
        (died.clone(), vec![mark(Some(5), end)]),
        (died, vec![]),
        (marked(true), vec![stopped(1, &["a", "b"], end)]),
        (marked(true), vec![]),
    ];
    plays(&mut hosting(&["a", "b"]), script);
}

#[test]
fn the_death_of_another_node_changes_nothing() {
    plays(
        &mut hosting(&["a"]),
        vec![(Input::NodeDied { node: node("y") }, vec![])],
    );
}

#[test]
fn a_refused_mark_is_settled_by_the_record() {
    let end = TeamEnd::NodeDead;
    let seen = |seen| Input::Read {
        life: life(1),
        seen,
    };
    let dead = SeenTeam {
        standing: TeamStanding::Dead,
        reason: Some(TeamEnd::Closed),
        ..alive("x", 6)
    };
    let moved = alive("y", 6);
    let rewritten = SeenTeam {
        node_died: true,
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
                Input::NodeDied { node: node("x") },
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
    cascade.on(NOW, Input::NodeDied { node: node("x") });
    let later = cascade.next_wake().unwrap();
    assert_eq!(later, NOW + PATIENCE);
    assert_eq!(cascade.on(later, Input::Woken), [read()]);
}

#[test]
fn a_team_whose_record_was_never_read_is_read_when_a_node_dies() {
    let mut cascade = Cascade::default();
    cascade.on(
        NOW,
        Input::Up {
            life: life(1),
            agent: agent("a"),
            lead: false,
        },
    );
    let script = vec![
        (Input::NodeDied { node: node("z") }, vec![read()]),
        (
            Input::Read {
                life: life(1),
                seen: Some(alive("x", 5)),
            },
            vec![],
        ),
    ];
    plays(&mut cascade, script);
}

#[test]
fn an_orchestrator_that_ends_takes_its_team_along() {
    let mut cascade = Cascade::default();
    cascade.on(
        NOW,
        Input::Up {
            life: life(1),
            agent: agent("lead"),
            lead: true,
        },
    );
    cascade.on(
        NOW,
        Input::Up {
            life: life(1),
            agent: agent("w"),
            lead: false,
        },
    );
    cascade.on(
        NOW,
        Input::Read {
            life: life(1),
            seen: Some(alive("me", 5)),
        },
    );
    let end = TeamEnd::Closed;
    let script = vec![
        (
            Input::LeadEnded { life: life(1), end },
            vec![stopped(1, &["lead", "w"], end), mark(Some(5), end)],
        ),
        (marked(false), vec![read()]),
        (
            Input::Read {
                life: life(1),
                seen: Some(alive("me", 7)),
            },
            vec![mark(Some(7), end)],
        ),
        (marked(true), vec![]),
    ];
    plays(&mut cascade, script);
    assert_eq!(cascade.lives().count(), 0);
}

#[test]
fn a_later_life_ends_the_ones_before() {
    let mut cascade = hosting(&["a"]);
    cascade.on(
        NOW,
        Input::Up {
            life: life(2),
            agent: agent("b"),
            lead: false,
        },
    );
    let script = vec![
        (
            Input::Over {
                life: life(1),
                end: TeamEnd::NodeDead,
            },
            vec![stopped(1, &["a"], TeamEnd::NodeDead)],
        ),
        (
            Input::Over {
                life: life(3),
                end: TeamEnd::NodeDead,
            },
            vec![stopped(2, &["b"], TeamEnd::NodeDead)],
        ),
    ];
    plays(&mut cascade, script);
}

#[test]
fn a_lost_record_is_written_again_by_the_leads_node_only() {
    let mut lead = Cascade::default();
    lead.on(
        NOW,
        Input::Up {
            life: life(1),
            agent: agent("lead"),
            lead: true,
        },
    );
    let missing = || Input::Read {
        life: life(1),
        seen: None,
    };
    plays(
        &mut lead,
        vec![
            (Input::Sweep, vec![read()]),
            (missing(), vec![Effect::Reassert { life: life(1) }]),
        ],
    );
    plays(
        &mut hosting(&["a"]),
        vec![(Input::Sweep, vec![read()]), (missing(), vec![])],
    );
}

#[test]
fn a_member_that_stops_by_itself_is_purged() {
    let mut cascade = hosting(&["a"]);
    let down = || Input::Down {
        life: life(1),
        agent: agent("a"),
    };
    let purge = Effect::Purge {
        life: life(1),
        agent: agent("a"),
    };
    plays(
        &mut cascade,
        vec![
            (down(), vec![purge]),
            (down(), vec![]),
            (Input::Sweep, vec![]),
        ],
    );
}
