//! The prompts of a client: takes them, and starts the sessions that have none yet.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use planck_client::ClientError;
use planck_common::{
    SessionId, command,
    message::{MediaSource, Part, text_of},
};
use planck_host::terminal::clean_line;
use tokio_util::sync::CancellationToken;

use super::{
    options::{Draft, Settings},
    rpc::{RequestId, RpcError},
    sessions::{Claim, Sessions, TITLE, busy, refused, unusable},
    updates::Translator,
    wire::{
        ClientCan, ConfigOptions, Nothing, Prompt, PromptBlock, PromptDone, StopReason, Update,
    },
    work::Work,
};
use crate::{chat::slash::SlashCommand, model, render::style::cut, waits::own_name};

impl Sessions {
    /// Takes a prompt, and returns what performs it. Returns `None` if it is the answer to a question of
    /// the work that runs. A prompt behind `session/cancel` waits for the end of what it cancels, and one
    /// in a session that was loaded while it works waits for the end of that work.
    pub fn take_prompt(
        self: Arc<Self>,
        id: RequestId,
        prompt: Prompt,
    ) -> Result<Option<BoxFuture<'static, ()>>, RpcError> {
        let parts = content(prompt.prompt)?;
        let session = prompt.session_id;
        let running = self.known().running.get(&session).cloned();
        let Some(running) = running else {
            let claim = self.claim(&session, Some(id))?;
            return Ok(Some(Box::pin(self.prompt(claim, parts))));
        };
        if running.answers(&id, &text_of(&parts)) {
            return Ok(None);
        }
        let is_first = !self.known().waiting.contains_key(&session);
        if !is_first || !running.lets_wait() {
            return Err(busy(&session));
        }
        let given_up = CancellationToken::new();
        self.known()
            .waiting
            .insert(session.clone(), given_up.clone());
        Ok(Some(Box::pin(async move {
            let was_given_up = tokio::select! {
                () = running.over.cancelled() => false,
                () = given_up.cancelled() => true,
            };
            if was_given_up {
                // Another prompt may wait by now.
                let stop_reason = StopReason::Cancelled;
                return self
                    .to_client
                    .answer(id, Ok(PromptDone { stop_reason }))
                    .await;
            }
            self.known().waiting.remove(&session);
            match self.claim(&session, Some(id.clone())) {
                Ok(claim) => self.prompt(claim, parts).await,
                Err(error) => self.to_client.answer::<Nothing>(id, Err(error)).await,
            }
        })))
    }

    /// Sends a prompt to a session, and tells the client what is done, until the work on it is over.
    async fn prompt(self: Arc<Self>, claim: Claim, parts: Vec<Part>) {
        let answer = match self.reported(&claim.session, &parts).await {
            Ok(Some(report)) => {
                let said = Translator::new("report", "/", ClientCan::default()).said(&report);
                self.to_client.update(&claim.session, said).await;
                let stop_reason = StopReason::EndTurn;
                Ok(PromptDone { stop_reason })
            }
            Ok(None) => match Box::pin(self.prompted(&claim.session, parts)).await {
                Ok(work) => return work.follow(claim, None).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        if let Some(id) = claim.running.take_prompt() {
            self.to_client.answer(id, answer).await;
        }
    }

    /// Performs a prompt that is one of the announced commands, and returns what the client is told.
    async fn reported(&self, session: &str, parts: &[Part]) -> Result<Option<String>, RpcError> {
        let [Part::Text { text, .. }] = parts else {
            return Ok(None);
        };
        let Some(command) = SlashCommand::of(text) else {
            return Ok(None);
        };
        let is_rename = matches!(command, SlashCommand::Rename(_));
        if !is_rename && !command.is_report() {
            return Ok(None);
        }
        if self.draft(session).is_some() {
            return Ok(Some("The session starts with its first prompt.".into()));
        }
        let info = self.client.session(session).await;
        let info = info.map_err(|why| refused(&why))?;
        if let SlashCommand::Rename(title) = command {
            let renamed = self.client.rename(session, title.map(Into::into)).await;
            let title = renamed
                .map_err(|why| refused(&why))?
                .title
                .unwrap_or_default();
            let said = format!("The title is now \"{title}\".");
            self.to_client
                .update(session, Update::SessionInfo { title })
                .await;
            return Ok(Some(said));
        }
        let report = command.report(&self.client, &info.id).await;
        let report = report.map_err(|why| RpcError::new(RpcError::INTERNAL, format!("{why:#}")))?;
        // Columns are those of a terminal.
        Ok(report.map(|report| format!("```\n{report}```\n")))
    }

    async fn prompted(&self, session: &str, parts: Vec<Part>) -> Result<Work, RpcError> {
        let _permit = self.sending.acquire().await;
        let refuse = |why: ClientError| refused(&why);
        if let Some(draft) = self.draft(session) {
            self.start(session, &draft, &text_of(&parts)).await?;
        }
        let prompt = command::Prompt {
            content: Some(parts),
            by: own_name(),
            ..command::Prompt::default()
        };
        let accepted = self.client.prompt(session, prompt).await.map_err(refuse)?;
        let info = self.client.session(&accepted.session_id).await;
        let info = info.map_err(refuse)?;
        let turn = self.client.follow_prompt(&accepted).await.map_err(refuse)?;
        let shared = (
            self.client.clone(),
            self.to_client.clone(),
            self.known().can,
        );
        let (lead, prompt) = (accepted.agent_id, Some(accepted.prompt_id));
        let work = Work::new(shared, &info, lead, turn, prompt);
        if let Some(warning) = accepted.warning {
            let notice = work.translator.notice(&warning);
            self.to_client.update(session, notice).await;
        }
        Ok(work)
    }

    /// Starts a session with what the client has chosen. From then on only the model can change.
    async fn start(&self, session: &str, draft: &Draft, text: &str) -> Result<(), RpcError> {
        let refuse = |why: ClientError| refused(&why);
        let choice = self.args.choice(Some(draft));
        if draft.model.is_none() {
            choice.check_keys(&self.config).map_err(unusable)?;
        }
        let mut start = choice.request().map_err(unusable)?;
        let id = SessionId::parse(session);
        start.session_id = Some(id.map_err(|why| RpcError::bad_params(why.to_string()))?);
        let started = self.client.start(start).await.map_err(refuse)?;
        if let Some(model) = &draft.model {
            let change = model::change(model);
            let lead = &started.orchestrator;
            self.client
                .change_model(lead, &change)
                .await
                .map_err(refuse)?;
        }
        self.known().drafts.remove(session);
        let (info, lead) = self.started(session).await?;
        let config_options = Settings::of(&info, &lead.model).options(&self.offers().await);
        let options = Update::ConfigOptions(ConfigOptions { config_options });
        self.to_client.update(session, options).await;
        if let Some(line) = text.lines().find(|line| !line.trim().is_empty()) {
            let title = cut(&clean_line(line), TITLE);
            let update = Update::SessionInfo { title };
            self.to_client.update(session, update).await;
        }
        Ok(())
    }
}

/// Returns the content of a prompt. What a link names is not read: the agents may work on another
/// machine.
fn content(blocks: Vec<PromptBlock>) -> Result<Vec<Part>, RpcError> {
    let part = |block| match block {
        PromptBlock::Text { text } => Ok(Part::text(text)),
        PromptBlock::ResourceLink { name, uri } => Ok(Part::text(format!("[{name}]({uri})"))),
        PromptBlock::Image { data, mime_type } => {
            let source = MediaSource::Data(data);
            match source.fault() {
                Some(fault) => Err(RpcError::bad_params(fault)),
                None => Ok(Part::Image {
                    mime: mime_type,
                    source,
                }),
            }
        }
        PromptBlock::Resource { resource } => {
            let text = resource.text.ok_or_else(|| {
                let why = format!("`{}` is no text; send an image as one", resource.uri);
                RpcError::bad_params(why)
            })?;
            Ok(Part::text(format!("{}:\n```\n{text}\n```", resource.uri)))
        }
        PromptBlock::Other => Err(RpcError::bad_params(
            "a prompt has texts, images, links and files with a text, as `promptCapabilities` says",
        )),
    };
    let parts: Vec<Part> = blocks.into_iter().map(part).collect::<Result<_, _>>()?;
    match parts.is_empty() {
        true => Err(RpcError::bad_params("the prompt is empty")),
        false => Ok(parts),
    }
}
