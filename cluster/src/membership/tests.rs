//! The membership of one node with a simulated clock, NATS link and peers.

mod fleet;
mod lab;

use self::lab::*;
use super::*;

const ME: &str = "m";

#[test]
fn a_node_begins_suspended_and_acts_once_heard_and_proved() {
    let mut lab = Lab::new(&[]);
    lab.proof = Answer::None;
    lab.until(3_000);
    assert!(!lab.node.may_act(Moment::from_millis(lab.now)));
    lab.proof = Answer::Committed;
    lab.until(5_000);
    assert!(lab.node.may_act(Moment::from_millis(lab.now)));
    assert_eq!(
        lab.when(|effect| matches!(
            effect,
            MembershipEffect::Write {
                standing: NodeStanding::Alive,
                expects: None
            }
        )),
        [0]
    );
}

/// While a node joins, nothing checks its leases, so it must not wait for that.
#[test]
fn node_whose_first_write_failed_writes_again() {
    let mut lab = Lab::new(&["p"]);
    (lab.loses_write, lab.sql) = (true, false);
    lab.until(5_000);
    assert!(lab.node.may_act(Moment::from_millis(lab.now)));
}

#[test]
fn proofs_go_out_every_two_seconds_on_condition_of_the_own_record() {
    let mut lab = Lab::new(&[]);
    lab.until(7_000);
    assert_eq!(
        lab.proofs,
        [(0, 100), (2_000, 100), (4_000, 100), (6_000, 100)]
    );
}

#[test]
fn silent_peer_is_suspected_and_then_declared_dead() {
    let mut lab = Lab::settled(&["p", "q", "r"]);
    lab.silence("p");
    lab.until(14_000);
    let declares = MembershipEffect::DeclareDead {
        node: id("p"),
        expects: Some(7),
        own: 100,
        silent: Duration::from_secs(3),
    };
    let suspect = MembershipEffect::Peer {
        node: id("p"),
        news: PeerNews::Suspect,
    };
    let dead = MembershipEffect::Peer {
        node: id("p"),
        news: died(10_000),
    };
    assert_eq!(
        lab.asked,
        [(13_000, suspect), (13_000, declares), (13_000, dead)]
    );
    assert_eq!(lab.node.is_gone(&id("p")), Some(true));
}

#[test]
fn peer_that_is_heard_in_time_is_not_declared_dead() {
    let mut lab = Lab::settled(&["a", "p", "q"]);
    lab.silence("p");
    lab.until(13_030);
    lab.tell(MembershipInput::Heartbeat {
        node: id("p"),
        seq: 1,
    });
    lab.until(14_000);
    // `a` comes before `m`, so 50 ms pass between the suspicion and the declaration.
    let news = |news| MembershipEffect::Peer {
        node: id("p"),
        news,
    };
    assert_eq!(
        lab.asked,
        [
            (13_000, news(PeerNews::Suspect)),
            (13_030, news(PeerNews::Back))
        ]
    );
}

#[test]
fn heartbeats_of_a_node_without_young_proof_keep_nobody_alive() {
    let mut lab = Lab::settled(&["p"]);
    lab.until(20_000);
    lab.proofless.push(id("p"));
    lab.until(31_000);
    assert_eq!(
        lab.deaths(),
        [0_u64; 0],
        "its proof is old, and not yet older than a living node's may be"
    );
    lab.until(45_000);
    let verdict = *lab
        .deaths()
        .first()
        .expect("its heartbeats go on, and it is dead");
    assert!((34_000..43_000).contains(&verdict), "{verdict}");
}

#[test]
fn proof_that_comes_in_time_keeps_its_node_alive() {
    let mut lab = Lab::settled(&["p", "q"]);
    lab.proofless.push(id("p"));
    lab.until(25_500);
    lab.proofless.clear();
    lab.until(60_000);
    assert_eq!(lab.deaths(), [0_u64; 0]);
}

#[test]
fn record_that_a_node_has_written_anew_keeps_it_alive() {
    let proofless = || {
        let mut lab = Lab::settled(&["p"]);
        lab.proofless.push(id("p"));
        lab
    };
    let mut lab = proofless();
    lab.until(45_000);
    let verdict = *lab.deaths().first().expect("its proof is old");
    let mut lab = proofless();
    lab.until(verdict - 1_000);
    // Its next heartbeat comes before the verdict would be due, and its next proof is read later.
    lab.proofless.clear();
    let record = seen(8, NodeStanding::Alive, "p");
    lab.records.insert(id("p"), record.clone());
    lab.tell(MembershipInput::Record {
        node: id("p"),
        seen: Some(record),
        source: ReadSource::Watch,
    });
    lab.until(60_000);
    assert_eq!(lab.deaths(), [0_u64; 0]);
}

