//! Tools from the configuration: each is a NATS subject with a description for the model.

use std::{sync::Arc, time::Duration};

use planck_common::event::ToolEffect;
use serde_json::value::RawValue;

use super::RemoteTool;
use crate::{
    bus::Bus,
    config::{Config, PlainTool},
    model::ToolSpec,
};
use planck_toolbox::Tool;

/// Returns the configured tools. This function reports no mistakes. The configuration checks for
/// some of them, and the catalogue finds the others when the tools are added.
pub fn tools(config: &Config, bus: &Arc<dyn Bus>) -> Vec<Arc<dyn Tool>> {
    let section = &config.sidecars;
    let tools = section.tools.0.iter();
    tools
        .filter_map(|(name, plain)| tool(name, plain, section.tool_timeout.0, bus))
        .collect()
}

fn tool(
    name: &str,
    plain: &PlainTool,
    usual: Duration,
    bus: &Arc<dyn Bus>,
) -> Option<Arc<dyn Tool>> {
    let spec = ToolSpec {
        name: name.into(),
        description: plain.description.clone(),
        parameters: RawValue::from_string(plain.parameters.clone()).ok()?.into(),
        effect: ToolEffect::find(&plain.effect)?,
        sidecar: None,
        wait: None,
    };
    let idle = plain.timeout.as_ref().map_or(usual, |period| period.0);
    Some(Arc::new(RemoteTool::plain(
        spec,
        plain.subject.clone(),
        idle,
        Arc::clone(bus),
    )))
}
