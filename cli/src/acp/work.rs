//! Follows the work on a prompt: tells the client what is done, and asks it about what waits.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use planck_client::{
    Client,
    turn::{Turn, TurnEvent},
};
use planck_common::{
    AgentId, CallId, InputId, SessionId,
    command::{Answer, SessionInfo},
    wait::{WaitDecision, WaitKind, WaitOpened},
};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    connection::ToClient,
    permission::{self, OpenWaits, WaitNews, way_out},
    question,
    rpc::{RequestId, RpcError},
    sessions::{Claim, refused},
    updates::{CallHead, Translator, end},
    wire::{ClientCan, Cost, PromptDone, StopReason, Update},
    workers::Workers,
};

/// What runs in a session for this client.
#[derive(Debug)]
pub struct Running {
    cancel: Notify,
    /// What the client's next message in the session means.
    next: Mutex<NextMessage>,
    answers: mpsc::Sender<(WaitOpened, String)>,
    /// Cancelled when nothing runs any more.
    pub over: CancellationToken,
}

/// What a message of the client means while something runs in its session.
#[derive(Debug, Default)]
struct NextMessage {
    /// The prompt that has no answer yet. While there is one, there is no other.
    prompt: Option<RequestId>,
    /// The question that the message answers.
    question: Option<WaitOpened>,
    is_cancelled: bool,
}

/// The answers of a person to questions, as texts.
pub type TextAnswers = mpsc::Receiver<(WaitOpened, String)>;

impl Running {
    pub fn new(prompt: Option<RequestId>) -> (Arc<Self>, TextAnswers) {
        // The next question is open only when the answer to the last one was received.
        let (answers, receiver) = mpsc::channel(1);
        let next = NextMessage {
            prompt,
            question: None,
            is_cancelled: false,
        };
        let running = Self {
            cancel: Notify::new(),
            next: Mutex::new(next),
            answers,
            over: CancellationToken::new(),
        };
        (Arc::new(running), receiver)
    }

    fn next(&self) -> MutexGuard<'_, NextMessage> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a message of the client as the answer to the question that is open. Returns `false` if
    /// none is.
    pub fn answers(&self, id: &RequestId, text: &str) -> bool {
        let mut next = self.next();
        if next.prompt.is_some() {
            return false;
        }
        let Some(question) = next.question.take() else {
            return false;
        };
        next.prompt = Some(id.clone());
        self.answers.try_send((question, text.to_owned())).is_ok()
    }

    /// Cancels the prompt. The client knows it as over from here.
    pub fn cancel(&self) {
        self.next().is_cancelled = true;
        self.cancel.notify_one();
    }

    /// Returns whether the next prompt waits for the end of what runs. It does if the client knows of
    /// nothing that runs, and is refused otherwise.
    pub fn lets_wait(&self) -> bool {
        let next = self.next();
        next.is_cancelled || next.prompt.is_none()
    }

    pub fn is_for(&self, id: &RequestId) -> bool {
        self.next().prompt.as_ref() == Some(id)
    }

    pub fn take_prompt(&self) -> Option<RequestId> {
        self.next().prompt.take()
    }
}

/// The work on a prompt.
pub struct Work {
    pub client: Client,
    pub to_client: ToClient,
    pub can: ClientCan,
    pub session: SessionId,
    pub lead: AgentId,
    /// The prompt, unless another client has sent it.
    pub prompt: Option<InputId>,
    pub turn: Turn,
    pub translator: Translator,
    questions: Questions,
    is_cancelled: bool,
}

/// What the client is asked, or is to be asked.
struct Questions {
    workers: Workers,
    waits: OpenWaits,
    /// The requests to the client that are open, by their waits.
    asked: HashMap<CallId, CancellationToken>,
    /// The questions that the next messages of the client answer.
    texts: Vec<WaitOpened>,
    open: FuturesUnordered<BoxFuture<'static, Decided>>,
}

/// What has become of a request that was open while the work went on.
struct Decided {
    /// What the client is told.
    told: Option<String>,
    /// The call of a worker about which a person has decided.
    call: Option<(AgentId, (CallId, CallHead), bool)>,
}

impl Decided {
    fn told(told: Option<String>) -> Self {
        Self { told, call: None }
    }
}

impl Work {
    pub fn new(
        (client, to_client, can): (Client, ToClient, ClientCan),
        info: &SessionInfo,
        lead: AgentId,
        turn: Turn,
        prompt: Option<InputId>,
    ) -> Self {
        let prefix = prompt.as_ref().map_or("running", |prompt| prompt.as_str());
        Self {
            translator: Translator::new(prefix, &info.dir, can),
            session: info.id.clone(),
            client,
            to_client,
            can,
            lead,
            prompt,
            turn,
            questions: Questions {
                workers: Workers::new(can.show_subagents),
                waits: OpenWaits::default(),
                asked: HashMap::new(),
                texts: Vec::new(),
                open: FuturesUnordered::new(),
            },
            is_cancelled: false,
        }
    }

