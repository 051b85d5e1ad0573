//! Calls without an answer yet, and what an older server asks during them. Such a request does not name
//! its call, so it belongs to a call only if no other one is open.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use planck_common::CallId;
use planck_sidecar::Context;
use rmcp::{
    model::{
        CallToolRequest, CallToolRequestParams, ClientRequest, ElicitResult, ElicitationAction,
        JsonObject, ServerResult,
    },
    service::{PeerRequestOptions, RequestHandle, RoleClient, ServiceError},
};
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc, oneshot},
    time::sleep,
};

use crate::{
    call::CalledTool,
    connection::LiveServer,
    elicitation::{Asked, Form, Inputs},
    server_requests::ProgressRoute,
};

/// The maximum number of calls whose questions people have, and how long a server has to wait for an
/// answer.
const MOST_HELD: usize = 64;
const HELD_FOR: Duration = Duration::from_hours(1);

/// What a server asks during a call.
#[derive(Debug)]
pub struct HeldQuestion {
    form: Form,
    answer: oneshot::Sender<ElicitResult>,
}

/// The calls that wait for their answers, by a number.
#[derive(Debug, Clone, Default)]
pub struct OpenCalls(Arc<Mutex<OpenCallsInner>>);

#[derive(Debug, Default)]
struct OpenCallsInner {
    last: u64,
    calls: HashMap<u64, Asking>,
}

#[derive(Debug)]
struct Asking {
    ask: mpsc::Sender<HeldQuestion>,
    /// Whether a person has a question of the call, so that the server does not ask another one.
    is_held: bool,
}

impl OpenCalls {
    pub fn are_any(&self) -> bool {
        !lock(&self.0).calls.is_empty()
    }

    /// Passes a question on to the only call that can ask. Returns `None` if there are several.
    pub fn ask(&self, form: Form) -> Option<oneshot::Receiver<ElicitResult>> {
        let inner = lock(&self.0);
        let mut calls = inner.calls.values().filter(|call| !call.is_held);
        let only = calls.next().filter(|_| calls.next().is_none())?;
        let (answer, answered) = oneshot::channel();
        only.ask.try_send(HeldQuestion { form, answer }).ok()?;
        Some(answered)
    }

    fn open(&self) -> OpenCall {
        let (ask, asked) = mpsc::channel(1);
        let mut inner = lock(&self.0);
        inner.last += 1;
        let number = inner.last;
        let is_held = false;
        inner.calls.insert(number, Asking { ask, is_held });
        OpenCall {
            calls: self.clone(),
            number,
            asked,
        }
    }
}

/// The place of a call among the open ones, which it leaves when this value is dropped.
#[derive(Debug)]
struct OpenCall {
    calls: OpenCalls,
    number: u64,
    asked: mpsc::Receiver<HeldQuestion>,
}

impl OpenCall {
    fn set_held(&self, is_held: bool) {
        if let Some(call) = lock(&self.calls.0).calls.get_mut(&self.number) {
            call.is_held = is_held;
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        lock(&self.calls.0).calls.remove(&self.number);
    }
}

/// A call that the server has not answered. If this value is dropped before there is an answer, the
/// server is told to cancel the call.
#[derive(Debug)]
pub struct PendingCall {
    /// Absent when there is an answer.
    request: Option<RequestHandle<RoleClient>>,
    open: OpenCall,
    route: ProgressRoute,
    look_again: Arc<Notify>,
}

/// How far a call has come.
pub enum PendingEnd {
    Answered(Result<Box<ServerResult>, ServiceError>),
    Asks(Box<PendingCall>, HeldQuestion),
}

impl PendingCall {
    /// Sends the call, with the responses to what the server asked before.
    pub async fn send(
        server: &LiveServer,
        tool: &CalledTool,
        context: &Context,
        args: JsonObject,
        inputs: Inputs,
    ) -> Result<Box<Self>, ServiceError> {
        let mut params = CallToolRequestParams::new(tool.server_name.clone()).with_arguments(args);
        let (responses, state) = inputs.into_parts();
        params.input_responses = (!responses.is_empty()).then_some(responses);
        params.request_state = state;
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let open = server.calls.open();
        let options = PeerRequestOptions::no_options();
        let request = server
            .peer
            .send_cancellable_request(request, options)
            .await?;
        let token = request.progress_token.clone();
        Ok(Box::new(Self {
            route: server.progress.add(token, context.clone()),
            request: Some(request),
            open,
            look_again: server.look_again.clone(),
        }))
    }

    /// Waits until the server answers, or asks something that a person can answer.
    pub async fn ended(mut self: Box<Self>, context: &Context) -> PendingEnd {
        loop {
            let question = tokio::select! {
                biased;
                answer = answer(&mut self.request) => {
                    return PendingEnd::Answered(answer.map(Box::new));
                }
                Some(question) = self.open.asked.recv() => question,
            };
            if context.may_ask() {
                return PendingEnd::Asks(self, question);
            }
            let declined = ElicitResult::new(ElicitationAction::Decline);
            let _not_wanted = question.answer.send(declined);
        }
    }
}

/// Waits for the answer to a request, and forgets the request when it has come.
async fn answer(
    request: &mut Option<RequestHandle<RoleClient>>,
) -> Result<ServerResult, ServiceError> {
    let answer = match request {
        Some(request) => (&mut request.rx).await.ok(),
        None => None,
    };
    *request = None;
    answer.unwrap_or(Err(ServiceError::TransportClosed))
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let (Some(request), Ok(runtime)) = (self.request.take(), Handle::try_current()) else {
            return;
        };
        // The call may have passed its deadline because the server hangs.
        self.look_again.notify_one();
        runtime.spawn(request.cancel(Some("the answer is no longer wanted".into())));
    }
}

/// The calls whose questions people have. They end with the connection.
#[derive(Debug, Default)]
pub struct HeldCalls(Arc<Mutex<HashMap<CallId, HeldCall>>>);

#[derive(Debug)]
struct HeldCall {
    call: Box<PendingCall>,
    answer: oneshot::Sender<ElicitResult>,
}

impl HeldCalls {
    /// Keeps a call until its question is answered, and returns the question.
    ///
    /// # Errors
    /// Returns an error if too many calls are kept. The call is cancelled.
    pub fn hold(
        &self,
        context: &Context,
        call: Box<PendingCall>,
        question: HeldQuestion,
    ) -> Result<Asked, String> {
        let HeldQuestion { form, answer } = question;
        let (id, number) = (context.call_id().clone(), call.open.number);
        let mut held = lock(&self.0);
        if held.len() >= MOST_HELD {
            return Err(format!(
                "the MCP server asks a question, and {MOST_HELD} of its questions are not answered yet; the call was cancelled"
            ));
        }
        call.open.set_held(true);
        held.insert(id.clone(), HeldCall { call, answer });
        let all = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            sleep(HELD_FOR).await;
            let Some(all) = all.upgrade() else { return };
            let mut held = lock(&all);
            if held
                .get(&id)
                .is_some_and(|held| held.call.open.number == number)
            {
                held.remove(&id);
            }
        });
        Ok(Asked::Held(form))
    }

    /// Gives the server the answer to its question, and returns the call, whose progress goes to
    /// `context` from now on. Returns `None` if the call is not kept any more.
    pub fn answer(&self, context: &Context, answer: ElicitResult) -> Option<Box<PendingCall>> {
        let held = lock(&self.0).remove(context.call_id())?;
        held.call.route.lead_to(context.clone());
        held.call.open.set_held(false);
        // A server that does not wait any more has answered the call.
        let _not_wanted = held.answer.send(answer);
        Some(held.call)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
