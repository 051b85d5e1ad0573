//! Cases for starting, stopping and crashing, which need a sidecar that the checker starts itself,
//! in a process group of its own.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use async_nats::{Client, Subscriber};
use futures_util::{StreamExt as _, future::join_all};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use planck_common::{
    SidecarId,
    inbox::InboxPrefix,
    service::ServiceInfo,
    sidecar::{Presence, PresenceKind},
    subject::{self, Topic},
};
use serde_json::Value;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use super::{
    CaseReport, CheckError, CheckPlan, Finding,
    calls::slow,
    checker::{Checker, gather, listen},
    running::cancel_call,
};
use crate::Connection;

/// How long an instance may take to end after SIGTERM.
const LEAVE: Duration = Duration::from_secs(40);

const BETWEEN: Duration = Duration::from_millis(100);

/// The number of calls that two instances share.
const SHARED: usize = 32;

/// The number of calls at once while an instance leaves.
const AT_ONCE: usize = 8;

/// Connects to NATS, starts the sidecar if the plan has a command, and finds its instances.
pub async fn begin<T: FnMut(&Finding)>(
    plan: CheckPlan,
    report: &mut CaseReport<T>,
) -> Result<(Checker, Option<ChildProcess>), CheckError> {
    let client = plan
        .connection
        .open("planck sidecar conform", |_| ())
        .await?;
    let instances = find(&client, &plan.name).await?;
    if plan.command.is_empty() {
        return if instances.is_empty() {
            Err(CheckError::Absent(plan.name))
        } else {
            Ok((Checker::new(client, plan, instances), None))
        };
    }
    if !instances.is_empty() {
        let text = format!(
            "{} instances of `{}` are already running; stop them, or name no command",
            instances.len(),
            plan.name
        );
        return Err(CheckError::Command(text));
    }
    let presence = plan.connection.prefix.on(Topic::Sidecar(&plan.name));
    let mut news = listen(&client, presence).await?;
    let mut child = ChildProcess::start(&plan)?;
    let instances = appear(&client, &plan, 1, &mut child).await?;
    let hello = wait_for_presence(
        &mut news,
        PresenceKind::Hello,
        &plan.name,
        &instances,
        plan.patience,
    )
    .await;
    report.add(vec![Finding::of("hello", "", hello)]);
    Ok((Checker::new(client, plan, instances), Some(child)))
}

async fn find(client: &Client, name: &SidecarId) -> Result<Vec<ServiceInfo>, CheckError> {
    let answers = gather(client, subject::services(Some(name))).await?;
    Ok(answers
        .into_iter()
        .filter_map(|answer| serde_json::from_value(answer).ok())
        .collect())
}

async fn appear(
    client: &Client,
    plan: &CheckPlan,
    count: usize,
    child: &mut ChildProcess,
) -> Result<Vec<ServiceInfo>, CheckError> {
    let CheckPlan {
        name, start_within, ..
    } = plan;
    let until = Instant::now() + *start_within;
    while Instant::now() < until {
        let instances = find(client, name).await?;
        if instances.len() == count && instances.iter().all(|info| !info.endpoints.is_empty()) {
            return Ok(instances);
        }
        if let Some(status) = child.ended() {
            return Err(CheckError::Command(format!(
                "the command ended with {status} before `{name}` answered on $SRV.INFO.{name}"
            )));
        }
        sleep(BETWEEN).await;
    }
    let silence = format!(
        "the command runs, and no sidecar `{name}` with an endpoint answers on $SRV.INFO.{name} after {start_within:?}"
    );
    Err(CheckError::Command(format!(
        "{silence}; have it answer there as a NATS service does, or, if it has to be compiled first, build it before or give it longer with --start-within"
    )))
}

