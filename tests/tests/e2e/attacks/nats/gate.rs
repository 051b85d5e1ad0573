//! A server with `deploy/nats-cluster.conf`, and the users of its roles: as raw clients, and as
//! `planck` and sidecars use them. A test changes only the lines about the way to authenticate.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use async_nats::{Client, ConnectOptions};
use nkeys::KeyPair;
use planck_common::inbox::InboxPrefix;
use planck_scripted_model::Server;
use planck_sidecar::Connection;
use planck_tests::{
    eventually::PATIENCE,
    nats::NatsServer,
    node::{Node, planck_in},
};
use tempfile::TempDir;
use tokio::{process::Command, sync::mpsc, time::timeout};

use crate::flows::secured::certificates::Certificates;

pub const ROLES: [&str; 5] = ["node", "sidecar", "client", "answerer", "observer"];

/// How users authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Passwords,
    Nkeys,
    /// Passwords over TLS with a client certificate.
    Certificates,
}

pub struct SecuredServer {
    pub server: NatsServer,
    pub folder: TempDir,
    form: Form,
    seeds: BTreeMap<&'static str, String>,
    certificates: Certificates,
}

pub fn deployed(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy")
        .join(file)
}

impl SecuredServer {
    pub fn start(form: Form) -> Result<Self> {
        Self::start_with(form, config)
    }

    /// Starts a server that also has the user of a sidecar that others do not trust.
    pub fn with_calculator() -> Result<Self> {
        Self::start_with(Form::Passwords, |_, folder| {
            let text = fs::read_to_string(deployed("nats-cluster.conf"))?;
            let user = text.replace("# { user: calculator", "{ user: calculator");
            let begin = user.find("# CALCULATOR = {").context("no such role")?;
            let end = begin + user[begin..].find("\n\n").context("no end of it")?;
            let role = user[begin..end].replace("\n# ", "\n");
            let role = role.trim_start_matches("# ");
            let file = folder.join("nats-cluster.conf");
            fs::write(&file, format!("{}{role}{}", &user[..begin], &user[end..]))?;
            Ok(file)
        })
    }

    fn start_with(form: Form, config: impl Fn(Form, &Path) -> Result<PathBuf>) -> Result<Self> {
        let (folder, certificates) = (TempDir::new()?, Certificates::new()?);
        let mut environment = Vec::new();
        let mut seeds = BTreeMap::new();
        for role in ROLES.into_iter().chain(["calculator", "prove"]) {
            let (key, name) = (KeyPair::new_user(), role.to_uppercase());
            seeds.insert(role, key.seed()?);
            environment.push((format!("NATS_{name}_PASSWORD"), password(role)));
            environment.push((format!("NATS_{name}_NKEY"), key.public_key()));
        }
        for (name, file) in [
            ("CERT", "server.pem"),
            ("KEY", "server.key"),
            ("CA", "ca.pem"),
        ] {
            environment.push((format!("NATS_TLS_{name}"), certificates.file(file)));
        }
        let server = NatsServer::start_from(&config(form, folder.path())?, &environment)?;
        Ok(Self {
            server,
            folder,
            form,
            seeds,
            certificates,
        })
    }

    fn url(&self, role: &str) -> String {
        match self.form {
            Form::Nkeys => self.server.url(),
            Form::Passwords | Form::Certificates => self
                .server
                .url()
                .replace("//", &format!("//{role}:{}@", password(role))),
        }
    }

    /// Returns the environment variables for a role's programs.
    pub fn environment(&self, role: &str) -> Vec<(String, String)> {
        let mut environment = vec![
            ("NATS_URL".to_owned(), self.url(role)),
            ("PLANCK_NATS_INBOX_PREFIX".into(), format!("_INBOX_{role}")),
        ];
        match self.form {
            Form::Passwords => {}
            Form::Nkeys => environment.push(("NATS_NKEY".into(), self.seeds[role].clone())),
            Form::Certificates => {
                for (name, file) in [
                    ("CA", "ca.pem"),
                    ("CERT", "client.pem"),
                    ("KEY", "client.key"),
                ] {
                    environment.push((
                        format!("PLANCK_NATS_TLS_{name}"),
                        self.certificates.file(file),
                    ));
                }
            }
        }
        environment
    }

    pub fn planck(&self, role: &str, arguments: &[&str]) -> Result<Command> {
        let mut command = planck_in(self.folder.path())?;
        command.args(arguments).envs(self.environment(role));
        Ok(command)
    }

    /// Starts a node with its role's user, whose store is in the folder.
    pub async fn node(&self, model: &Server) -> Result<Node> {
        let mut command = self.planck("node", &["node"])?;
        let store = self.folder.path().join("sessions");
        command
            .env("PLANCK_STORE_URL", format!("sqlite:{}", store.display()))
            .env("PLANCK_MODELS_DEFAULT", "scripted:test")
            .env("PLANCK_PROVIDERS_SCRIPTED_BASE_URL", model.openai_url());
        Node::start(command, self.folder.path().join("node.log")).await
    }

