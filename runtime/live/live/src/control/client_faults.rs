//! Faults for a server's clients: listed, added and cleared at run time.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::control::Refusal;
use crate::control::body::{Change, ChangeBody};
use crate::control::listen::Context;

/// The client faults of a server, which alone knows their format.
pub trait ClientFaultRules: Send + Sync {
    /// All rules, as users write them.
    fn rules(&self) -> Vec<String>;

    /// Appends a rule.
    fn add(&self, rule: &str) -> Result<(), String>;

    /// Removes a rule by its text. Returns `false` if there is none.
    fn remove(&self, rule: &str) -> bool;

    /// Removes all rules.
    fn clear(&self);
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientFaultChange {
    fault: String,
}

impl ChangeBody for ClientFaultChange {
    const EXAMPLE: &'static str = r#"{"fault": "status:code=503,rate=0.1"}"#;
}

/// Removes a rule, or all rules if none is named.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientFaultRemoval {
    fault: Option<String>,
}

impl ChangeBody for ClientFaultRemoval {
    const EXAMPLE: &'static str = r#"{"fault": "status:code=503,rate=0.1"}, or nothing for all"#;
}

#[derive(Debug, Serialize)]
pub(crate) struct ClientFaultsView {
    faults: Vec<String>,
}

fn rules_of(context: &Context) -> Result<&Arc<dyn ClientFaultRules>, Refusal> {
    context.client_faults.as_ref().ok_or_else(|| {
        Refusal::new(StatusCode::NOT_FOUND, "there are no clients here, only a frontend").hint("vcr serve has clients")
    })
}

fn view(rules: &Arc<dyn ClientFaultRules>) -> Json<ClientFaultsView> {
    Json(ClientFaultsView { faults: rules.rules() })
}

pub(crate) async fn list(State(context): State<Context>) -> Result<Json<ClientFaultsView>, Refusal> {
    rules_of(&context).map(view)
}

pub(crate) async fn add(
    State(context): State<Context>,
    Change(change): Change<ClientFaultChange>,
) -> Result<Json<ClientFaultsView>, Refusal> {
    let rules = rules_of(&context)?;
    rules.add(&change.fault).map_err(Refusal::bad)?;
    tracing::info!("command: clients meet the fault {}", change.fault);
    Ok(view(rules))
}

pub(crate) async fn clear(
    State(context): State<Context>,
    Change(which): Change<ClientFaultRemoval>,
) -> Result<Json<ClientFaultsView>, Refusal> {
    let rules = rules_of(&context)?;
    match which.fault {
        None => {
            rules.clear();
            tracing::info!("command: clear the faults that clients meet");
        }
        Some(fault) if rules.remove(&fault) => tracing::info!("command: clients meet the fault {fault} no more"),
        Some(fault) => {
            let refusal = Refusal::new(StatusCode::NOT_FOUND, format!("there is no fault `{fault}`"));
            return Err(refusal.hint("GET /client-faults lists them"));
        }
    }
    Ok(view(rules))
}
