//! Parses the description with which an instance of a sidecar answers a request on `$SRV.INFO`.
//! Invalid parts of the description are ignored and reported.

use std::{sync::Arc, time::Duration};

use planck_common::{
    SidecarId,
    event::ToolEffect,
    service::{ServiceEndpoint, ServiceInfo},
    sidecar::{COMPACTOR_TIMEOUT_MS, TOOL_TIMEOUT_MS, metadata, unknown_required},
    subject::{self, NODE_SERVICE, Prefix},
};
use serde_json::{Value, value::RawValue};

use crate::model::ToolSpec;
use planck_toolbox::schema::CompiledSchema;

/// One running instance of a sidecar.
#[derive(Debug, Clone)]
pub struct SidecarInstance {
    pub sidecar: SidecarId,
    pub id: String,
    pub version: String,
    pub offers: Vec<SidecarOffer>,
    /// Descriptions of the parts that were ignored, with the reasons.
    pub faults: Vec<String>,
}

/// A tool or a compactor that a sidecar offers.
#[derive(Debug, Clone, PartialEq)]
pub struct SidecarOffer {
    pub name: String,
    /// The complete subject to which requests are sent.
    pub subject: String,
    /// For a tool, the maximum time to wait for the answer or the next progress message. For a
    /// compactor, the maximum duration of a call.
    pub timeout: Duration,
    pub kind: OfferKind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum OfferKind {
    Tool(ToolSpec),
    Compactor,
}

/// The time-outs for offers that state none.
#[derive(Debug, Clone, Copy)]
pub struct DefaultTimeouts {
    pub tool: Duration,
    pub compactor: Duration,
}

impl Default for DefaultTimeouts {
    fn default() -> Self {
        Self {
            tool: Duration::from_millis(TOOL_TIMEOUT_MS),
            compactor: Duration::from_millis(COMPACTOR_TIMEOUT_MS),
        }
    }
}

impl SidecarInstance {
    /// Parses a description. Returns `None` if it is not the description of a sidecar of this
    /// cluster.
    pub fn read(answer: &[u8], prefix: &Prefix, patience: DefaultTimeouts) -> Option<Self> {
        let (sidecar, info) = described(answer, prefix)?;
        let (mut offers, mut faults) = (Vec::new(), Vec::new());
        for endpoint in info.endpoints {
            let name = endpoint.name.clone();
            match (InfoReader {
                sidecar: &sidecar,
                prefix,
                patience,
            })
            .offer(endpoint)
            {
                Ok(offer) => offers.push(offer),
                Err(why) => {
                    faults.push(format!("sidecar `{sidecar}`: `{name}` is left out: {why}"))
                }
            }
        }
        Some(Self {
            sidecar,
            id: info.id,
            version: info.version,
            offers,
            faults,
        })
    }
}

/// Returns the name of the sidecar that a description is of, without the work of reading what it
/// offers. Returns `None` if it is not the description of a sidecar of this cluster.
pub fn name_in(answer: &[u8], prefix: &Prefix) -> Option<SidecarId> {
    described(answer, prefix).map(|(sidecar, _)| sidecar)
}

fn described(answer: &[u8], prefix: &Prefix) -> Option<(SidecarId, ServiceInfo)> {
    let info: ServiceInfo = serde_json::from_slice(answer).ok()?;
    let metadata_of = |key: &str| info.metadata.get(key).map_or("", String::as_str);
    if metadata_of(metadata::PLANCK) != "1"
        || metadata_of(metadata::PREFIX) != prefix.as_str()
        || info.name == NODE_SERVICE
    {
        return None;
    }
    Some((SidecarId::parse(&info.name).ok()?, info))
}

struct InfoReader<'a> {
    sidecar: &'a SidecarId,
    prefix: &'a Prefix,
    patience: DefaultTimeouts,
}

impl InfoReader<'_> {
    fn offer(&self, endpoint: ServiceEndpoint) -> Result<SidecarOffer, String> {
        let get = |key: &str| endpoint.metadata.get(key).map(String::as_str);
        let kind = get(metadata::KIND).unwrap_or_default();
        let (place, usual): (fn(&SidecarId, &str) -> String, _) = match kind {
            metadata::TOOL => (subject::tool, self.patience.tool),
            metadata::COMPACTOR => (subject::compactor, self.patience.compactor),
            other => {
                return Err(format!(
                    "its `{}` is `{other}`, not `tool` or `compactor`",
                    metadata::KIND
                ));
            }
        };
        let own = self
            .prefix
            .off(&endpoint.subject)
            .and_then(|own| subject::offered(own, place, self.sidecar));
        let name = own.ok_or_else(|| {
            format!(
                "its subject is `{}`, not `{}`",
                endpoint.subject,
                self.prefix.on(place(self.sidecar, "<name>"))
            )
        })?;
        let timeout = get(metadata::TIMEOUT_MS).map_or(Ok(usual), timeout)?;
        let kind = if kind == metadata::TOOL {
            OfferKind::Tool(tool(name, get)?)
        } else {
            OfferKind::Compactor
        };
        Ok(SidecarOffer {
            name: name.to_owned(),
            subject: endpoint.subject.clone(),
            timeout,
            kind,
        })
    }
}

fn check_parameters(text: &str) -> Result<(), String> {
    CompiledSchema::compile(text).map_err(|why| format!("its `parameters` are wrong: {why}"))?;
    let schema: Value = serde_json::from_str(text)
        .map_err(|why| format!("its `parameters` are not JSON: {why}"))?;
    match unknown_required(&schema) {
        Some(name) => Err(format!(
            "its `parameters` require `{name}`, which is none of their `properties`; describe it there, or take it out of `required`"
        )),
        None => Ok(()),
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    let millis = text.parse().ok().filter(|millis| *millis > 0);
    millis
        .map(Duration::from_millis)
        .ok_or_else(|| format!("its `timeout_ms` is `{text}`, not a number of milliseconds"))
}

fn tool<'a>(name: &str, get: impl Fn(&str) -> Option<&'a str>) -> Result<ToolSpec, String> {
    let description = get(metadata::DESCRIPTION)
        .filter(|text| !text.trim().is_empty())
        .ok_or("it has no `description`")?;
    let parameters = get(metadata::PARAMETERS).ok_or("it has no `parameters`")?;
    check_parameters(parameters)?;
    let effect = get(metadata::EFFECT).map_or(Ok(ToolEffect::default()), |text| {
        ToolEffect::find(text).ok_or_else(|| {
            format!("its `effect` is `{text}`, not `pure`, `idempotent` or `mutating`")
        })
    })?;
    let parameters: Arc<RawValue> = RawValue::from_string(parameters.to_owned())
        .map_err(|why| why.to_string())?
        .into();
    Ok(ToolSpec {
        name: name.into(),
        description: description.into(),
        parameters,
        effect,
        sidecar: None,
        wait: None,
    })
}
