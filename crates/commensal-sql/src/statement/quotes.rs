//! Names and texts as they are written in statements.

/// Returns a name in backticks.
#[must_use]
pub fn in_backticks(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// Returns a text as a literal.
#[must_use]
pub fn in_quotes(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}
