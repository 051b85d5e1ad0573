//! The result of a call of a tool that the agent does not have. It helps the model to choose another
//! one.

use planck_common::similar::did_you_mean;

/// Returns the result of a call of the tool `name` by an agent that has the tools `there_are`.
pub fn no_such_tool(name: &str, there_are: &[&str]) -> String {
    let list = match there_are.is_empty() {
        true => "you have no tools".to_owned(),
        false => format!("your tools are: {}", there_are.join(", ")),
    };
    match did_you_mean(name, there_are.iter().copied()) {
        Some(question) => format!("there is no tool `{name}`; {question} {list}"),
        None => format!("there is no tool `{name}`; {list}"),
    }
}