/// Waits for a `hello` or `bye` of one of these instances.
async fn wait_for_presence(
    news: &mut Subscriber,
    kind: PresenceKind,
    name: &SidecarId,
    of: &[ServiceInfo],
    within: Duration,
) -> Result<(), String> {
    let word = match kind {
        PresenceKind::Hello => "hello",
        PresenceKind::Bye => "bye",
    };
    let wanted = format!(
        "{{\"v\":1,\"type\":\"{word}\",\"sidecar\":\"{name}\",\"instance\":\"<id of its service>\"}}"
    );
    let (until, mut seen) = (Instant::now() + within, String::new());
    while let Ok(Some(message)) =
        timeout(until.saturating_duration_since(Instant::now()), news.next()).await
    {
        match serde_json::from_slice::<Presence>(&message.payload) {
            Ok(said)
                if said.r#type == kind
                    && said.sidecar == *name
                    && of.iter().any(|info| info.id == said.instance) =>
            {
                return Ok(());
            }
            Ok(said) if said.r#type != kind => (),
            Ok(_) | Err(_) => {
                seen = format!(", only {}", String::from_utf8_lossy(&message.payload))
            }
        }
    }
    Err(format!("there was no {wanted} on sidecar.{name}{seen}"))
}

/// Checks after a case whether every instance still runs. If one is gone, the result is a failed
/// finding, and the checker starts a new instance if it had started the old one.
pub async fn check_alive(
    checker: &mut Checker,
    child: &mut Option<ChildProcess>,
    case: &'static str,
) -> Result<Vec<Finding>, CheckError> {
    let until = Instant::now() + checker.patience();
    while Instant::now() < until {
        let now = find(&checker.client, &checker.plan.name).await?;
        if checker
            .instances
            .iter()
            .all(|info| now.iter().any(|other| other.id == info.id))
        {
            return Ok(Vec::new());
        }
        if child.as_mut().is_some_and(|child| child.ended().is_some()) {
            break;
        }
    }
    checker.instances.clear();
    if child.is_some() {
        *child = None;
        let mut fresh = ChildProcess::start(&checker.plan)?;
        checker.instances = appear(&checker.client, &checker.plan, 1, &mut fresh).await?;
        *child = Some(fresh);
    }
    Ok(vec![Finding::failed(
        case,
        "",
        "an instance is gone after this: it died of it, or stopped its service",
    )])
}

const LIFE: [&str; 3] = ["crash", "instances", "drain"];

pub fn skipped() -> Vec<Finding> {
    let why = "the checker has to start the sidecar itself for this: name the command after `--`";
    let hello = std::iter::once("hello");
    hello
        .chain(LIFE)
        .map(|case| Finding::skipped(case, "", why))
        .collect()
}

pub async fn check<T: FnMut(&Finding)>(
    checker: &mut Checker,
    child: ChildProcess,
    report: &mut CaseReport<T>,
) -> Result<(), CheckError> {
    let mut first = child;
    if report.wants("crash") {
        let (finding, again) = crash(checker, first).await?;
        report.add(vec![finding]);
        first = again;
    }
    let mut lost = Ok(());
    if report.wants("instances") || report.wants("drain") {
        let mut second = ChildProcess::start(&checker.plan)?;
        let one = checker.instances.clone();
        checker.instances = appear(&checker.client, &checker.plan, 2, &mut second).await?;
        report.add(vec![Finding::of("instances", "", share(checker).await)]);
        lost = lose_none(checker, &mut second).await;
        checker.instances = one;
    }
    if report.wants("drain") {
        let drained = match lost {
            Ok(()) => drain(checker, &mut first).await,
            Err(why) => Err(why),
        };
        report.add(vec![Finding::of("drain", "", drained)]);
    }
    Ok(())
}

async fn crash(
    checker: &mut Checker,
    child: ChildProcess,
) -> Result<(Finding, ChildProcess), CheckError> {
    let running = slow(checker, checker.patience() * 3)
        .ok()
        .map(|(tool, args)| checker.call(tool, &args));
    if let Some(request) = &running {
        let mut line = checker.open(request).await?;
        let _begun = line.begun(BETWEEN * 5).await;
    }
    child.kill().await;
    let mut again = ChildProcess::start(&checker.plan)?;
    let before = std::mem::take(&mut checker.instances);
    checker.instances = appear(&checker.client, &checker.plan, 1, &mut again).await?;
    let checked = as_before(checker, &before).await;
    Ok((Finding::of("crash", "", checked), again))
}