#[test]
fn every_peer_has_two_witnesses() {
    let names = ["a", "f", ME, "n", "z"];
    let mut witnesses: BTreeMap<String, usize> = BTreeMap::new();
    for me in names {
        let others: Vec<&str> = names.into_iter().filter(|name| *name != me).collect();
        let mut lab = Lab::of(me, &others);
        lab.until(10_000);
        for peer in lab.node.witnessed_peers() {
            *witnesses.entry(peer.to_string()).or_default() += 1;
        }
    }
    assert_eq!(witnesses, names.map(|name| (name.to_owned(), 2)).into());
}

#[test]
fn observers_declare_a_death_one_after_the_other() {
    let mut lab = Lab::settled(&["a", "b", "p", "q"]);
    lab.silence("p");
    lab.until(14_000);
    assert_eq!(lab.deaths(), [13_100]);
}

#[test]
fn when_most_are_silent_they_get_three_times_as_long() {
    for (silent, expected) in [
        (&["p"][..], 13_000),
        (&["p", "q"][..], 18_000),
        (&["p", "q", "r"][..], 18_000),
    ] {
        let mut lab = Lab::settled(&["p", "q", "r"]);
        silent.iter().for_each(|peer| lab.silence(peer));
        lab.until(25_000);
        assert_eq!(lab.deaths(), vec![expected; silent.len()], "{silent:?}");
    }
}

#[test]
fn one_of_two_is_not_a_mass() {
    let mut lab = Lab::settled(&["p"]);
    lab.silence("p");
    lab.until(14_000);
    assert_eq!(lab.deaths(), [13_000]);
}

#[test]
fn node_without_a_proof_of_its_own_declares_no_one_dead() {
    let mut lab = Lab::settled(&["p", "q"]);
    lab.proof = Answer::None;
    lab.until(13_000);
    lab.silence("p");
    lab.until(18_000);
    assert_eq!(lab.deaths(), Vec::<u64>::new());
    // The next proof is sent at 20 s, and silence counts again from then on.
    lab.proof = Answer::Committed;
    lab.until(25_000);
    assert_eq!(lab.deaths(), [23_000]);
}

#[test]
fn an_own_gap_makes_all_that_was_heard_before_void() {
    let mut lab = Lab::settled(&["p", "q"]);
    lab.echoes = false;
    lab.silence("p");
    lab.silence("q");
    lab.until(16_000);
    lab.echoes = true;
    lab.until(24_000);
    // Heartbeats come back from 16.5 s, and the node is an observer from 19.5 s. Both peers are
    // silent, so each must be silent for 7.5 s from then on.
    assert_eq!(lab.deaths(), Vec::<u64>::new());
    assert_eq!(
        lab.when(|effect| *effect == MembershipEffect::ReadAll),
        [19_500]
    );
    lab.until(30_000);
    assert_eq!(lab.deaths(), [27_500, 27_500]);
}

#[test]
fn young_node_declares_a_peer_that_it_heard_dead_as_soon_as_it_may() {
    let mut lab = Lab::new(&["p", "q"]);
    lab.until(600);
    lab.silence("p");
    lab.until(8_000);
    // The last heartbeat of `p` was at 0.5 s. The node may declare deaths from 3 s, but first waits
    // until its own heartbeat of 3.5 s has come back.
    assert_eq!(lab.deaths(), [3_500]);
}

#[test]
fn a_pause_is_an_own_gap() {
    let mut lab = Lab::settled(&["p", "q"]);
    lab.now = 40_000;
    lab.tell(MembershipInput::Heartbeat {
        node: id("q"),
        seq: 1,
    });
    assert_eq!(lab.when(suspends), [40_000]);
    lab.until(50_000);
    assert_eq!(lab.deaths(), Vec::<u64>::new());
}

