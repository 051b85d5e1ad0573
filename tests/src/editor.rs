//! An editor that speaks the Agent Client Protocol with `planck acp`.

#![allow(
    clippy::indexing_slicing,
    reason = "a field that a message lacks is null"
)]

use std::{
    ops::{Deref, DerefMut},
    path::Path,
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{line_client::LineClient, machine::PersonalMachine};

pub struct Editor {
    client: LineClient,
}

impl Deref for Editor {
    type Target = LineClient;

    fn deref(&self) -> &LineClient {
        &self.client
    }
}

impl DerefMut for Editor {
    fn deref_mut(&mut self) -> &mut LineClient {
        &mut self.client
    }
}

/// Returns the command `planck acp` on a machine without NATS.
pub fn acp(machine: &PersonalMachine, arguments: &[&str]) -> Result<Command> {
    let mut command = machine.planck(&[&["acp"], arguments].concat())?;
    command.env("PLANCK_MODELS_DEFAULT", "openai:gpt-5");
    Ok(command)
}

impl Editor {
    pub fn start(command: Command) -> Result<Self> {
        let client = LineClient::start(command)?;
        Ok(Self { client })
    }

    /// Starts a command, and begins as the protocol says, with these capabilities.
    pub async fn greeted(command: Command, capabilities: Value) -> Result<Self> {
        let mut editor = Self::start(command)?;
        let hello = json!({"protocolVersion": 1, "clientCapabilities": capabilities});
        let greeted = editor.call(0, "initialize", hello).await?;
        let result = &greeted["result"];
        ensure!(result["protocolVersion"] == 1, "{greeted}");
        ensure!(result["authMethods"] == json!([]), "{greeted}");
        ensure!(result["agentCapabilities"]["loadSession"] == true);
        Ok(editor)
    }

    /// Closes the connection. Fails if the command has said anything that was not read, or warned.
    pub async fn ends(self) -> Result<()> {
        let ended = self.client.ends().await?;
        ensure!(ended.code == Some(0), "{ended:?}");
        ensure!(ended.warned.is_empty(), "{ended:?}");
        ensure!(ended.unread.is_empty(), "{ended:?}");
        Ok(())
    }

    /// Closes the connection while something may run.
    pub async fn leaves(self) -> Result<()> {
        let ended = self.client.ends().await?;
        ensure!(ended.code == Some(0), "{ended:?}");
        Ok(())
    }

    pub async fn request(&mut self, id: u32, method: &str, params: Value) -> Result<()> {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.write(&request.to_string()).await
    }

    pub async fn notify(&mut self, method: &str, params: Value) -> Result<()> {
        let notification = json!({"jsonrpc": "2.0", "method": method, "params": params});
        self.write(&notification.to_string()).await
    }

    /// Sends a request that has an answer without other messages before it.
    pub async fn call(&mut self, id: u32, method: &str, params: Value) -> Result<Value> {
        self.request(id, method, params).await?;
        let answer = self.read().await?;
        ensure!(answer["id"] == id, "{answer}");
        Ok(answer)
    }

    /// Opens a session as the protocol says, and returns it.
    pub async fn open(&mut self, folder: &Path) -> Result<Value> {
        let new = json!({"cwd": folder, "mcpServers": []});
        let opened = self.call(1, "session/new", new).await?;
        let session = opened["result"]["sessionId"].clone();
        ensure!(session.is_string(), "{opened}");
        self.commands(&session).await?;
        Ok(session)
    }

    /// Reads the list of commands, which follows a session that was opened.
    pub async fn commands(&mut self, session: &Value) -> Result<()> {
        let message = self.read().await?;
        let params = &message["params"];
        let kind = &params["update"]["sessionUpdate"];
        ensure!(*kind == "available_commands_update", "{message}");
        ensure!(params["sessionId"] == *session, "{message}");
        Ok(())
    }

    pub async fn prompt(&mut self, id: u32, session: &Value, text: &str) -> Result<()> {
        let prompt = json!([{"type": "text", "text": text}]);
        let params = json!({"sessionId": session, "prompt": prompt});
        self.request(id, "session/prompt", params).await
    }

    /// Sends a prompt, and returns the updates until its end, and how it ended.
    pub async fn asked(&mut self, session: &Value, text: &str) -> Result<(Vec<Value>, Value)> {
        self.prompt(99, session, text).await?;
        let (updates, done) = self.updates(session).await?;
        ensure!(done["id"] == 99, "{done}");
        Ok((updates, done["result"]["stopReason"].clone()))
    }

    /// Answers a request of the agent.
    pub async fn answer(&mut self, request: &Value, result: Value) -> Result<()> {
        let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
        self.write(&answer.to_string()).await
    }

    /// Answers a request for a permission with one of its options.
    pub async fn choose(&mut self, request: &Value, option: &str) -> Result<()> {
        let outcome = json!({"outcome": "selected", "optionId": option});
        self.answer(request, json!({"outcome": outcome})).await
    }

    /// Reads updates of a session until another message comes, and returns both.
    pub async fn updates(&mut self, session: &Value) -> Result<(Vec<Value>, Value)> {
        let mut updates = Vec::new();
        loop {
            let message = self.read().await?;
            if message["method"] != "session/update" {
                return Ok((updates, message));
            }
            ensure!(message["params"]["sessionId"] == *session, "{message}");
            updates.push(message["params"]["update"].clone());
        }
    }
}

/// Returns the texts of the updates of a kind, put together.
pub fn text_of(updates: &[Value], kind: &str) -> String {
    let of_kind = updates
        .iter()
        .filter(|update| update["sessionUpdate"] == kind);
    let texts = of_kind.filter_map(|update| update["content"]["text"].as_str());
    texts.collect()
}

/// Returns the ids and the states of the tool calls in updates.
pub fn calls(updates: &[Value]) -> Vec<(&Value, &Value)> {
    let calls = updates
        .iter()
        .filter(|update| update["toolCallId"].is_string());
    calls
        .map(|call| (&call["toolCallId"], &call["status"]))
        .collect()
}
