//! Checks sidecars that are each correct except for one fault.

use futures_util::{StreamExt as _, stream};
use planck_sidecar::conform::{CASES, CaseVerdict};
use planck_tests::nats::NatsServer;

use crate::checking::{check, plan, with};

const MUTANT: &str = env!("CARGO_BIN_EXE_mutant");

/// How many mutants are checked at once. Each check mostly waits.
const AT_ONCE: usize = 8;

/// The faults, each with the case that must fail because of it and a part of the advice to the
/// author. The mutations that take longest come first.
const MUTATIONS: &[(&str, &str, &str)] = &[
    ("same_instance_id", "crash", "an id of its own"),
    ("shares_nothing", "instances", "both instances answered"),
    ("no_bye", "drain", "there was no {\"v\":1,\"type\":\"bye\""),
    ("drops_running", "drain", "there was no answer"),
    ("ignores_sigterm", "drain", "still runs"),
    ("ends_badly", "drain", "status 0 was due"),
    (
        "no_hello",
        "hello",
        "there was no {\"v\":1,\"type\":\"hello\"",
    ),
    ("hello_of_nobody", "hello", "\"instance\":\"nobody\""),
    ("no_planck", "discovery", "`planck` = `1`"),
    ("other_prefix", "discovery", "`prefix` = ``"),
    (
        "no_kind",
        "metadata",
        "`kind` must be `tool` or `compactor`; it is missing",
    ),
    ("no_description", "metadata", "`description` is missing"),
    (
        "no_parameters",
        "metadata",
        "`parameters`, a JSON Schema as text, is missing",
    ),
    (
        "parameters_not_json",
        "metadata",
        "`parameters` is not JSON",
    ),
    ("parameters_of_text", "metadata", "\"type\":\"object\""),
    (
        "parameters_no_schema",
        "metadata",
        "`parameters` is no JSON Schema",
    ),
    ("unknown_effect", "metadata", "it is `harmless`"),
    ("timeout_in_words", "metadata", "it is `5 minutes`"),
    ("other_subject", "subject", "nodes ask on `tool."),
    ("other_queue_group", "queue_group", "the queue group is `q`"),
    ("never_answers", "good_call", "there was no answer"),
    ("no_version", "good_call", "needs \"v\":1"),
    (
        "unknown_key",
        "good_call",
        "exactly one of ok, error, progress",
    ),
    ("plain_text", "good_call", "not JSON"),
    ("ok_is_no_text", "good_call", "`ok` must be text"),
    ("error_in_header", "bad_args", "Nats-Service-Error"),
    ("answers_twice", "one_answer", "after its answer"),
    (
        "refuses_unknown_fields",
        "unknown_fields",
        "ignore unknown keys",
    ),
    ("takes_bad_args", "bad_args", "answered with ok"),
    ("silent_on_bad_args", "bad_args", "there was no answer"),
    ("dies_of_bad_args", "bad_args", "it died of it"),
    ("silent_on_malformed", "malformed", "there was no answer"),
    ("dies_of_malformed", "malformed", "it died of it"),
    ("takes_stale_epochs", "stale_epoch", "fenced off"),
    ("silent_when_too_large", "large_answer", "max_payload"),
    (
        "mixes_up_calls",
        "concurrency",
        "keep no call's data in common",
    ),
    ("one_at_a_time", "overlap", "a task of its own"),
    ("progress_is_text", "progress", "needs a `message`"),
    ("percent_too_high", "progress", "from 0 to 100"),
    ("progress_after_answer", "progress", "send the answer last"),
    ("ignores_cancel", "cancel", "neither answered nor over"),
    ("ignores_deadline", "deadline", "neither answered nor over"),
    ("runs_twice", "in_progress", "do not run it twice"),
    ("busy_in_other_words", "in_progress", "`already running`"),
    ("summary_too_long", "compaction", "not shorter"),
    ("summary_empty", "compaction", "empty"),
    ("keeps_from_nowhere", "compaction", "none of the messages"),
    ("keeps_everything", "compaction", "nothing is replaced"),
    ("splits_pairs", "compaction", "drops the call"),
    ("compacts_short", "compaction_short", "not shorter"),
    ("skip_is_no_bool", "compaction", "`skip` must be true"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_correct_sidecar_passes_every_case() {
    let nats = NatsServer::start().unwrap();
    let findings = check(plan(&nats.url(), "right", &[MUTANT, "right", "nothing"]))
        .await
        .unwrap();
    assert_eq!(with(&findings, CaseVerdict::Failed), Vec::<String>::new());
    assert_eq!(with(&findings, CaseVerdict::Skipped), Vec::<String>::new());
    let tried: Vec<&str> = findings.iter().map(|finding| finding.case).collect();
    let untried: Vec<_> = CASES
        .iter()
        .filter(|(case, _)| !tried.contains(case))
        .collect();
    assert!(untried.is_empty(), "{untried:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute of CPU time: make test-all"]
async fn each_mutation_is_found_by_its_case() {
    let nats = NatsServer::start().unwrap();
    let checks = MUTATIONS
        .iter()
        .map(|(mutation, case, words)| find(&nats, mutation, case, words));
    let missed: Vec<String> = stream::iter(checks)
        .buffer_unordered(AT_ONCE)
        .filter_map(async |missed| missed)
        .collect()
        .await;
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
}

#[test]
fn every_case_has_a_mutation() {
    for (case, _) in CASES {
        assert!(
            MUTATIONS.iter().any(|(_, found_by, _)| found_by == case),
            "nothing shows that the case {case} can fail"
        );
    }
}

async fn find(nats: &NatsServer, mutation: &str, case: &str, words: &str) -> Option<String> {
    let name = format!("mutant-{mutation}");
    let mut plan = plan(&nats.url(), &name, &[MUTANT, &name, mutation]);
    plan.only = vec![case.to_owned()];
    let findings = match check(plan).await {
        Ok(findings) => findings,
        Err(error) => return Some(format!("{mutation}: {error}")),
    };
    let failed = with(&findings, CaseVerdict::Failed);
    let found = failed
        .iter()
        .any(|failure| failure.starts_with(case) && failure.contains(words));
    (!found).then(|| format!("{mutation}: expected {case} with {words:?}, got {findings:?}"))
}