#[test]
fn after_a_pause_nothing_is_started_before_a_new_proof() {
    let mut lab = Lab::settled(&["p"]);
    lab.proof = Answer::None;
    lab.now = 16_000;
    lab.tell(MembershipInput::Woken);
    lab.until(17_900);
    assert_eq!(lab.when(suspends), [16_000]);
    assert!(
        !lab.node.may_act(Moment::from_millis(lab.now)),
        "its last proof is young enough, but from before the pause"
    );
    lab.proof = Answer::Committed;
    lab.until(19_000);
    assert!(lab.node.may_act(Moment::from_millis(lab.now)));
}

#[test]
fn an_old_echo_or_an_old_proof_suspends() {
    let mut lab = Lab::settled(&["p"]);
    lab.echoes = false;
    lab.until(20_000);
    assert_eq!(
        lab.asked.first(),
        Some(&(
            12_001,
            MembershipEffect::Suspend {
                why: SuspensionCause::Unheard
            }
        )),
        "the last echo is of 10 s"
    );

    let mut lab = Lab::settled(&["p"]);
    lab.proof = Answer::None;
    lab.until(25_000);
    let suspended = lab.asked.iter().find(|(_, effect)| suspends(effect));
    assert_eq!(
        suspended,
        Some(&(
            22_001,
            MembershipEffect::Suspend {
                why: SuspensionCause::Unproven
            }
        )),
        "the last proof is of 10 s"
    );
    lab.proof = Answer::Committed;
    lab.until(27_000);
    assert_eq!(lab.when(resumes), [26_000]);
}

#[test]
fn the_echo_of_an_old_heartbeat_is_no_sign_of_life() {
    let mut lab = Lab::settled(&["p"]);
    lab.echoes = false;
    lab.until(14_000);
    lab.tell(MembershipInput::Heartbeat {
        node: id(ME),
        seq: 21,
    });
    lab.until(14_400);
    assert_eq!(
        lab.when(resumes),
        Vec::<u64>::new(),
        "it was sent four seconds ago"
    );
}

#[test]
fn a_suspended_node_asks_sql_every_second_and_kills_its_tools_when_sql_is_silent() {
    let mut lab = Lab::settled(&["p"]);
    lab.echoes = false;
    lab.until(13_600);
    assert_eq!(
        lab.when(|effect| matches!(effect, MembershipEffect::CheckLeases { .. })),
        [12_001, 13_001]
    );
    lab.sql = false;
    lab.until(20_000);
    assert_eq!(
        lab.when(|effect| *effect == MembershipEffect::KillTools),
        [15_001]
    );
}

#[test]
fn alone_no_tool_is_killed() {
    let mut lab = Lab::settled(&[]);
    (lab.echoes, lab.sql) = (false, false);
    lab.until(30_000);
    assert_eq!(
        lab.when(|effect| *effect == MembershipEffect::KillTools),
        Vec::<u64>::new()
    );
}

#[test]
fn a_refused_proof_asks_what_became_of_the_own_record() {
    type After = fn(&mut Lab);
    let dead: After = |lab| {
        drop(
            lab.records
                .insert(id(ME), seen(9, NodeStanding::Dead, "observer")),
        )
    };
    let moved: After = |lab| {
        drop(
            lab.records
                .insert(id(ME), seen(9, NodeStanding::Alive, "mine")),
        )
    };
    let foreign: After = |lab| {
        drop(
            lab.records
                .insert(id(ME), seen(9, NodeStanding::Alive, "other")),
        )
    };
    let lost: After = |lab| drop(lab.records.remove(&id(ME)));
    let read = MembershipEffect::Read { node: id(ME) };
    let exit = MembershipEffect::Exit {
        standing: NodeStanding::Dead,
    };
    let check = MembershipEffect::CheckLeases {
        asked_at: Moment::from_millis(12_000),
    };
    let write = MembershipEffect::Write {
        standing: NodeStanding::Alive,
        expects: None,
    };
    let cases: [(After, Vec<MembershipEffect>, Revision); 4] = [
        (dead, vec![read.clone(), exit], 100),
        (moved, vec![read.clone()], 9),
        (
            foreign,
            vec![read.clone(), check.clone(), write.clone()],
            12_100,
        ),
        (lost, vec![read, check, write], 12_100),
    ];
    for (what, expected, revision) in cases {
        let mut lab = Lab::settled(&[]);
        lab.proof = Answer::RefusedOnce;
        what(&mut lab);
        lab.until(12_100);
        assert_eq!(lab.what(), expected);
        let proved = lab.proofs.last().map(|(_, revision)| *revision);
        assert_eq!(
            proved,
            Some(revision),
            "the record as it was found is what the next proof stands on"
        );
    }
}

