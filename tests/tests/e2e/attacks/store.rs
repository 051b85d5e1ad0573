//! Session stores that a stranger made, and commands that only look.

mod locks;
