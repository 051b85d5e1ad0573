//! The processes that answer at once: an MCP server, and one that answers requests over NATS.

use anyhow::Result;
use clap::Args;
use futures_util::StreamExt as _;
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject,
        ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
    transport::stdio,
};

use super::{ARGUMENT, TOOL};
use crate::part::orphaned;

/// An MCP server on its standard input and output, with a tool that answers with its argument.
#[derive(Debug, Clone, Copy, Args)]
pub struct EchoServer {}

impl EchoServer {
    pub async fn perform(self) -> Result<()> {
        self.serve(stdio()).await?.waiting().await?;
        Ok(())
    }
}

impl ServerHandler for EchoServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = JsonObject::from_iter([("type".into(), "object".into())]);
        let tool = Tool::new(TOOL, "Echoes its argument.", schema);
        Ok(ListToolsResult::with_all_items(vec![tool]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let args = request.arguments.unwrap_or_default();
        let said = args.get(ARGUMENT.0).and_then(|value| value.as_str());
        let said = ContentBlock::text(said.unwrap_or_default());
        Ok(CallToolResult::success(vec![said]).into())
    }
}

/// Answers each request with the same text.
#[derive(Debug, Args)]
pub struct NatsEcho {
    url: String,
    subject: String,
}

impl NatsEcho {
    pub async fn perform(self) -> Result<()> {
        let client = async_nats::connect(self.url).await?;
        let mut requests = client.subscribe(self.subject).await?;
        let answering = async {
            while let Some(request) = requests.next().await {
                if let Some(to) = request.reply {
                    client.publish(to, r#"{"v":1,"ok":"hi"}"#.into()).await?;
                }
            }
            Ok(())
        };
        tokio::select! {
            done = answering => done,
            () = orphaned() => Ok(()),
        }
    }
}
