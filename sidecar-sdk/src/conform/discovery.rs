//! Cases for discovery: how a sidecar describes itself.

use planck_common::{
    event::ToolEffect,
    id::is_id,
    json_schema,
    service::{ServiceEndpoint, ServiceInfo},
    sidecar::{MOST_PARAMETER_BYTES, metadata, unknown_required},
    subject::{compactor, tool},
};
use serde_json::{Value, json};

use super::{Finding, checker::Checker};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointKind {
    Tool,
    Compactor,
}

/// An endpoint of the sidecar. Missing or invalid parts of its description are replaced by default
/// values.
#[derive(Debug, Clone)]
pub struct OfferedEndpoint {
    pub name: String,
    pub subject: String,
    pub kind: EndpointKind,
    pub effect: ToolEffect,
    pub parameters: Value,
}

impl OfferedEndpoint {
    pub fn of_all(info: &ServiceInfo) -> Vec<Self> {
        let mut offers: Vec<Self> = info.endpoints.iter().map(Self::of).collect();
        offers.sort_by(|one, other| one.name.cmp(&other.name));
        offers
    }

    fn of(endpoint: &ServiceEndpoint) -> Self {
        let said = |key: &str| endpoint.metadata.get(key).map(String::as_str);
        let words: Vec<&str> = endpoint.subject.split('.').collect();
        let is_compactor = said(metadata::KIND).map_or_else(
            || words.contains(&"compact"),
            |kind| kind == metadata::COMPACTOR,
        );
        Self {
            name: words.last().copied().unwrap_or_default().into(),
            subject: endpoint.subject.clone(),
            kind: if is_compactor {
                EndpointKind::Compactor
            } else {
                EndpointKind::Tool
            },
            effect: said(metadata::EFFECT).and_then(effect).unwrap_or_default(),
            parameters: said(metadata::PARAMETERS)
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or(json!({"type": "object"})),
        }
    }
}

fn effect(text: &str) -> Option<ToolEffect> {
    serde_json::from_value(text.into()).ok()
}

pub fn check(checker: &Checker) -> Vec<Finding> {
    let mut findings = vec![Finding::of("discovery", "", service(checker))];
    for endpoint in checker
        .instances
        .first()
        .into_iter()
        .flat_map(|info| &info.endpoints)
    {
        let name = endpoint.subject.rsplit('.').next().unwrap_or_default();
        findings.push(Finding::of("metadata", name, readable(endpoint)));
        findings.push(Finding::of(
            "subject",
            name,
            subject(checker, endpoint, name),
        ));
        findings.push(Finding::of(
            "queue_group",
            name,
            queue_group(checker, endpoint),
        ));
    }
    findings
}

fn service(checker: &Checker) -> Result<(), String> {
    let prefix = checker.prefix().as_str();
    for info in &checker.instances {
        if info.metadata.get(metadata::PLANCK).map(String::as_str) != Some("1") {
            return Err(
                "the service's metadata needs `planck` = `1`; without it nodes ignore the service"
                    .into(),
            );
        }
        if info
            .metadata
            .get(metadata::PREFIX)
            .map_or("", String::as_str)
            != prefix
        {
            return Err(format!(
                "the service's metadata needs `prefix` = `{prefix}`, the subject prefix of the cluster"
            ));
        }
        if info.endpoints.is_empty() {
            return Err("the service has no endpoints: neither a tool nor a compactor".into());
        }
    }
    let sorted = |info: &ServiceInfo| {
        let mut endpoints = info.endpoints.clone();
        endpoints.sort();
        endpoints
    };
    let mut all = checker.instances.iter().map(sorted);
    let first = all.next();
    match all.find(|other| Some(other) != first.as_ref()) {
        Some(_) => {
            Err("its instances offer different endpoints; run the same version of all".into())
        }
        None => Ok(()),
    }
}

fn readable(endpoint: &ServiceEndpoint) -> Result<(), String> {
    let said = |key: &str| endpoint.metadata.get(key).map(String::as_str);
    if let Some(timeout) = said(metadata::TIMEOUT_MS)
        && !timeout.parse::<u64>().is_ok_and(|timeout| timeout > 0)
    {
        return Err(format!(
            "`timeout_ms` must be a whole number of milliseconds, as text; it is `{timeout}`"
        ));
    }
    match said(metadata::KIND) {
        Some(metadata::COMPACTOR) => return Ok(()),
        Some(metadata::TOOL) => (),
        other => {
            return Err(format!(
                "`kind` must be `tool` or `compactor`; it is {}",
                or_missing(other)
            ));
        }
    }
    if said(metadata::DESCRIPTION).is_none_or(|text| text.trim().is_empty()) {
        return Err("`description` is missing; it is what the model goes by".into());
    }
    if let Some(text) = said(metadata::EFFECT)
        && effect(text).is_none()
    {
        return Err(format!(
            "`effect` must be `pure`, `idempotent` or `mutating`; it is `{text}`"
        ));
    }
    let Some(text) = said(metadata::PARAMETERS) else {
        return Err("`parameters`, a JSON Schema as text, is missing".into());
    };
    if text.len() > MOST_PARAMETER_BYTES {
        return Err(format!(
            "`parameters` has {} bytes, over the limit of {MOST_PARAMETER_BYTES}; describe less",
            text.len()
        ));
    }
    let schema: Value =
        serde_json::from_str(text).map_err(|error| format!("`parameters` is not JSON: {error}"))?;
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        return Err("the schema in `parameters` must have \"type\":\"object\"".into());
    }
    json_schema::measure(&schema)
        .map_err(|fault| format!("the schema in `parameters`: {fault}"))?;
    jsonschema::validator_for(&schema)
        .map_err(|error| format!("`parameters` is no JSON Schema: {error}"))?;
    match unknown_required(&schema) {
        Some(name) => Err(format!(
            "`parameters` requires `{name}`, which is none of its `properties`"
        )),
        None => Ok(()),
    }
}

fn or_missing(text: Option<&str>) -> String {
    text.map_or_else(|| "missing".into(), |text| format!("`{text}`"))
}

fn subject(checker: &Checker, endpoint: &ServiceEndpoint, name: &str) -> Result<(), String> {
    let kind = endpoint.metadata.get(metadata::KIND).map(String::as_str);
    let build = if kind == Some(metadata::COMPACTOR) {
        compactor
    } else {
        tool
    };
    let expected = checker.prefix().on(build(&checker.plan.name, name));
    if endpoint.subject != expected {
        return Err(format!(
            "it is on `{}`; nodes ask on `{expected}`",
            endpoint.subject
        ));
    }
    if is_id(name) {
        Ok(())
    } else {
        Err(format!("`{name}` is not 1 to 64 of A-Z a-z 0-9 _ -"))
    }
}

fn queue_group(checker: &Checker, endpoint: &ServiceEndpoint) -> Result<(), String> {
    let (expected, found) = (checker.plan.name.as_str(), endpoint.queue_group.as_str());
    if found == expected {
        return Ok(());
    }
    Err(format!(
        "the queue group is `{found}`, and has to be the sidecar's name, `{expected}`: else two instances both run a call"
    ))
}
