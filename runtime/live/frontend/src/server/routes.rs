//! Routes, and their paths for the labels of metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;

use axum::extract::Request;
use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::json;

use super::openapi::document;

/// A future response.
pub(crate) type Answered = Pin<Box<dyn Future<Output = Response> + Send>>;

/// A handler that is called without the router.
type Direct = Box<dyn Fn(Request) -> Answered + Send + Sync>;

/// Builds a direct handler from the shared state.
type MakeDirect<S> = Box<dyn FnOnce(S) -> Direct + Send + Sync>;

/// Routes with a list of their paths, because a router cannot list them.
pub(crate) struct Routes<S = ()> {
    router: Router<S>,
    paths: Vec<&'static str>,
    direct: Vec<(&'static str, MakeDirect<S>)>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    pub(crate) fn new() -> Self {
        Self { router: Router::new(), paths: Vec::new(), direct: Vec::new() }
    }

    /// Adds a route. `{name}` in its path matches one segment.
    #[must_use]
    pub(crate) fn route(mut self, path: &'static str, methods: MethodRouter<S>) -> Self {
        self.paths.push(path);
        Self { router: self.router.route(path, methods), ..self }
    }

    /// Adds a POST route for frequent requests. They skip the router, which would copy and box them.
    #[must_use]
    pub(crate) fn post<H, T>(mut self, path: &'static str, handler: H) -> Self
    where
        H: Handler<T, S, Future = Answered>,
        T: 'static,
    {
        let of_router = handler.clone();
        let make = move |state: S| -> Direct { Box::new(move |request| handler.clone().call(request, state.clone())) };
        self.direct.push((path, Box::new(make)));
        self.route(path, post(of_router))
    }

    #[must_use]
    pub(crate) fn merge(mut self, other: Self) -> Self {
        self.paths.extend(other.paths);
        self.direct.extend(other.direct);
        Self { router: self.router.merge(other.router), ..self }
    }

    /// Sets the shared state of the handlers.
    #[must_use]
    pub(crate) fn with_state(self, state: S) -> Routes {
        let with_state = |(path, make): (&'static str, MakeDirect<S>)| -> (&'static str, MakeDirect<()>) {
            let direct = make(state.clone());
            (path, Box::new(move |()| direct))
        };
        let direct = self.direct.into_iter().map(with_state).collect();
        Routes { router: self.router.with_state(state), paths: self.paths, direct }
    }

    /// Changes the router with `change`. All requests then use the router.
    #[must_use]
    pub(crate) fn map(self, change: impl FnOnce(Router<S>) -> Router<S>) -> Self {
        Self { router: change(self.router), paths: self.paths, direct: Vec::new() }
    }
}

impl Routes {
    /// Adds an OpenAPI document at `/openapi.json`.
    #[must_use]
    pub(crate) fn with_document(self) -> Self {
        let (router, paths) = (self.router.clone(), self.paths.clone());
        self.route("/openapi.json", get(move || document(router.clone(), paths.clone())))
    }

    /// Answers unknown paths and methods as FastAPI does.
    #[must_use]
    pub(crate) fn with_details(self) -> Self {
        let detail = |status: StatusCode, text: &'static str| (status, Json(json!({"detail": text})));
        let router = self.router.fallback(async move || detail(StatusCode::NOT_FOUND, "Not Found"));
        let not_allowed = async move || detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        Self { router: router.method_not_allowed_fallback(not_allowed), ..self }
    }

    /// Splits into the handlers and their paths.
    pub(crate) fn into_parts(self) -> (Handlers, Paths) {
        let (patterns, exact): (Vec<_>, Vec<_>) = self.paths.into_iter().partition(|path| path.contains('{'));
        let direct = self.direct.into_iter().map(|(path, make)| (path, make(()))).collect();
        let handlers = Handlers { router: TowerToHyperService::new(self.router), direct };
        (handlers, Paths { exact: exact.into_iter().collect(), patterns })
    }
}

pub(crate) struct Handlers {
    router: TowerToHyperService<Router>,
    direct: BTreeMap<&'static str, Direct>,
}

impl Handlers {
    pub(crate) fn answer(&self, request: Request) -> Answered {
        if request.method() == Method::POST
            && let Some(direct) = self.direct.get(request.uri().path())
        {
            return direct(request);
        }
        let answered = self.router.call(request);
        Box::pin(async move {
            match answered.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    }
}

/// The paths of all routes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths {
    exact: BTreeSet<&'static str>,
    patterns: Vec<&'static str>,
}

impl Paths {
    /// The path of the route that answers `path`.
    pub(crate) fn of(&self, path: &str) -> Option<&'static str> {
        let is_match = |pattern: &str| {
            let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
            loop {
                match (wanted.next(), given.next()) {
                    (None, None) => return true,
                    (Some(wanted), Some(given)) if wanted == given => {}
                    (Some(wanted), Some(given)) if wanted.starts_with('{') && !given.is_empty() => {}
                    _ => return false,
                }
            }
        };
        let exact = self.exact.get(path).copied();
        exact.or_else(|| self.patterns.iter().copied().find(|pattern| is_match(pattern)))
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;

    use super::*;

    #[test]
    fn requests_are_named_by_the_paths_of_their_routes() {
        let other = Routes::<()>::new().route("/c/{name}", get(|| async {}));
        let routes = ["/a", "/a/{id}", "/a/{id}/stop", "/c/known"]
            .into_iter()
            .fold(Routes::new(), |routes, path| routes.route(path, get(|| async {})));
        let (_, paths) = routes.merge(other).with_state(()).into_parts();
        for (path, route) in [
            ("/a", Some("/a")),
            ("/a/x", Some("/a/{id}")),
            ("/a/x/stop", Some("/a/{id}/stop")),
            ("/c/known", Some("/c/known")),
            ("/c/else", Some("/c/{name}")),
            ("/a/", None),
            ("/a/x/y", None),
            ("/b", None),
            ("", None),
        ] {
            assert_eq!(paths.of(path), route, "{path}");
        }
    }
}
