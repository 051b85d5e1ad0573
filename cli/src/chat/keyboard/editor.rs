//! The line editor: `rustyline` with completions, and with protection against control characters in
//! the text.

use std::{borrow::Cow, cell::Cell, path::PathBuf};

use rustyline::{
    ColorMode, Config, Context, Helper,
    completion::{Completer, Pair},
    error::ReadlineError,
    highlight::{CmdKind, Highlighter},
    hint::Hinter,
    history::DefaultHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};

use super::history::{History, LINES};
use crate::{
    chat::{complete, slash::SlashCommand},
    output::warn,
};
use planck_host::terminal::clean;

pub struct Editor {
    editor: rustyline::Result<rustyline::Editor<EditorHelper, DefaultHistory>>,
    history: History,
}

impl Editor {
    pub fn new(dir: PathBuf, models: Vec<String>, history: History) -> Self {
        let helper = EditorHelper {
            dir,
            models,
            has_text: Cell::new(false),
        };
        Self {
            editor: editor(helper, &history),
            history,
        }
    }

    /// Reads a prompt, which begins with `begin` and may have several lines, and adds it to the
    /// history. Returns `None` when the user leaves, or after a warning if the terminal cannot be
    /// used.
    pub fn line(&mut self, prompt: &str, begin: &str) -> Option<String> {
        let editor = match &mut self.editor {
            Ok(editor) => editor,
            Err(error) => {
                warn(&format!(
                    "planck: cannot edit lines on this terminal: {error}; try TERM=dumb"
                ));
                return None;
            }
        };
        let (mut begin, mut is_second) = (begin, false);
        let typed = loop {
            let begin = std::mem::take(&mut begin);
            match editor.readline_with_initial(prompt, (begin, "")) {
                // An interrupt discards the typed text. On an empty line, the second interrupt in a
                // row ends the chat.
                Err(ReadlineError::Interrupted)
                    if editor.helper().is_some_and(|aid| aid.has_text.take()) =>
                {
                    is_second = false;
                }
                Err(ReadlineError::Interrupted) if !is_second => {
                    is_second = true;
                    warn("press Ctrl-C again to leave");
                }
                typed => break typed,
            }
        };
        match typed {
            Ok(text) => {
                if !text.trim().is_empty()
                    && editor.add_history_entry(text.as_str()).unwrap_or(false)
                {
                    self.history.add(&text);
                }
                Some(text)
            }
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => None,
            Err(error) => {
                warn(&format!("planck: cannot read from the terminal: {error}"));
                None
            }
        }
    }
}

fn editor(
    helper: EditorHelper,
    history: &History,
) -> rustyline::Result<rustyline::Editor<EditorHelper, DefaultHistory>> {
    let config = Config::builder()
        .completion_type(rustyline::CompletionType::List)
        .max_history_size(LINES)?
        .bracketed_paste(true)
        // The highlighter draws no colours but replaces control characters. Without this setting,
        // `NO_COLOR` would turn the highlighter off.
        .color_mode(ColorMode::Forced)
        .build();
    let mut editor =
        rustyline::Editor::with_history(config.clone(), DefaultHistory::with_config(&config))?;
    editor.set_helper(Some(helper));
    for entry in history.entries() {
        editor.add_history_entry(entry.as_str())?;
    }
    Ok(editor)
}

struct EditorHelper {
    /// The directory that relative paths after `@` start from.
    dir: PathBuf,
    /// The models that `/model` completes.
    models: Vec<String>,
    /// Whether there was text in the line when it was last drawn.
    has_text: Cell<bool>,
}

impl Helper for EditorHelper {}

impl Hinter for EditorHelper {
    type Hint = String;
}

impl Completer for EditorHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = line.get(..pos).unwrap_or(line);
        if let Some(word) = typed.strip_prefix("/model ") {
            let names = self.models.iter().filter(|name| name.starts_with(word));
            return Ok((typed.len() - word.len(), names.cloned().map(pair).collect()));
        }
        if let Some(word) = typed
            .strip_prefix('/')
            .filter(|word| !word.contains(char::is_whitespace))
        {
            let names = SlashCommand::NAMES
                .iter()
                .filter(|name| name.starts_with(word));
            return Ok((0, names.map(|name| pair(format!("/{name}"))).collect()));
        }
        let (start, names) = complete::files(&self.dir, typed);
        Ok((start, names.into_iter().map(pair).collect()))
    }
}

fn pair(text: String) -> Pair {
    Pair {
        display: text.clone(),
        replacement: text,
    }
}

impl Highlighter for EditorHelper {
    /// Replaces control characters in the line. The editor would write them unchanged, and pasted
    /// text or the history may contain some.
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        self.has_text.set(!line.is_empty());
        clean(line)
    }

    /// Requests that the whole line is redrawn. Otherwise the editor would write a typed character
    /// without calling [`Self::highlight`].
    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        true
    }
}

impl Validator for EditorHelper {
    /// Accepts a line unless it ends with a backslash, after which the prompt continues on the next
    /// line.
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(match context.input().ends_with('\\') {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}
