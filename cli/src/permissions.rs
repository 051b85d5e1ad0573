//! The option `--permissions`.

use clap::ValueEnum;
use planck_common::permission::PermissionMode;

/// Which tool calls of a new session run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeChoice {
    /// Every call that no rule stops
    Auto,
    /// Only those that change nothing; the others ask
    Careful,
    /// Only those that change nothing; the others are refused
    ReadOnly,
}

impl ModeChoice {
    pub fn mode(self) -> PermissionMode {
        match self {
            Self::Auto => PermissionMode::Auto,
            Self::Careful => PermissionMode::Careful,
            Self::ReadOnly => PermissionMode::ReadOnly,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_option_are_the_names_of_the_modes() {
        for choice in ModeChoice::value_variants() {
            let word = choice.to_possible_value().unwrap();
            assert_eq!(word.get_name(), choice.mode().name());
        }
        assert_eq!(
            ModeChoice::value_variants().len(),
            PermissionMode::ALL.len()
        );
    }
}
