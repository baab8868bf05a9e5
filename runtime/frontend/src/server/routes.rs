//! Routes with their paths, by which metrics name requests.

use std::collections::BTreeSet;

use axum::Router;
use axum::routing::MethodRouter;

/// Routes that know their paths: a router does not tell them.
#[derive(Debug)]
pub(crate) struct Routes<S = ()> {
    router: Router<S>,
    paths: Vec<&'static str>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    pub(crate) fn new() -> Self {
        Self { router: Router::new(), paths: Vec::new() }
    }

    /// Adds a route. `{name}` in its path stands for one segment.
    #[must_use]
    pub(crate) fn route(mut self, path: &'static str, methods: MethodRouter<S>) -> Self {
        self.paths.push(path);
        Self { router: self.router.route(path, methods), paths: self.paths }
    }

    /// Adds the routes of `other`.
    #[must_use]
    pub(crate) fn merge(mut self, other: Self) -> Self {
        self.paths.extend(other.paths);
        Self { router: self.router.merge(other.router), paths: self.paths }
    }

    /// The same routes with what their handlers share.
    #[must_use]
    pub(crate) fn with_state(self, state: S) -> Routes {
        Routes { router: self.router.with_state(state), paths: self.paths }
    }

    /// The same paths, with a router that `change` makes of theirs.
    #[must_use]
    pub(crate) fn map(self, change: impl FnOnce(Router<S>) -> Router<S>) -> Self {
        Self { router: change(self.router), paths: self.paths }
    }
}

impl Routes {
    /// The router, and the paths apart from it.
    pub(crate) fn into_parts(self) -> (Router, Paths) {
        let (patterns, exact): (Vec<_>, Vec<_>) = self.paths.into_iter().partition(|path| path.contains('{'));
        (self.router, Paths { exact: exact.into_iter().collect(), patterns })
    }
}

/// The paths of routes.
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
