//! The answer of a turn in a given shape. Such a turn offers the model the tool `submit_output`,
//! whose arguments are the answer. A call of it runs like any other, and has a result without an
//! error if its arguments satisfy the schema. Then the turn ends when all other calls of the reply
//! have their results.

use std::{collections::BTreeSet, sync::Arc};

use planck_common::{
    InputId,
    event::{InputKind, OUTPUT_INVALID, OutputDue, ToolEffect, TurnInput},
    message::{Part, text_of},
    spec::OutputSpec,
};
use serde_json::value::RawValue;

use crate::{
    Agent, NewInput, StepEffects,
    model::ToolSpec,
    phase::{Turn, TurnEnding},
    round::Round,
    saves::Rows,
    speech,
};

/// The tool that takes the answer of a turn.
pub const SUBMIT_OUTPUT: &str = "submit_output";
/// The tool whose successful calls are tasks whose responses a later turn receives.
const DELEGATE_TASK: &str = "delegate_task";

/// How many answers of a turn may fail to satisfy the shape before one more ends the turn.
const REPAIRS: u32 = 2;

const DEMAND: &str = "Call submit_output now, with your answer as its arguments.";

/// The shape of a turn's answer, and how far the model has got with it.
#[derive(Debug)]
pub(super) struct TurnOutput {
    shape: OutputSpec,
    /// Tasks of the agent that have no response. The model may end a turn without the answer
    /// while there are any.
    tasks: BTreeSet<InputId>,
    /// Whether the model ended a reply without the answer, so that its next one must have it.
    pub is_demanded: bool,
    pub repairs: u32,
    /// Why the latest answer does not satisfy the shape.
    fault: Option<String>,
    pub answer: Option<Box<RawValue>>,
}

impl TurnOutput {
    pub(super) fn new(due: OutputDue) -> Self {
        Self {
            shape: due.shape,
            tasks: due.tasks.into_iter().collect(),
            is_demanded: false,
            repairs: 0,
            fault: None,
            answer: None,
        }
    }

    /// Notes that an input of the turn is about this task: its response, or that it has none.
    pub(super) fn heard(&mut self, task: &InputId) {
        self.tasks.remove(task);
    }

    /// Takes the answer, the fault of an answer and the new tasks from a round whose calls all have
    /// their results.
    pub(super) fn close(&mut self, round: &Round) {
        self.fault = None;
        for (call, text, is_error) in round.ended() {
            match (call.names.name.as_str(), is_error) {
                (SUBMIT_OUTPUT, false) => {
                    self.answer.get_or_insert_with(|| call.args.clone());
                }
                (SUBMIT_OUTPUT, true) if self.answer.is_none() => {
                    self.fault.get_or_insert_with(|| text.to_owned());
                }
                (DELEGATE_TASK, false) => {
                    self.tasks.insert(call.names.call_id.as_input());
                }
                _ => {}
            }
        }
        if self.answer.is_some() {
            self.fault = None;
        }
        self.repairs += u32::from(self.fault.is_some());
    }

    fn invalid(&self) -> TurnEnding {
        let reason = match &self.fault {
            Some(fault) => format!(
                "the model's answer did not satisfy the output schema after {} repairs: {fault}",
                self.repairs.saturating_sub(1)
            ),
            None => "the model ended its turn without an answer in the shape of the output schema, although it was told to give one".to_owned(),
        };
        TurnEnding::Failed {
            for_agents: reason.clone(),
            reason,
            code: OUTPUT_INVALID,
            retryable: false,
        }
    }
}

impl Turn {
    /// Returns what the turn leaves to a later one, if it ends now. An agent that gave a task or asks
    /// a question gets the answer of this turn, so such a turn leaves nothing.
    pub(super) fn output_due(&self) -> Option<OutputDue> {
        let output = self.output.as_ref()?;
        let is_asked = |input: &TurnInput| match input.kind {
            InputKind::Task | InputKind::Question => true,
            InputKind::Prompt | InputKind::Response | InputKind::Note => false,
        };
        let is_due = output.answer.is_none()
            && !output.tasks.is_empty()
            && !self.inputs.iter().any(is_asked);
        is_due.then(|| OutputDue {
            shape: output.shape.clone(),
            tasks: output.tasks.iter().cloned().collect(),
        })
    }

    /// Returns the answer in the shape of the turn.
    pub(super) fn answer(&self) -> Option<&RawValue> {
        self.output.as_ref()?.answer.as_deref()
    }
}

