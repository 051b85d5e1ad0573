//! A tool: an async function with its description for the model and the node.

use std::{fmt::Display, future::Future, time::Duration};

use futures_util::future::{BoxFuture, FutureExt as _};
use planck_common::{
    event::ToolEffect,
    service::ServiceMetadata,
    sidecar::{TOOL_TIMEOUT_MS, metadata},
};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, value::RawValue};

use crate::Context;

/// A function that returns the text of an answer or of an error.
pub(crate) type Function =
    Box<dyn Fn(Context, &RawValue) -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

/// Returns the error about arguments that cannot be read.
fn refused(error: &serde_json::Error) -> BoxFuture<'static, Result<String, String>> {
    futures_util::future::ready(Err(format!("the arguments do not fit: {error}"))).boxed()
}

/// One tool of a sidecar. It counts as mutating unless it is marked as [`pure`](Self::pure) or
/// [`idempotent`](Self::idempotent). A node sends a mutating call again only if no instance has
/// received it.
pub struct Tool {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) parameters: String,
    /// Whether the arguments are an object, which is required because models name their arguments.
    pub(crate) takes_object: bool,
    pub(crate) effect: ToolEffect,
    pub(crate) timeout: Duration,
    pub(crate) function: Function,
}

impl Tool {
    /// Creates a tool from a function, and derives the JSON Schema of its arguments from their
    /// type. The model reads what the function returns, including errors. Arguments that do not fit
    /// the type never reach the function. The type must be an object in JSON. Use a struct, or
    /// `serde_json::Map<String, Value>` for any object.
    pub fn new<A, T, E, F, R>(
        name: impl Into<String>,
        description: impl Into<String>,
        function: F,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        T: Into<String>,
        E: Display,
        F: Fn(Context, A) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
    {
        let schema = SchemaSettings::draft2020_12()
            .into_generator()
            .into_root_schema_for::<A>();
        let function =
            move |context: Context, args: &RawValue| match serde_json::from_str::<A>(args.get()) {
                Ok(args) => function(context, args)
                    .map(|said| said.map(Into::into).map_err(|error| format!("{error:#}")))
                    .boxed(),
                Err(error) => refused(&error),
            };
        Self {
            name: name.into(),
            description: description.into(),
            takes_object: schema.get("type").is_some_and(|kind| kind == "object"),
            parameters: serde_json::to_string(&schema)
                .unwrap_or_else(|_| r#"{"type":"object"}"#.into()),
            effect: ToolEffect::Mutating,
            timeout: Duration::from_millis(TOOL_TIMEOUT_MS),
            function: Box::new(function),
        }
    }

    /// Creates a tool from the JSON Schema of its arguments, for a program that learns only while it
    /// runs what it offers. The function gets the arguments as they were sent, and checks them.
    pub fn with_parameters<F, R>(
        name: impl Into<String>,
        description: impl Into<String>,
        parameters: &Map<String, Value>,
        function: F,
    ) -> Self
    where
        F: Fn(Context, Map<String, Value>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<String, String>> + Send + 'static,
    {
        let function =
            move |context: Context, args: &RawValue| match serde_json::from_str(args.get()) {
                Ok(args) => function(context, args).boxed(),
                Err(error) => refused(&error),
            };
        Self {
            name: name.into(),
            description: description.into(),
            takes_object: parameters.get("type").is_some_and(|kind| kind == "object"),
            parameters: serde_json::to_string(parameters)
                .unwrap_or_else(|_| r#"{"type":"object"}"#.into()),
            effect: ToolEffect::Mutating,
            timeout: Duration::from_millis(TOOL_TIMEOUT_MS),
            function: Box::new(function),
        }
    }

    /// Marks the tool as one that changes nothing.
    #[must_use]
    pub const fn pure(self) -> Self {
        self.effect(ToolEffect::Pure)
    }

    /// Marks the tool as one that changes nothing more when it is run again under the same call id.
    #[must_use]
    pub const fn idempotent(self) -> Self {
        self.effect(ToolEffect::Idempotent)
    }

    /// Sets what running the tool changes. This decides whether a node may send an interrupted call
    /// again.
    #[must_use]
    pub const fn effect(mut self, effect: ToolEffect) -> Self {
        self.effect = effect;
        self
    }

    /// Sets how long the tool may be silent, 5 minutes by default. Every progress report restarts
    /// this time, but a call takes at most ten times the timeout.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub(crate) fn metadata(&self) -> ServiceMetadata {
        let pairs = [
            (metadata::KIND, metadata::TOOL.to_owned()),
            (metadata::DESCRIPTION, self.description.clone()),
            (metadata::PARAMETERS, self.parameters.clone()),
            (metadata::EFFECT, self.effect.name().to_owned()),
            (metadata::TIMEOUT_MS, self.timeout.as_millis().to_string()),
        ];
        pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }
}