async fn as_before(checker: &Checker, before: &[ServiceInfo]) -> Result<(), String> {
    let subjects = |infos: &[ServiceInfo]| {
        let mut subjects: Vec<String> = infos
            .iter()
            .flat_map(|info| &info.endpoints)
            .map(|endpoint| endpoint.subject.clone())
            .collect();
        subjects.sort();
        subjects
    };
    if before
        .iter()
        .any(|info| checker.instances.iter().any(|other| other.id == info.id))
    {
        return Err("after a kill and a start its service has the same id; each start needs an id of its own".into());
    }
    if subjects(before) != subjects(&checker.instances) {
        return Err("after a kill and a start it offers something else than before".into());
    }
    quick(checker)
        .await
        .map_err(|why| format!("after a kill and a start, {why}"))
}

/// Makes a quick call, or waits for [`BETWEEN`] if no quick call is known.
async fn quick(checker: &Checker) -> Result<(), String> {
    match &checker.quick {
        Some((tool, args)) => checker.ask(&checker.call(tool, args)).await.ok().map(drop),
        None => {
            sleep(BETWEEN).await;
            Ok(())
        }
    }
}

async fn share(checker: &Checker) -> Result<(), String> {
    let Some((tool, args)) = &checker.quick else {
        return Ok(());
    };
    let calls = (0..SHARED).map(|_| async {
        let mut line = checker
            .open(&checker.call(tool, args))
            .await
            .map_err(|error| error.to_string())?;
        line.end(checker.patience()).await.ok()?;
        line.next(BETWEEN * 4).await.map_or(Ok(()), |_| {
            Err("both instances answered a call; put both in the queue group".to_owned())
        })
    });
    join_all(calls)
        .await
        .into_iter()
        .collect::<Result<(), String>>()
        .map_err(|why| format!("with two instances, {why}"))?;
    for info in &checker.instances {
        let stats = checker
            .gather(format!(
                "{}.{}",
                subject::stats(&checker.plan.name),
                info.id
            ))
            .await
            .map_err(|error| error.to_string())?;
        let endpoints = stats
            .first()
            .and_then(|stats| stats.get("endpoints")?.as_array())
            .into_iter()
            .flatten();
        let requests: Option<u64> = endpoints
            .map(|endpoint| endpoint.get("num_requests").and_then(Value::as_u64))
            .sum();
        if !stats.is_empty() && requests == Some(0) {
            return Err(format!("of {SHARED} calls instance {} got none", info.id));
        }
    }
    Ok(())
}

/// Stops one of two instances while calls are made, and checks that each call is answered and that
/// the instance ends with status 0.
async fn lose_none(checker: &Checker, leaving: &mut ChildProcess) -> Result<(), String> {
    leaving.terminate();
    let until = Instant::now() + LEAVE;
    loop {
        let answered = join_all((0..AT_ONCE).map(|_| quick(checker)))
            .await
            .into_iter()
            .collect::<Result<(), String>>();
        answered.map_err(|why| {
            format!("while one of two instances left, {why}; leave the queue group first, then answer what has come")
        })?;
        match leaving.ended() {
            Some(status) if status.success() => return Ok(()),
            Some(status) => {
                return Err(format!(
                    "told to stop, it ended with {status}; status 0 was due"
                ));
            }
            None if Instant::now() > until => {
                return Err(format!(
                    "told to stop by SIGTERM, it still runs after {LEAVE:?}"
                ));
            }
            None => (),
        }
    }
}

/// Stops the last instance, while a slow call runs if one is known. Checks the `bye`, the answer to
/// the call, and the exit status.
async fn drain(checker: &Checker, child: &mut ChildProcess) -> Result<(), String> {
    let subject = checker.prefix().on(Topic::Sidecar(&checker.plan.name));
    let mut news = listen(&checker.client, subject)
        .await
        .map_err(|error| error.to_string())?;
    let running = slow(checker, Duration::from_secs(2))
        .ok()
        .map(|(tool, args)| checker.call(tool, &args));
    let mut line = match &running {
        Some(request) => Some(
            checker
                .open(request)
                .await
                .map_err(|error| error.to_string())?,
        ),
        None => None,
    };
    if let Some(line) = &mut line {
        let _begun = line.begun(BETWEEN * 5).await;
    }
    child.terminate();
    let said = wait_for_presence(
        &mut news,
        PresenceKind::Bye,
        &checker.plan.name,
        &checker.instances,
        checker.patience(),
    )
    .await;
    if let (Some(line), Some(request)) = (&mut line, &running) {
        let end = line.end(LEAVE).await;
        cancel_call(checker, &request.call_id).await;
        end.ok().map_err(|why| {
            format!("told to stop by SIGTERM while a call ran, {why}; finish what runs")
        })?;
    }
    match child.end(LEAVE).await {
        None => Err(format!(
            "told to stop by SIGTERM, it still runs after {LEAVE:?}"
        )),
        Some(status) if !status.success() => Err(format!(
            "told to stop by SIGTERM, it ended with {status}; status 0 was due"
        )),
        Some(_) => said,
    }
}