    /// Tells the client what is done until the work is over, and then answers its prompt, if one is
    /// open. `opening` runs once, when the client knows what was done before.
    pub async fn follow(mut self, mut claim: Claim, opening: Option<BoxFuture<'static, ()>>) {
        let ended = self.followed(&mut claim, opening).await;
        let ended = match ended {
            // The protocol knows no failure of what was cancelled.
            Err(_) if self.is_cancelled => Ok(StopReason::Cancelled),
            ended => ended,
        };
        self.tell_usage(&claim.session).await;
        let prompt = claim.running.take_prompt();
        let session = &claim.session;
        match (prompt, ended) {
            (Some(id), ended) => {
                let done = ended.map(|stop_reason| PromptDone { stop_reason });
                self.to_client.answer(id, done).await;
            }
            (None, Err(error)) => {
                let notice = self.translator.notice(&error.message);
                self.to_client.update(session, notice).await;
            }
            (None, Ok(_)) => {}
        }
    }

    async fn followed(
        &mut self,
        claim: &mut Claim,
        mut opening: Option<BoxFuture<'static, ()>>,
    ) -> Result<StopReason, RpcError> {
        let ended = loop {
            let event = tokio::select! {
                event = self.turn.next() => match event {
                    Ok(Some(event)) => event,
                    Ok(None) => break Err(RpcError::new(RpcError::INTERNAL, "the work has no end")),
                    Err(why) => break Err(refused(&why)),
                },
                () = claim.running.cancel.notified() => {
                    self.is_cancelled = true;
                    let abort = self.abort();
                    self.questions.open.push(abort);
                    continue;
                }
                Some((wait, text)) = claim.answers.recv() => {
                    self.questions.texts.retain(|open| open.id != wait.id);
                    let sent = self.send_text(wait, text);
                    self.questions.open.push(sent);
                    self.ask_for_text(claim).await;
                    continue;
                }
                Some(decided) = self.questions.open.next(), if !self.questions.open.is_empty() => {
                    self.decided(claim, decided).await;
                    continue;
                }
            };
            self.tell(claim, &event).await;
            if let Some(ended) = end(&event) {
                break ended;
            }
            if self.questions.waits.are_live()
                && let Some(opening) = opening.take()
            {
                opening.await;
            }
            self.ask_for_text(claim).await;
        };
        if let Some(opening) = opening {
            opening.await;
        }
        self.withdraw(claim).await;
        ended
    }

    /// Withdraws what the client is still asked about, and waits for what was begun.
    async fn withdraw(&mut self, claim: &Claim) {
        for (_, withdrawn) in self.questions.asked.drain() {
            withdrawn.cancel();
        }
        while let Some(decided) = self.questions.open.next().await {
            self.decided(claim, decided).await;
        }
    }

    async fn tell(&mut self, claim: &Claim, event: &TurnEvent) {
        for update in self.translator.take(event) {
            self.to_client.update(&claim.session, update).await;
        }
        if let TurnEvent::Worker(worker) = event {
            for (agent, update) in self.questions.workers.take(worker) {
                let session = agent
                    .as_ref()
                    .map_or(&*claim.session, |agent| agent.as_str());
                self.to_client.update(session, update).await;
            }
        }
        let WaitNews { closed, new } = self.questions.waits.take(event);
        for id in closed {
            if let Some(withdrawn) = self.questions.asked.remove(&id) {
                withdrawn.cancel();
            }
            self.questions.texts.retain(|open| open.id != id);
            let mut next = claim.running.next();
            next.question.take_if(|question| question.id == id);
        }
        for (agent, wait) in new {
            if wait.kind == WaitKind::Question && !self.can.fill_forms {
                self.questions.texts.push(wait);
            } else {
                let asked = self.ask(claim, agent, wait);
                self.questions.open.push(asked);
            }
        }
    }

    /// Tells the client the next question, and ends its prompt with it. A client without forms can only
    /// answer with a message, and sends none while its prompt runs.
    async fn ask_for_text(&mut self, claim: &Claim) {
        let Some(wait) = self.questions.texts.first() else {
            return;
        };
        let is_told = claim.running.next().question.is_some();
        if is_told {
            return;
        }
        let text = question::message(wait);
        let said = format!("\n\n{text}\n\n(Your next message is the answer.)\n\n");
        let said = self.translator.said(&said);
        let has_prompt = {
            let mut next = claim.running.next();
            // The answer may come as soon as the client has the text. While its prompt runs, none does.
            next.question = Some(wait.clone());
            next.prompt.is_some()
        };
        self.to_client.update(&claim.session, said).await;
        // Without a prompt then, one that is open now is the answer.
        if has_prompt && let Some(id) = claim.running.take_prompt() {
            let stop_reason = StopReason::EndTurn;
            let done = Ok(PromptDone { stop_reason });
            self.to_client.answer(id, done).await;
        }
    }