#[test]
fn node_without_record_is_declared_dead_only_when_the_registry_had_time_to_fill() {
    for (created, expected) in [(0, vec![15_000]), (8_000, vec![23_000])] {
        let mut lab = Lab::settled(&["q", "r"]);
        lab.tell(MembershipInput::RegistryCreated {
            at: Moment::from_millis(created),
        });
        lab.until(11_000);
        lab.tell(MembershipInput::Leaseholder { node: id("x") });
        lab.until(30_000);
        assert_eq!(lab.deaths(), expected, "created at {created}");
        let by_creation = |effect: &MembershipEffect| {
            matches!(effect, MembershipEffect::DeclareDead { expects: None, .. })
        };
        assert_eq!(lab.when(by_creation), expected);
    }
}

#[test]
fn a_watch_is_believed_only_about_what_is_final() {
    let mut lab = Lab::settled(&["p"]);
    let told = |node, standing| MembershipInput::Record {
        node,
        seen: Some(seen(8, standing, "x")),
        source: ReadSource::Watch,
    };
    lab.tell(told(id("p"), NodeStanding::Alive));
    lab.tell(told(id("new"), NodeStanding::Alive));
    assert_eq!(
        lab.asked,
        [
            (10_000, MembershipEffect::Read { node: id("p") }),
            (10_000, MembershipEffect::Read { node: id("new") })
        ]
    );
    lab.asked.clear();
    lab.tell(told(id("p"), NodeStanding::Left));
    assert_eq!(
        lab.asked,
        [(
            10_000,
            MembershipEffect::Peer {
                node: id("p"),
                news: PeerNews::Left
            }
        )]
    );
}

#[test]
fn a_death_is_dated_by_who_heard_the_dead_last() {
    for (silent, expected) in [(None, 10_000), (Some(2_600), 9_500), (Some(100), 9_900)] {
        let mut lab = Lab::settled(&["q"]);
        lab.tell(MembershipInput::Record {
            node: id("p"),
            seen: Some(seen(1, NodeStanding::Alive, "p")),
            source: ReadSource::Leader,
        });
        lab.now = 9_500;
        lab.node.on(
            Moment::from_millis(9_500),
            MembershipInput::Heartbeat {
                node: id("p"),
                seq: 1,
            },
        );
        lab.now = 10_000;
        lab.asked.clear();
        let silent = silent.map(Duration::from_millis);
        let verdict = SeenNode {
            silent,
            ..seen(8, NodeStanding::Dead, "observer")
        };
        lab.tell(MembershipInput::Record {
            node: id("p"),
            seen: Some(verdict),
            source: ReadSource::Watch,
        });
        assert_eq!(
            lab.asked,
            [(
                10_000,
                MembershipEffect::Peer {
                    node: id("p"),
                    news: died(expected)
                }
            )]
        );
    }
}

#[test]
fn a_death_outlives_the_registry() {
    let mut lab = Lab::settled(&["p", "q"]);
    lab.tell(MembershipInput::Record {
        node: id("p"),
        seen: Some(seen(8, NodeStanding::Dead, "observer")),
        source: ReadSource::Watch,
    });
    lab.asked.clear();
    // The registry lost the death, and the dead node wrote its record again.
    lab.records
        .insert(id("p"), seen(3, NodeStanding::Alive, "p"));
    let records = lab.records.clone().into_iter().collect();
    lab.tell(MembershipInput::Records(records));
    let again = |effect: &MembershipEffect| {
        matches!(
            effect,
            MembershipEffect::DeclareDead {
                expects: Some(3),
                ..
            }
        )
    };
    assert_eq!(lab.when(again), [10_000]);
    assert_eq!(lab.node.is_gone(&id("p")), Some(true));
}

#[test]
fn leaving_is_written_before_the_end() {
    let mut lab = Lab::settled(&["p"]);
    lab.tell(MembershipInput::Drain);
    lab.tell(MembershipInput::Leave);
    let write = |standing, expects| MembershipEffect::Write {
        standing,
        expects: Some(expects),
    };
    let exit = MembershipEffect::Exit {
        standing: NodeStanding::Left,
    };
    assert_eq!(
        lab.what(),
        [
            write(NodeStanding::Draining, 100),
            write(NodeStanding::Left, 10_100),
            exit
        ]
    );
    assert_eq!(
        lab.node
            .on(Moment::from_millis(11_000), MembershipInput::Woken),
        []
    );
}
