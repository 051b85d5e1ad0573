//! Input that hurts: bytes without end, text that a terminal or a database takes badly, addresses that a model chooses.
