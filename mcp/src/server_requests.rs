//! What a server asks of its client, and what it tells it: the list of its tools has changed, a call
//! has made progress.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use planck_sidecar::Context;
use rmcp::{
    ClientHandler,
    model::{
        ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
        ElicitationCapability, ErrorData, FormElicitationCapability, Implementation,
        ProgressNotificationParam, ProgressToken,
    },
    service::{NotificationContext, RequestContext, RoleClient},
};
use tokio::sync::Notify;

use crate::{elicitation::Form, pending::OpenCalls};

/// The client side of a connection. What it does not override is what a client without capabilities
/// answers: `roots/list` gets an empty list, because some servers wait for it, and sampling is refused,
/// because a server gets no tokens of this cluster's models.
#[derive(Debug, Default)]
pub struct ServerRequests {
    pub progress: ProgressRoutes,
    pub calls: OpenCalls,
    pub tools_changed: Arc<Notify>,
}

impl ClientHandler for ServerRequests {
    fn get_info(&self) -> ClientConfig {
        let us = Implementation::new("planck", env!("CARGO_PKG_VERSION"));
        let mut capabilities = ClientCapabilities::default();
        let form = FormElicitationCapability::new();
        capabilities.elicitation = Some(ElicitationCapability::new().with_form(form));
        ClientConfig::new(capabilities, us)
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let Some(answered) = Form::of(request).and_then(|form| self.calls.ask(form)) else {
            return Ok(ElicitResult::new(ElicitationAction::Decline));
        };
        let answer = tokio::select! {
            answer = answered => answer.ok(),
            () = context.ct.cancelled() => None,
        };
        Ok(answer.unwrap_or_else(|| ElicitResult::new(ElicitationAction::Cancel)))
    }

    async fn on_progress(
        &self,
        report: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.progress.pass_on(report);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.tools_changed.notify_one();
    }
}

/// The calls that progress reports belong to, by the token that the server repeats.
#[derive(Debug, Clone, Default)]
pub struct ProgressRoutes(Arc<Mutex<HashMap<ProgressToken, Context>>>);

impl ProgressRoutes {
    /// Passes the reports with this token on to a call until the returned value is dropped.
    pub fn add(&self, token: ProgressToken, call: Context) -> ProgressRoute {
        self.lock().insert(token.clone(), call);
        ProgressRoute {
            routes: self.clone(),
            token,
        }
    }

    fn pass_on(&self, report: ProgressNotificationParam) {
        let Some(call) = self.lock().get(&report.progress_token).cloned() else {
            return;
        };
        let ProgressNotificationParam {
            progress,
            total,
            message,
            ..
        } = report;
        let total = total.filter(|total| *total > 0.0);
        let message = message.unwrap_or_else(|| match total {
            Some(total) => format!("{progress} of {total}"),
            None => progress.to_string(),
        });
        call.progress(message, total.map(|total| 100.0 * progress / total));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ProgressToken, Context>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the route of a call when the call ends.
#[derive(Debug)]
pub struct ProgressRoute {
    routes: ProgressRoutes,
    token: ProgressToken,
}

impl ProgressRoute {
    /// Passes the reports on to another call from now on.
    pub fn lead_to(&self, call: Context) {
        self.routes.lock().insert(self.token.clone(), call);
    }
}

impl Drop for ProgressRoute {
    fn drop(&mut self) {
        self.routes.lock().remove(&self.token);
    }
}
