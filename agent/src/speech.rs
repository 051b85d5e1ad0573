//! Converts inputs into messages for the model. A prompt is unchanged; any other input gets a
//! heading that names its sender.

use planck_common::{
    event::{InputKind, TurnInput},
    message::{Custom, MessageBody, MessageMetadata, MessageRole, Part, Sender},
};

use super::NewInput;

/// Returns the message for an input.
pub(super) fn message(input: &NewInput) -> MessageBody {
    let metadata = MessageMetadata {
        inputs: vec![input.id.clone()],
        from: input.sender.clone(),
        by: input.by.clone(),
        ..MessageMetadata::default()
    };
    match heading(input) {
        None => MessageBody {
            role: MessageRole::User,
            custom: None,
            content: input.parts(),
            metadata,
        },
        Some(heading) => {
            let content = std::iter::once(Part::text(heading))
                .chain(input.parts())
                .collect();
            MessageBody {
                role: MessageRole::Custom,
                custom: Some(Custom::AgentMessage),
                content,
                metadata,
            }
        }
    }
}

/// Returns the entry that describes an input in a `turn_start` event.
pub(super) fn turn_input(input: &NewInput) -> TurnInput {
    let from = input.sender.as_ref().map(|sender| sender.id.clone());
    TurnInput {
        id: input.id.clone(),
        kind: input.kind,
        from,
        by: input.by.clone(),
    }
}

/// Returns a message of the runtime with the role of a user.
pub(super) fn user(text: &str) -> MessageBody {
    MessageBody {
        role: MessageRole::User,
        custom: None,
        content: vec![Part::text(text)],
        metadata: MessageMetadata::default(),
    }
}

fn heading(input: &NewInput) -> Option<String> {
    let who = speaker(input.sender.as_ref());
    let id = &input.id;
    let about = input
        .reply_to
        .as_ref()
        .map(|task| format!(" to task {task}"))
        .unwrap_or_default();
    match input.kind {
        InputKind::Prompt => None,
        InputKind::Question => Some(format!(
            "[question {id} from {who}; the text that ends your turn is the answer]\n\n"
        )),
        InputKind::Task => Some(format!(
            "[task {id} from {who}; answer it with send_response]\n\n"
        )),
        InputKind::Response => Some(format!("[response{about} from {who}]\n\n")),
        InputKind::Note => Some(format!("[note from {who}]\n\n")),
    }
}

fn speaker(sender: Option<&Sender>) -> String {
    sender.map_or_else(
        || "the runtime".into(),
        |Sender { id, name }| format!("{name} (agent {id})"),
    )
}

#[cfg(test)]
mod tests {
    use planck_common::{
        AgentId, InputId, Timestamp, command::InputMode, event::json, message::text_of,
    };

    use super::*;

    #[test]
    fn message_has_a_heading_with_its_sender_and_kind() {
        let sender = Some(Sender {
            id: AgentId::parse("a7").unwrap(),
            name: "planner".into(),
        });
        let say = |kind, sender| {
            let reply_to = (kind == InputKind::Response).then(|| InputId::parse("t1").unwrap());
            let id = InputId::parse("i1").unwrap();
            let input = NewInput {
                id,
                agent: AgentId::parse("a1").unwrap(),
                kind,
                mode: InputMode::Queue,
                sender,
                by: None,
                reply_to,
                content: json(&[Part::text("hi")]),
                fresh: false,
                output: None,
                at: Timestamp::from_millis(0),
            };
            text_of(&message(&input).content)
        };
        assert_eq!(say(InputKind::Prompt, None), "hi");
        assert_eq!(
            say(InputKind::Question, sender.clone()),
            "[question i1 from planner (agent a7); the text that ends your turn is the answer]\n\nhi"
        );
        assert_eq!(
            say(InputKind::Task, sender.clone()),
            "[task i1 from planner (agent a7); answer it with send_response]\n\nhi"
        );
        assert_eq!(
            say(InputKind::Response, sender),
            "[response to task t1 from planner (agent a7)]\n\nhi"
        );
        assert_eq!(say(InputKind::Note, None), "[note from the runtime]\n\nhi");
    }
}