impl Agent {
    /// Returns the tool that the model's next reply must call, if there is one.
    pub fn demanded_tool(&self) -> Option<&'static str> {
        let output = self.phase.turn()?.output.as_ref()?;
        output.is_demanded.then_some(SUBMIT_OUTPUT)
    }

    /// Returns the shape of the turn that these inputs open: that of a prompt, the one that an
    /// earlier turn left, or the agent's own.
    pub(super) fn output_of(&self, inputs: &[NewInput]) -> Option<OutputDue> {
        if let Some(shape) = inputs.iter().find_map(|input| input.output.clone()) {
            let tasks = Vec::new();
            return Some(OutputDue { shape, tasks });
        }
        if let Some(mut due) = self.deferred.output.clone() {
            let is_about = |task: &InputId| {
                inputs
                    .iter()
                    .any(|input| input.reply_to.as_ref() == Some(task))
            };
            due.tasks.retain(|task| !is_about(task));
            return Some(due);
        }
        let shape = self.config.spec.output.clone()?;
        let tasks = Vec::new();
        Some(OutputDue { shape, tasks })
    }

    /// Offers the model the tool for the shape of the turn.
    pub(super) fn offer(&mut self, turn: &Turn) {
        let tool = turn.output.as_ref().map(|output| tool(&output.shape));
        self.config.set_output(tool);
        self.list_tools();
    }

    /// Returns the parts of a reply. If the answer was demanded and the reply is a JSON object
    /// instead of a call, the object becomes a call: some providers know no tool that a model must
    /// call, and only let it reply in the schema's format.
    pub(super) fn with_output_as_call(&self, turn: &Turn, content: Vec<Part>) -> Vec<Part> {
        let is_demanded = turn
            .output
            .as_ref()
            .is_some_and(|output| output.is_demanded);
        let has_call = content
            .iter()
            .any(|part| matches!(part, Part::ToolCall { .. }));
        if !is_demanded || has_call {
            return content;
        }
        let text = text_of(&content);
        let object = serde_json::from_str::<&RawValue>(text.trim());
        let Some(args) = object.ok().filter(|raw| raw.get().starts_with('{')) else {
            return content;
        };
        let call = Part::ToolCall {
            id: SUBMIT_OUTPUT.into(),
            call_id: self.call_id(content.len()),
            name: SUBMIT_OUTPUT.into(),
            args: args.to_owned(),
            invalid: None,
            signature: None,
        };
        let is_text = |part: &Part| matches!(part, Part::Text { .. });
        let kept = content.into_iter().filter(|part| !is_text(part));
        kept.chain([call]).collect()
    }

    /// Ends a turn of which the model has said nothing more. A turn with a shape demands the answer
    /// first, unless tasks have no response yet.
    pub(super) fn end_without_calls(
        &mut self,
        mut turn: Box<Turn>,
        mut rows: Rows,
        step: &mut StepEffects,
    ) {
        let is_left = turn.output_due().is_some();
        let ending = match &mut turn.output {
            Some(output) if !is_left && !output.is_demanded => {
                output.is_demanded = true;
                rows.message(speech::user(DEMAND));
                return self.go_on(turn, rows, step);
            }
            Some(output) if !is_left => output.invalid(),
            Some(_) | None => TurnEnding::Completed,
        };
        self.end_turn(&turn, rows, ending, step);
    }

    /// Goes on after a round whose results are in the rows. Ends the turn if the round had the
    /// answer, or had one more answer that does not satisfy the shape than may be repaired.
    pub(super) fn go_on_after(&mut self, turn: Box<Turn>, rows: Rows, step: &mut StepEffects) {
        let ending = match &turn.output {
            Some(output) if output.answer.is_some() => TurnEnding::Completed,
            Some(output) if output.repairs > REPAIRS => output.invalid(),
            Some(_) | None => return self.go_on(turn, rows, step),
        };
        self.end_turn(&turn, rows, ending, step);
    }
}

fn tool(shape: &OutputSpec) -> ToolSpec {
    let name = shape.name.as_deref();
    let what = name.map(|name| format!(" ({name})")).unwrap_or_default();
    ToolSpec {
        name: SUBMIT_OUTPUT.into(),
        description: format!(
            "Submit the final answer{what} of this turn as the arguments. The turn ends with it, so call this tool once, when the work is done."
        ),
        parameters: serde_json::value::to_raw_value(&shape.schema)
            .map_or_else(|_| no_parameters(), Arc::from),
        effect: ToolEffect::Pure,
        sidecar: None,
        wait: None,
        is_searched: false,
    }
}

fn no_parameters() -> Arc<RawValue> {
    RawValue::NULL.to_owned().into()
}
