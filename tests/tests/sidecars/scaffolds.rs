//! `planck sidecar new` and `planck team new`. New sidecar projects pass their own tests, without a
//! network, and the checker. A new team is valid.

use std::{os::unix::fs::symlink, path::Path, process::Command};

use planck_sidecar::conform::CaseVerdict;
use planck_tests::{
    example::{Example, go, python_path, root, typescript_sdk},
    nats::NatsServer,
    node::planck_in,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::checking::{check, plan, with};

/// Runs `planck`, and returns its exit code, standard output and standard error.
async fn planck(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = planck_in(folder)
        .unwrap()
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

/// Creates a folder with a new project `weather`, with a copy of the SDK if there is one.
async fn scaffold(lang: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let args = ["sidecar", "new", "--lang", lang, "weather"];
    let (code, out, err) = planck(folder.path(), &args).await;
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.starts_with("wrote weather: README.md, "), "{out}");
    folder
}

/// Runs a command to completion, and returns its stdout followed by its stderr. Panics if the command
/// fails.
fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// Runs every case of the checker. None may fail, and only `skipped` may be skipped.
async fn conforms(name: &str, command: &[&str], skipped: &[&str]) {
    let nats = NatsServer::start().unwrap();
    let findings = check(plan(&nats.url(), name, command)).await.unwrap();
    assert_eq!(with(&findings, CaseVerdict::Failed), Vec::<String>::new());
    let left_out: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.verdict == CaseVerdict::Skipped)
        .map(|finding| finding.case)
        .collect();
    assert_eq!(left_out, skipped);
}

/// The cases that a new project skips: it has no answer that grows with its arguments, and no
/// compactor.
const SKIPPED: [&str; 3] = ["large_answer", "compaction", "compaction_short"];

#[tokio::test(flavor = "multi_thread")]
async fn new_project_in_python_passes_its_tests_and_the_checker() {
    let folder = scaffold("python").await;
    let project = folder.path().join("weather");
    let copy = project.join("planck-sidecar");
    let path = format!("{}:{}", copy.display(), python_path().unwrap());
    let said = succeeds(
        Command::new("python3")
            .args(["-m", "unittest"])
            .env("PYTHONPATH", &path)
            .current_dir(&project),
    );
    assert!(said.contains("Ran 3 tests"), "{said}");
    let requirement = std::fs::read_to_string(project.join("requirements.txt")).unwrap();
    assert_eq!(requirement, "./planck-sidecar\n");

    let (path, program) = (format!("PYTHONPATH={path}"), project.join("sidecar.py"));
    conforms(
        "weather",
        &["env", &path, "python3", program.to_str().unwrap()],
        &SKIPPED,
    )
    .await;
}