    /// Returns the connection settings for a sidecar in this process.
    pub fn connection(&self, role: &str) -> Connection {
        let file = |name| PathBuf::from(self.certificates.file(name));
        let is_tls = self.form == Form::Certificates;
        Connection {
            url: Some(self.url(role)),
            nkey: (self.form == Form::Nkeys).then(|| self.seeds[role].clone()),
            tls_ca: is_tls.then(|| file("ca.pem")),
            tls_certificate: is_tls.then(|| (file("client.pem"), file("client.key"))),
            inbox_prefix: InboxPrefix::parse(&format!("_INBOX_{role}")).unwrap(),
            ..Connection::default()
        }
    }

    /// Connects an attacker who has the credentials of a role's user.
    pub async fn attacker(&self, role: &str) -> Result<Attacker> {
        let (told, denials) = mpsc::unbounded_channel();
        let options = ConnectOptions::new()
            .custom_inbox_prefix(format!("_INBOX_{role}"))
            .event_callback(move |event| {
                let _gone = told.send(event.to_string());
                std::future::ready(())
            });
        let file = |name| PathBuf::from(self.certificates.file(name));
        let with_password =
            |options: ConnectOptions| options.user_and_password(role.into(), password(role));
        let options = match self.form {
            Form::Passwords => with_password(options),
            Form::Nkeys => options.nkey(self.seeds[role].clone()),
            Form::Certificates => with_password(options)
                .require_tls(true)
                .add_root_certificates(file("ca.pem"))
                .add_client_certificate(file("client.pem"), file("client.key")),
        };
        Ok(Attacker {
            nats: options.connect(self.server.url()).await?,
            denials,
            marks: 0,
        })
    }
}

fn password(role: &str) -> String {
    format!("secret-of-{role}")
}

/// Returns the path of `deploy/nats-cluster.conf` for passwords. For another form, copies the file
/// into `folder`, uncomments the lines for that form, and returns the path of the copy.
fn config(form: Form, folder: &Path) -> Result<PathBuf> {
    let deployed = deployed("nats-cluster.conf");
    let text = fs::read_to_string(&deployed)?;
    let lines: Vec<&str> = text.lines().collect();
    let changed: Vec<String> = match form {
        Form::Passwords => return Ok(deployed),
        Form::Nkeys => lines
            .iter()
            .map(|line| line.replace("# { nkey:", "{ nkey:"))
            .collect(),
        Form::Certificates => {
            let begin = lines
                .iter()
                .position(|line| *line == "# tls {")
                .context("no TLS block")?;
            let end = begin
                + lines
                    .iter()
                    .skip(begin)
                    .position(|line| *line == "# }")
                    .context("no end of it")?;
            let uncommented = |(at, line): (usize, &&str)| match (begin..=end).contains(&at) {
                true => line.trim_start_matches("# ").to_owned(),
                false => (*line).to_owned(),
            };
            lines.iter().enumerate().map(uncommented).collect()
        }
    };
    ensure!(changed != lines, "nothing to switch on for {form:?}");
    let file = folder.join("nats-cluster.conf");
    fs::write(&file, changed.join("\n") + "\n")?;
    Ok(file)
}

/// An action that an attacker tries.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    Publish(&'static str),
    Subscribe(&'static str),
    Join(&'static str, &'static str),
}

pub struct Attacker {
    pub nats: Client,
    denials: mpsc::UnboundedReceiver<String>,
    marks: u32,
}

impl Attacker {
    /// Tries the action, and returns whether the server allows it. The attacker then subscribes to
    /// a subject that is certainly refused. The server reports refusals in order, so a refusal of
    /// the action would have arrived before the second refusal.
    pub async fn may(&mut self, act: Act) -> Result<bool> {
        let (subject, kind) = match act {
            Act::Publish(subject) => {
                self.nats.publish(subject, "{}".into()).await?;
                (subject, "publish")
            }
            Act::Subscribe(subject) => {
                drop(self.nats.subscribe(subject).await?);
                (subject, "subscription")
            }
            Act::Join(subject, group) => {
                drop(self.nats.queue_subscribe(subject, group.into()).await?);
                (subject, "subscription")
            }
        };
        self.marks += 1;
        let mark = format!("mark.{}", self.marks);
        let _refused = self.nats.subscribe(mark.clone()).await?;
        let quoted = format!("\"{subject}\"");
        let mut denied = false;
        loop {
            let event = timeout(PATIENCE, self.denials.recv())
                .await
                .context("no refusal of the mark")?
                .context("it is closed")?;
            if event.contains(&format!("\"{mark}\"")) {
                return Ok(!denied);
            }
            denied |= event.to_lowercase().contains(kind) && event.contains(&quoted);
        }
    }
}
