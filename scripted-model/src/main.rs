//! `scripted-model [--log FILE] SCRIPT.json [[HOST:]PORT]`: serves a script until it is interrupted.

use std::{fs::OpenOptions, io, process::ExitCode};

use planck_scripted_model::{Script, Server};
use tokio::net::TcpListener;

const USAGE: &str = "usage: scripted-model [--log FILE] SCRIPT.json [[HOST:]PORT]

With --log it appends a line of JSON to FILE for each request, for each end of a stream and for each refusal.
It listens on 127.0.0.1 unless HOST says otherwise, and on a free port unless PORT does.

It serves
  Anthropic             /v1/messages
  OpenAI                /v1/chat/completions, and the Responses API at /v1/responses
  Azure                 /openai/v1/chat/completions and /openai/deployments/NAME/chat/completions
  Google                /v1beta/models/MODEL:streamGenerateContent
  Ollama                /api/chat
  llama.cpp's server    /llama_cpp/v1/chat/completions

A script is a list of rules. The first that matches a request answers it:
  {\"auth\": \"off\", \"rules\": [
    {\"when\": {\"user\": \"folder\"}, \"replies\": [
      [{\"text\": \"Let me look.\"}, {\"call\": {\"name\": \"bash\", \"args\": {\"command\": \"ls\"}}}],
      \"There is: {{result:bash}}\"]},
    {\"replies\": [\"I do not know.\"]}]}
scripted-model/README.md has every field.";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (log, arguments) = match arguments.as_slice() {
        [flag, log, rest @ ..] if flag == "--log" => (Some(log.as_str()), rest),
        all => (None, all),
    };
    let (path, place) = match arguments {
        [help] if help == "--help" || help == "-h" => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [path] => (path, "0"),
        [path, place] => (path, place.as_str()),
        _ => return complain(USAGE, 2),
    };
    match serve(path, place, log).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error.to_string(), 1),
    }
}

async fn serve(path: &str, place: &str, log: Option<&str>) -> io::Result<()> {
    let named = |error: &dyn std::fmt::Display| {
        io::Error::other(format!("cannot read script {path}: {error}"))
    };
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    let script = Script::parse(&text).map_err(|error| named(&error))?;
    let address = if place.contains(':') {
        place.into()
    } else {
        format!("127.0.0.1:{place}")
    };
    let listener = TcpListener::bind(&address)
        .await
        .map_err(|error| io::Error::other(format!("cannot listen on {address}: {error}")))?;
    let server = match log {
        Some(log) => {
            let file = OpenOptions::new().create(true).append(true).open(log);
            let file =
                file.map_err(|error| io::Error::other(format!("cannot write {log}: {error}")))?;
            Server::serve_with_log(listener, script, file)?
        }
        None => Server::serve(listener, script)?,
    };
    println!("{}", server.url());
    tokio::signal::ctrl_c().await?;
    for violation in server.violations() {
        eprintln!(
            "refused request {} to {}: {}",
            violation.serial, violation.path, violation.message
        );
    }
    server.stop().await
}

fn complain(message: &str, code: u8) -> ExitCode {
    eprintln!("scripted-model: {message}");
    ExitCode::from(code)
}
