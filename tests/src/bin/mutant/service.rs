//! The mutant's answers to discovery requests, and its announcements that it comes and goes.

use async_nats::{Client, Message};
use serde_json::{Value, json};

use crate::mutation::Mutation;

pub struct Service {
    client: Client,
    name: String,
    id: String,
    mutation: Mutation,
}

pub struct Endpoint {
    pub name: String,
    pub subject: String,
    pub queue_group: String,
    metadata: Value,
}

impl Service {
    pub fn new(client: Client, name: &str, mutation: Mutation) -> Self {
        let id = match mutation {
            Mutation::SameInstanceId => "same".into(),
            _ => format!("{:016x}", fastrand::u64(..)),
        };
        Self {
            client,
            name: name.into(),
            id,
            mutation,
        }
    }

    pub fn endpoints(&self) -> Vec<Endpoint> {
        let repeat = json!({"type": "object", "required": ["text", "times"], "properties": {
            "text": {"type": "string"}, "times": {"type": "integer", "minimum": 0}}});
        let countdown = json!({"type": "object", "required": ["seconds"], "properties": {"seconds": {"type": "number"}}});
        let tool = |name: &str, schema: Value| {
            let metadata = json!({"kind": "tool", "description": "A tool.", "parameters": schema.to_string(), "effect": "pure"});
            self.endpoint(name, format!("tool.{}.{name}", self.name), metadata)
        };
        let compactor = self.endpoint(
            "head",
            format!("compact.{}.head", self.name),
            json!({"kind": "compactor"}),
        );
        vec![
            self.wrong(tool("repeat", repeat)),
            tool("countdown", countdown),
            compactor,
        ]
    }

    fn endpoint(&self, name: &str, subject: String, metadata: Value) -> Endpoint {
        Endpoint {
            name: name.into(),
            subject,
            queue_group: self.name.clone(),
            metadata,
        }
    }

    fn wrong(&self, mut endpoint: Endpoint) -> Endpoint {
        let change = match self.mutation {
            Mutation::NoKind => Some(("kind", None)),
            Mutation::NoDescription => Some(("description", None)),
            Mutation::NoParameters => Some(("parameters", None)),
            Mutation::ParametersNotJson => Some(("parameters", Some("{"))),
            Mutation::ParametersOfText => Some(("parameters", Some(r#"{"type":"string"}"#))),
            Mutation::ParametersNoSchema => {
                Some(("parameters", Some(r#"{"type":"object","properties":5}"#)))
            }
            Mutation::UnknownEffect => Some(("effect", Some("harmless"))),
            Mutation::TimeoutInWords => Some(("timeout_ms", Some("5 minutes"))),
            Mutation::OtherSubject => {
                endpoint.subject = format!("tools.{}.repeat", self.name);
                None
            }
            Mutation::OtherQueueGroup => {
                endpoint.queue_group = "q".into();
                None
            }
            _ => None,
        };
        if let (Some((key, value)), Some(metadata)) = (change, endpoint.metadata.as_object_mut()) {
            match value {
                Some(value) => drop(metadata.insert(key.into(), value.into())),
                None => drop(metadata.remove(key)),
            }
        }
        endpoint
    }

    pub async fn answer(&self, message: Message) {
        let words: Vec<&str> = message.subject.split('.').collect();
        let mine = match words.as_slice() {
            [_, _] => true,
            [_, _, name] => *name == self.name,
            [_, _, name, id] => *name == self.name && *id == self.id,
            _ => false,
        };
        let (Some(reply), Some(verb)) = (message.reply, words.get(1).filter(|_| mine)) else {
            return;
        };
        let metadata = match self.mutation {
            Mutation::NoPlanck => json!({}),
            Mutation::OtherPrefix => json!({"planck": "1", "prefix": "elsewhere"}),
            _ => json!({"planck": "1"}),
        };
        let endpoints = self.endpoints().into_iter().map(|endpoint| {
            let Endpoint { name, subject, queue_group, metadata } = endpoint;
            json!({"name": name, "subject": subject, "queue_group": queue_group, "metadata": metadata})
        });
        let info = json!({
            "type": "io.nats.micro.v1.info_response", "name": self.name, "id": self.id, "version": "1.0.0", "description": "",
            "metadata": metadata, "endpoints": endpoints.collect::<Vec<_>>(),
        });
        if *verb == "INFO" {
            let _sent = self.client.publish(reply, info.to_string().into()).await;
        }
    }

    pub async fn tell(&self, what: &str) {
        let unsaid = match self.mutation {
            Mutation::NoHello => "hello",
            Mutation::NoBye => "bye",
            _ => "",
        };
        if what == unsaid {
            return;
        }
        let instance = if self.mutation == Mutation::HelloOfNobody {
            "nobody"
        } else {
            &self.id
        };
        let said = json!({"v": 1, "type": what, "sidecar": self.name, "instance": instance});
        let _sent = self
            .client
            .publish(format!("sidecar.{}", self.name), said.to_string().into())
            .await;
    }
}
