//! A route: its handler, the role that its caller needs, and what the description says about it.
//! The description follows from the types of the handler's arguments and of its answer.

use std::sync::Arc;

use axum::{
    Json,
    extract::{
        Path, Query, RawQuery, Request, State,
        rejection::{PathRejection, QueryRejection},
    },
    handler::Handler,
    http::{HeaderMap, StatusCode},
    middleware::{Next, from_fn},
    response::{IntoResponse as _, Response},
    routing::{self, MethodRouter},
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use super::{
    body::{Id, JsonBody, QueryArguments, WireBody},
    front::Front,
    key::{Caller, Role},
    openai::{self, OpenAiError},
    problem::Problem,
};

/// Returns the schema of a type, and adds those that it refers to.
type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// A route, and what the description says about it.
#[derive(Clone)]
pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    pub summary: &'static str,
    pub role: Role,
    handler: MethodRouter<Arc<Front>>,
    /// The type whose fields are parameters of the query.
    pub query: Option<SchemaOf>,
    /// The other parameters outside of the path.
    pub parameters: Vec<Value>,
    pub body: Option<SchemaOf>,
    pub reply: Option<SchemaOf>,
    pub status: &'static str,
    /// The events of the stream that the route can answer with.
    pub stream: Option<&'static str>,
    /// The case in which the answer is empty.
    pub empty: Option<&'static str>,
}

/// Defines the constructors of routes with one method.
macro_rules! methods {
    ($($method:ident)+) => {$(
        pub fn $method<H, A: 'static, D>(
            path: &'static str,
            summary: &'static str,
            role: Role,
            handler: H,
        ) -> Self
        where
            H: Handler<A, Arc<Front>> + Describe<D>,
        {
            let mut route = Self {
                method: stringify!($method),
                path,
                summary,
                role,
                handler: routing::$method(handler),
                query: None,
                parameters: Vec::new(),
                body: None,
                reply: None,
                status: "200",
                stream: None,
                empty: None,
            };
            H::describe(&mut route);
            route
        }
    )+};
}

/// Lists routes, each with its method, path, role, handler and summary, and in brackets what else the
/// description says.
macro_rules! routes {
    ($($method:ident $path:literal needs $role:ident: $handler:path, $summary:literal $([$($more:tt)*])?;)+) => {
        vec![$(
            Route::$method($path, $summary, $crate::key::Role::$role, $handler)$($($more)*)?
        ),+]
    };
}

pub(crate) use routes;

impl Route {
    methods!(get post delete);

    /// Returns the handler, which refuses callers with a lower role than the route needs.
    pub fn handler(&self) -> MethodRouter<Arc<Front>> {
        require(self.role, self.handler.clone())
    }

    /// Says what the route answers, for a handler whose type does not say it.
    pub fn reply<R: JsonSchema>(mut self) -> Self {
        self.reply = Some(SchemaGenerator::subschema_for::<R>);
        self
    }

    pub fn status(mut self, status: &'static str) -> Self {
        self.status = status;
        self
    }

    pub fn stream(mut self, events: &'static str) -> Self {
        self.stream = Some(events);
        self
    }

    pub fn empty(mut self, case: &'static str) -> Self {
        self.empty = Some(case);
        self
    }

    pub fn header(self, name: &str, description: &str) -> Self {
        let schema = json!({"type": "string"});
        self.parameter(
            json!({"name": name, "in": "header", "schema": schema, "description": description}),
        )
    }

    pub fn parameter(mut self, parameter: Value) -> Self {
        self.parameters.push(parameter);
        self
    }
}

/// Returns a handler that refuses callers with a lower role.
pub fn require(role: Role, handler: MethodRouter<Arc<Front>>) -> MethodRouter<Arc<Front>> {
    handler.route_layer(from_fn(move |request: Request, next: Next| async move {
        let caller = Caller::of(request.extensions());
        match caller.and_then(|caller| caller.needs(role, "this")) {
            Ok(()) => next.run(request).await,
            Err(problem) => refuse(request.uri().path(), problem),
        }
    }))
}

/// Answers with a problem in the form that the clients of this path read.
pub fn refuse(path: &str, problem: Problem) -> Response {
    match path.starts_with(openai::PREFIX) {
        true => OpenAiError::from(problem).into_response(),
        false => problem.into_response(),
    }
}

/// A handler whose type says what its route takes and answers. `D` tells the numbers of arguments
/// apart.
pub trait Describe<D> {
    fn describe(route: &mut Route);
}

/// Implements [`Describe`] for handlers with these arguments.
macro_rules! handlers {
    ($($argument:ident)*) => {
        impl<Handler, Reply, $($argument,)*> Describe<($($argument,)*)> for Handler
        where
            Handler: Fn($($argument),*) -> Reply,
            Reply: Future<Output: RouteAnswer>,
            $($argument: RouteArgument,)*
        {
            fn describe(route: &mut Route) {
                $(<$argument as RouteArgument>::describe(route);)*
                <Reply::Output as RouteAnswer>::describe(route);
            }
        }
    };
}

handlers!(A);
handlers!(A B);
handlers!(A B C);
handlers!(A B C D);
handlers!(A B C D E);
handlers!(A B C D E F);

/// What an argument of a handler adds to the description of its route.
pub trait RouteArgument {
    fn describe(_: &mut Route) {}
}

impl RouteArgument for Caller {}
impl RouteArgument for HeaderMap {}
impl RouteArgument for Id {}
impl RouteArgument for RawQuery {}
impl<T> RouteArgument for Path<T> {}
impl<T> RouteArgument for Result<Path<T>, PathRejection> {}
impl<T> RouteArgument for State<T> {}

impl<T: JsonSchema> RouteArgument for QueryArguments<T> {
    fn describe(route: &mut Route) {
        route.query = Some(SchemaGenerator::subschema_for::<T>);
    }
}

impl<T: JsonSchema> RouteArgument for Result<Query<T>, QueryRejection> {
    fn describe(route: &mut Route) {
        route.query = Some(SchemaGenerator::subschema_for::<T>);
    }
}

impl<T: JsonSchema> RouteArgument for JsonBody<T> {
    fn describe(route: &mut Route) {
        route.body = Some(SchemaGenerator::subschema_for::<T>);
    }
}

impl<T: JsonSchema> RouteArgument for WireBody<T> {
    fn describe(route: &mut Route) {
        route.body = Some(SchemaGenerator::subschema_for::<T>);
    }
}

/// What the answer of a handler adds to the description of its route.
pub trait RouteAnswer {
    fn describe(_: &mut Route) {}
}

impl RouteAnswer for Response {}

impl<T: JsonSchema> RouteAnswer for Json<T> {
    fn describe(route: &mut Route) {
        route.reply = Some(SchemaGenerator::subschema_for::<T>);
    }
}

impl<T: RouteAnswer> RouteAnswer for (StatusCode, T) {
    fn describe(route: &mut Route) {
        T::describe(route);
    }
}

impl<T: RouteAnswer, E> RouteAnswer for Result<T, E> {
    fn describe(route: &mut Route) {
        T::describe(route);
    }
}
