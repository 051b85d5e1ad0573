//! Runs `planck sidecar conform` as a user does, and checks its output and exit code.

use planck_tests::{nats::NatsServer, node::planck_in};
use serde_json::Value;

const MUTANT: &str = env!("CARGO_BIN_EXE_mutant");

/// Runs the checker's command, and returns its exit code and both outputs.
async fn conform(url: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = planck_in(folder.path()).unwrap();
    let output = command
        .env("NATS_URL", url)
        .args(["sidecar", "conform"])
        .args(args)
        .output()
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn conform_names_the_failed_cases_and_exits_with_1() {
    let nats = NatsServer::start().unwrap();
    let start = ["--", MUTANT, "odd", "other_queue_group"];
    let only = ["odd", "--only", "queue_group", "--only", "hello"];
    let (code, told, _) = conform(&nats.url(), &[&only[..], &start].concat()).await;
    assert_eq!(code, Some(1), "{told}");
    assert!(
        told.contains("passed   hello\n") && told.contains("FAILED   queue_group       repeat"),
        "{told}"
    );
    assert!(told.ends_with("3 passed, 1 failed, 0 skipped\n"), "{told}");

    let (code, told, _) =
        conform(&nats.url(), &[&only[..], &["-o", "json"], &start].concat()).await;
    let findings: Vec<Value> = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (
            code,
            findings
                .iter()
                .any(|finding| finding["verdict"] == "failed")
        ),
        (Some(1), true)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn conform_names_the_cases_that_it_cannot_check() {
    let nats = NatsServer::start().unwrap();
    let cases: [(&[&str], i32, &str); 5] = [
        (&["nobody"], 3, "no sidecar `nobody` answers"),
        (
            &["odd", "--", "/does/not/exist"],
            2,
            "cannot run `/does/not/exist`",
        ),
        (
            &["odd", "--", "true"],
            2,
            "the command ended with exit status: 0 before `odd` answered",
        ),
        (
            &["odd", "--start-within", "1s", "--", "sleep", "60"],
            2,
            "answers on $SRV.INFO.odd after 1s",
        ),
        (
            &["odd", "--only", "luck"],
            2,
            "the cases are hello, discovery",
        ),
    ];
    for (args, expected, words) in cases {
        let (code, _, told) = conform(&nats.url(), args).await;
        assert!(
            code == Some(expected) && told.contains(words),
            "{args:?}: {code:?} {told}"
        );
    }
}