/// A running instance. Dropping this value kills the process group of the instance.
pub struct ChildProcess {
    child: Child,
    group: Option<Pid>,
}

impl ChildProcess {
    /// Starts an instance. Passes the settings of the connection in the environment variables that
    /// the SDKs read. Its standard output is discarded, and its standard error is that
    /// of the checker.
    pub fn start(plan: &CheckPlan) -> Result<Self, CheckError> {
        let (program, arguments) = plan
            .command
            .split_first()
            .ok_or_else(|| CheckError::Command("the command is empty".into()))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        pass(&plan.connection, &mut command);
        let child = command
            .spawn()
            .map_err(|error| CheckError::Command(format!("cannot run `{program}`: {error}")))?;
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw);
        Ok(Self { child, group })
    }

    /// Returns the exit status of the instance, or `None` if it still runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    pub async fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        let _reaped = self.child.wait().await;
    }

    /// Waits until the instance has ended by itself. Returns `None` if it still runs after
    /// `within`.
    pub async fn end(&mut self, within: Duration) -> Option<ExitStatus> {
        timeout(within, self.child.wait()).await.ok()?.ok()
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _already_gone = killpg(group, signal);
        }
    }
}

/// Sets the environment variables from which [`Connection::from_environment`] reads the settings.
fn pass(connection: &Connection, command: &mut Command) {
    let Connection {
        url,
        creds,
        nkey,
        tls_ca,
        tls_certificate,
        prefix,
        inbox_prefix,
        reply_prefixes,
    } = connection;
    if let Some(url) = url {
        command.env("NATS_URL", url);
    }
    if let Some(creds) = creds {
        command.env("NATS_CREDS", creds);
    }
    if let Some(nkey) = nkey {
        command.env("NATS_NKEY", nkey);
    }
    if let Some(ca) = tls_ca {
        command.env("PLANCK_NATS_TLS_CA", ca);
    }
    if let Some((certificate, key)) = tls_certificate {
        command.env("PLANCK_NATS_TLS_CERT", certificate);
        command.env("PLANCK_NATS_TLS_KEY", key);
    }
    let replies: Vec<&str> = reply_prefixes.iter().map(InboxPrefix::as_str).collect();
    command.env("PLANCK_NATS_SUBJECT_PREFIX", prefix.as_str());
    command.env("PLANCK_NATS_INBOX_PREFIX", inbox_prefix.as_str());
    command.env("PLANCK_NATS_REPLY_PREFIXES", replies.join(","));
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use planck_common::subject::Prefix;

    use super::*;

    fn inbox(text: &str) -> InboxPrefix {
        InboxPrefix::parse(text).unwrap()
    }

    fn read_back(connection: &Connection) -> Connection {
        let mut command = Command::new("unused");
        pass(connection, &mut command);
        let variable = |name: &str| {
            let mut passed = command.as_std().get_envs();
            let (_, value) = passed.find(|(passed, _)| *passed == name)?;
            Some(value?.to_str().unwrap().to_owned())
        };
        Connection::from_variables(variable).unwrap()
    }

    #[test]
    fn instance_reads_the_settings_of_the_connection_that_starts_it() {
        let full = Connection {
            url: Some("nats://one:4222,nats://two:4222".into()),
            creds: Some("/run/node.creds".into()),
            nkey: Some("SUANKEY".into()),
            tls_ca: Some("/run/ca.pem".into()),
            tls_certificate: Some(("/run/cert.pem".into(), "/run/key.pem".into())),
            prefix: Prefix::parse("acme.prod").unwrap(),
            inbox_prefix: inbox("_INBOX_sidecar"),
            reply_prefixes: vec![inbox("_INBOX_node"), inbox("answers.of.callers")],
        };
        for connection in [full, Connection::default()] {
            let read = read_back(&connection);
            assert_eq!(format!("{read:?}"), format!("{connection:?}"));
        }
    }
}
