//! The mistakes in a template. Each mistake names the file and how to correct it, and the member
//! and the field if it concerns one.

use std::fmt;

use planck_common::similar;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError {
    pub file: String,
    /// The member's name, or else its type, or else its position, such as `#2`.
    pub member: Option<String>,
    pub field: Option<String>,
    pub what: String,
    pub remedy: String,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(member) = &self.member {
            write!(f, ", member \"{member}\"")?;
        }
        if let Some(field) = &self.field {
            write!(f, ", `{field}`")?;
        }
        write!(f, ": {}; {}", self.what, self.remedy)
    }
}

/// All mistakes in a template. `Display` writes one mistake per line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateErrors(pub Vec<TemplateError>);

impl fmt::Display for TemplateErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for TemplateErrors {}

/// Collects the mistakes in one part of a template.
#[derive(Debug)]
pub struct Mistakes<'a> {
    file: &'a str,
    member: Option<String>,
    found: &'a mut Vec<TemplateError>,
}

impl<'a> Mistakes<'a> {
    pub fn in_file(file: &'a str, found: &'a mut Vec<TemplateError>) -> Self {
        Self {
            file,
            member: None,
            found,
        }
    }

    pub fn of_member(file: &'a str, member: String, found: &'a mut Vec<TemplateError>) -> Self {
        Self {
            file,
            member: Some(member),
            found,
        }
    }

    pub fn add(&mut self, field: Option<&str>, what: impl Into<String>, remedy: impl Into<String>) {
        self.found.push(TemplateError {
            file: self.file.into(),
            member: self.member.clone(),
            field: field.map(Into::into),
            what: what.into(),
            remedy: remedy.into(),
        });
    }

    pub fn field(&mut self, field: &str, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Some(field), what, remedy);
    }
}

/// Returns advice for an unknown name: the most similar known name, or the list of known names if
/// none is similar enough.
pub fn did_you_mean<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    similar::did_you_mean(wanted, known.clone()).unwrap_or_else(|| {
        format!(
            "known are {}",
            known.into_iter().collect::<Vec<_>>().join(", ")
        )
    })
}
