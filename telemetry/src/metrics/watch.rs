//! Measures the duration and the outcome of one request to a model.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{ModelCall, meters};
use planck_agent::model::{Failure, Finish};

/// A running request. Dropping it before [`Self::end`] records a cancellation.
#[derive(Debug)]
pub struct RequestMeter {
    provider: Arc<str>,
    model: String,
    since: Instant,
    first_token: Option<Duration>,
    ended: bool,
}

impl RequestMeter {
    pub fn begin(provider: Arc<str>, model: String) -> Self {
        Self {
            provider,
            model,
            since: Instant::now(),
            first_token: None,
            ended: false,
        }
    }

    /// Records that a piece of the reply has arrived. The first piece determines the time to the
    /// first token.
    pub fn piece(&mut self) {
        if self.first_token.is_none() {
            self.first_token = Some(self.since.elapsed());
        }
    }

    pub fn end(&mut self, result: Result<&Finish, &Failure>) {
        self.ended = true;
        match result {
            Ok(finish) => meters().model_called(ModelCall {
                usage: Some(&finish.usage),
                ..self.call(None)
            }),
            Err(failure) => meters().model_called(self.call(Some(failure.kind.name()))),
        }
    }

    fn call(&self, error: Option<&'static str>) -> ModelCall<'_> {
        let Self {
            provider,
            model,
            since,
            first_token,
            ..
        } = self;
        ModelCall {
            provider,
            model,
            error,
            took: since.elapsed(),
            first_token: *first_token,
            usage: None,
        }
    }
}

impl Drop for RequestMeter {
    fn drop(&mut self) {
        if !self.ended {
            meters().model_called(self.call(Some("cancelled")));
        }
    }
}