/// The packages are linked as `npm install` does it for a folder, so that no network is needed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Node.js or Go, and their packages: make test-all"]
async fn new_project_in_typescript_passes_its_tests_and_the_checker() {
    let Some(sdk) = typescript_sdk().unwrap() else {
        return;
    };
    let folder = scaffold("typescript").await;
    let project = folder.path().join("weather");
    let manifest: Value =
        serde_json::from_str(&std::fs::read_to_string(project.join("package.json")).unwrap())
            .unwrap();
    assert_eq!(
        manifest["dependencies"]["planck-sidecar"],
        "file:./planck-sidecar"
    );
    let copy = project.join("planck-sidecar");
    let compiler = sdk.join("node_modules/typescript/bin/tsc");
    symlink(sdk.join("node_modules"), copy.join("node_modules")).unwrap();
    succeeds(Command::new("node").arg(&compiler).current_dir(&copy));
    std::fs::create_dir(project.join("node_modules")).unwrap();
    for (name, target) in [
        ("planck-sidecar", copy),
        ("@types", sdk.join("node_modules/@types")),
    ] {
        symlink(target, project.join("node_modules").join(name)).unwrap();
    }
    succeeds(Command::new("node").arg(&compiler).current_dir(&project));
    let said = succeeds(
        Command::new("node")
            .args(["--test", "dist/"])
            .current_dir(&project),
    );
    assert!(said.contains("# pass 3\n# fail 0\n"), "{said}");
    conforms(
        "weather",
        &["node", project.join("dist/main.js").to_str().unwrap()],
        &SKIPPED,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Node.js or Go, and their packages: make test-all"]
async fn new_project_in_go_passes_its_tests_and_the_checker() {
    let Some(go) = go("the scaffold in Go") else {
        return;
    };
    let folder = scaffold("go").await;
    let project = folder.path().join("weather");
    let offline = |args: &[&str]| {
        // `make tools` has fetched the modules, which are the same as those of the example.
        succeeds(
            Command::new(go)
                .args(args)
                .current_dir(&project)
                .env("GOFLAGS", "-mod=readonly")
                .env("GOPROXY", "off"),
        )
    };
    offline(&["vet", "./..."]);
    let said = offline(&["test", "-count=1", "-v", "./..."]);
    assert_eq!(said.matches("--- PASS: ").count(), 3, "{said}");
    offline(&["build", "-o", "sidecar-weather", "."]);
    conforms(
        "weather",
        &[project.join("sidecar-weather").to_str().unwrap()],
        &SKIPPED,
    )
    .await;
}

/// The template is compiled as an example of the SDK, and the SDK's tests run the template's tests.
/// Compiling all dependencies again for a project would take minutes.
#[tokio::test(flavor = "multi_thread")]
async fn new_project_in_rust_passes_the_checker() {
    let folder = scaffold("rust").await;
    let read =
        |path: &str| std::fs::read_to_string(folder.path().join("weather").join(path)).unwrap();
    let template = include_str!("../../../cli/src/scaffold/rust/src/main.rs");
    assert_eq!(
        read("src/main.rs"),
        template.replace("SIDECAR_NAME", "weather")
    );
    let dependency = "planck-sidecar = { path = \"planck-sidecar/sidecar-sdk\" }\n";
    assert!(
        read("Cargo.toml").contains(dependency),
        "{}",
        read("Cargo.toml")
    );
    let manifest = folder.path().join("weather/Cargo.toml");
    let described = Command::new(env!("CARGO"))
        .args(["read-manifest", "--manifest-path"])
        .arg(manifest)
        .output()
        .unwrap();
    assert!(described.status.success(), "{described:?}");

    let [program] = &Example::scaffold_rust().unwrap().command[..] else {
        panic!("more than a program")
    };
    conforms("SIDECAR_NAME", &[program], &SKIPPED).await;
}

/// The copy of the SDK compiles without this checkout.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "compiles the dependencies of a new project: make test-all"]
async fn new_project_in_rust_compiles_with_its_copy_of_the_sdk() {
    let folder = scaffold("rust").await;
    succeeds(
        Command::new(env!("CARGO"))
            .args(["check", "--offline", "--tests"])
            .current_dir(folder.path().join("weather"))
            .env("CARGO_TARGET_DIR", folder.path().join("target")),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_wrong_arguments_name_the_fault() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("taken")).unwrap();
    std::fs::write(folder.path().join("taken/mine.txt"), "mine").unwrap();
    let cases: [(&[&str], &str); 8] = [
        (
            &["sidecar", "new", "--lang", "python", "taken"],
            "taken exists and is not empty; name another folder with --dir",
        ),
        (
            &[
                "sidecar",
                "new",
                "--lang",
                "python",
                "x",
                "--dir",
                "taken/mine.txt",
            ],
            "taken/mine.txt exists and is no folder",
        ),
        (&["sidecar", "new", "--lang", "python", "a b"], "a b"),
        (
            &["sidecar", "new", "--lang", "cobol", "x"],
            "possible values: python",
        ),
        (
            &["sidecar", "new", "--lang", "python", "x", "--sdk", "taken"],
            "with sidecar-sdk/python/pyproject.toml",
        ),
        (
            &["sidecar", "new", "--lang", "go", "x", "--sdk", "1.0.0"],
            "there is no SDK for Go; leave out --sdk",
        ),
        (
            &["team", "new", "taken", "--dir", "taken"],
            "taken exists and is not empty",
        ),
        (&["team", "new", "a/b"], "malformed team name `a/b`"),
    ];
    for (args, words) in cases {
        let (code, _, told) = planck(folder.path(), args).await;
        assert!(
            code == Some(2) && told.contains(words),
            "{args:?}: {code:?} {told}"
        );
    }
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["taken"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_depends_on_the_copy_a_release_or_a_checkout() {
    let folder = tempfile::tempdir().unwrap();
    let checkout = root().to_str().unwrap();
    let of_checkout = format!("planck-sidecar @ file://{checkout}/sidecar-sdk/python");
    for (name, more, wanted) in [
        ("one", &[][..], "./planck-sidecar"),
        ("two", &["--sdk", "9.8.7"][..], "planck-sidecar==9.8.7"),
        ("three", &["--sdk", checkout][..], &of_checkout),
    ] {
        let (code, _, told) = planck(
            folder.path(),
            &[&["sidecar", "new", "--lang", "python", name], more].concat(),
        )
        .await;
        assert_eq!(code, Some(0), "{told}");
        let requirement =
            std::fs::read_to_string(folder.path().join(name).join("requirements.txt")).unwrap();
        assert_eq!(requirement, format!("{wanted}\n"));
        let copy = folder.path().join(name).join("planck-sidecar");
        assert_eq!(copy.exists(), more.is_empty(), "{wanted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_team_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = planck(folder.path(), &["team", "new", "reviewers"]).await;
    assert_eq!(
        (code, out.lines().nth(1)),
        (Some(0), Some("planck team validate teams/reviewers")),
        "{out}{err}"
    );
    let (code, out, err) = planck(folder.path(), &["team", "validate", "teams/reviewers"]).await;
    assert!(
        code == Some(0) && out.ends_with(": 2 members, no errors\n"),
        "{out}{err}"
    );
}

/// The code of tools and tests that docs/sidecars.md shows must be in the templates of the
/// projects, whose tests are run.
#[test]
fn code_in_the_guide_is_in_the_projects() {
    macro_rules! template {
        ($($path:literal),+) => { concat!($(include_str!(concat!("../../../cli/src/scaffold/", $path))),+) };
    }
    let guide = include_str!("../../../docs/sidecars.md");
    let section = guide
        .split_once("\n## Write a tool\n")
        .unwrap()
        .1
        .split_once("\n## Running\n")
        .unwrap()
        .0;
    let blocks: Vec<(&str, &str)> = section
        .split("```")
        .skip(1)
        .step_by(2)
        .map(|block| block.split_once('\n').unwrap())
        .collect();
    assert_eq!(
        blocks.iter().map(|(lang, _)| *lang).collect::<Vec<_>>(),
        ["python", "python", "rust", "ts"]
    );
    for (lang, code) in blocks {
        let template = match lang {
            "python" => template!("python/sidecar.py", "python/test_sidecar.py"),
            "rust" => template!("rust/src/main.rs"),
            _ => template!(
                "typescript/src/sidecar.ts",
                "typescript/src/sidecar.test.ts"
            ),
        };
        let missing: Vec<&str> = code
            .lines()
            .filter(|line| !template.contains(line.trim()))
            .collect();
        assert_eq!(missing, Vec::<&str>::new(), "{lang}");
    }
}
