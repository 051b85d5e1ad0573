//! The result of a call of a tool that the agent does not have. It helps the model to choose another
//! one.

/// Returns the result of a call of the tool `name` by an agent that has the tools `there_are`.
pub fn no_such_tool(name: &str, there_are: &[&str]) -> String {
    let list = match there_are.is_empty() {
        true => "you have no tools".to_owned(),
        false => format!("your tools are: {}", there_are.join(", ")),
    };
    match nearest(name, there_are.iter().copied()) {
        Some(near) => format!("there is no tool `{name}`; did you mean `{near}`? {list}"),
        None => format!("there is no tool `{name}`; {list}"),
    }
}

/// Returns the most similar name, or `None` if none is similar enough.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let lower = name.to_lowercase();
    names
        .map(|other| (strsim::jaro_winkler(&lower, &other.to_lowercase()), other))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, other)| other.to_owned())
}