    async fn decided(&mut self, claim: &Claim, decided: Decided) {
        if let Some((agent, call, is_allowed)) = decided.call {
            let (agent, update) = self.questions.workers.decided(&agent, call, is_allowed);
            let session = agent
                .as_ref()
                .map_or(&*claim.session, |agent| agent.as_str());
            self.to_client.update(session, update).await;
        }
        // A client that cancels withdraws its own questions.
        if let Some(text) = decided.told.filter(|_| !self.is_cancelled) {
            let notice = self.translator.notice(&text);
            self.to_client.update(&claim.session, notice).await;
        }
    }

    fn abort(&self) -> BoxFuture<'static, Decided> {
        let (client, session) = (self.client.clone(), self.session.clone());
        let prompt = self.prompt.clone();
        let reason = Some("the editor cancelled the prompt".to_owned());
        async move {
            let aborted = client.abort_session(&session, prompt.as_ref(), reason);
            let error = aborted.await.err();
            Decided::told(error.map(|error| {
                format!("the prompt may go on, because it cannot be cancelled: {error}")
            }))
        }
        .boxed()
    }

    /// Asks the client about a wait, and passes its answer on.
    fn ask(
        &mut self,
        claim: &Claim,
        agent: Option<AgentId>,
        wait: WaitOpened,
    ) -> BoxFuture<'static, Decided> {
        let withdrawn = CancellationToken::new();
        let asked = &mut self.questions.asked;
        asked.insert(wait.id.clone(), withdrawn.clone());
        let (client, to_client) = (self.client.clone(), self.to_client.clone());
        let session = self.session.clone();
        // An editor that knows no other session hangs if it is asked about one.
        let at = self.questions.workers.session_of(agent.as_ref());
        let name = at.map_or_else(|| claim.session.clone(), |at| at.to_string());
        async move {
            let mut call = None;
            let said = if let Some(request) = permission::request(&name, &wait) {
                if let Some(agent) = agent {
                    // The client has no event of a call that is not one of the lead.
                    let announced = Update::ToolCall(request.tool_call.clone());
                    to_client.update(&name, announced).await;
                    call = CallHead::of_call(&request.tool_call).map(|head| (agent, head));
                }
                let method = "session/request_permission";
                to_client.ask(method, request, &withdrawn).await
            } else if let Some(form) = question::form(&name, &wait) {
                let method = "elicitation/create";
                to_client.ask(method, form, &withdrawn).await
            } else {
                return Decided::told(Some(format!("{}; {}", wait.title, way_out(&wait))));
            };
            let said = match said {
                None => return Decided::told(None),
                Some(Ok(said)) => said,
                Some(Err(error)) => {
                    let why = error.message;
                    let way_out = way_out(&wait);
                    return Decided::told(Some(format!(
                        "the editor cannot ask ({why}); {way_out}"
                    )));
                }
            };
            let answer = match wait.kind {
                WaitKind::Question => question::answer(&wait, &said),
                WaitKind::Approval | WaitKind::Change | WaitKind::Budget | WaitKind::ClientTool => {
                    permission::answer(&wait, &said)
                }
            };
            let Some(answer) = answer else {
                let way_out = way_out(&wait);
                return Decided::told(Some(format!("the answer decides nothing; {way_out}")));
            };
            let (told, decision) = send(&client, &session, &answer).await;
            let is_allowed = decision.unwrap_or(answer.decision) == WaitDecision::Allow;
            let call = call.map(|(agent, head)| (agent, (wait.call().clone(), head), is_allowed));
            Decided { told, call }
        }
        .boxed()
    }

    fn send_text(&self, wait: WaitOpened, text: String) -> BoxFuture<'static, Decided> {
        let (client, session) = (self.client.clone(), self.session.clone());
        async move {
            let Some(answer) = question::text_answer(&wait, &text) else {
                return Decided::told(Some(format!("the answer is no text; {}", way_out(&wait))));
            };
            Decided::told(send(&client, &session, &answer).await.0)
        }
        .boxed()
    }

    /// Tells the client how full the context of the lead is, and what the session has cost. If that
    /// cannot be read, the client shows what it knows.
    async fn tell_usage(&mut self, session: &str) {
        let (lead, info) = tokio::join!(
            self.client.agent(&self.lead),
            self.client.session(&self.session)
        );
        let (Ok(lead), Ok(info)) = (lead, info) else {
            return;
        };
        let usage = Update::Usage {
            used: lead.context_tokens,
            size: lead.context_window,
            cost: Cost {
                amount: info.usage.cost_usd,
                currency: "USD",
            },
        };
        self.to_client.update(session, usage).await;
    }
}

/// Sends an answer. Returns what the client is told, and the decision that holds.
async fn send(
    client: &Client,
    session: &SessionId,
    answer: &Answer,
) -> (Option<String>, Option<WaitDecision>) {
    match client.answer(session, answer).await {
        Ok(held) if held.decision == answer.decision => (None, Some(held.decision)),
        Ok(held) => {
            let decision = WaitDecision::name(held.decision);
            let told = format!("another answer came before: {decision}");
            (Some(told), Some(held.decision))
        }
        Err(error) => (Some(format!("the answer has no effect: {error}")), None),
    }
}
