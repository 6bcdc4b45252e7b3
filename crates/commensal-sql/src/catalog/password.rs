//! Passwords as they are stored.

use super::outcome::CatalogError;
use crate::statement::Secret;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A password's hash: a star and SHA-1 of SHA-1 in forty hexadecimal digits, as `mysql_native_password` has it, then a
/// colon and SHA-256 of SHA-256 for `caching_sha2_password`, unless only the first is known. It is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PasswordHash(String);

/// The text is not such a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a password's hash is a star and 40 hexadecimal digits, as PASSWORD('…') gives it, or these, a colon and 64 digits"
)]
pub struct BadHash;

impl PasswordHash {
    /// A hash from its text.
    ///
    /// # Errors
    /// [`BadHash`] when the text does not have that form.
    pub fn new(text: &str) -> Result<PasswordHash, BadHash> {
        let digits = text.strip_prefix('*').ok_or(BadHash)?;
        let (native, sha2) = digits.split_once(':').map_or((digits, None), |(one, two)| (one, Some(two)));
        let fits =
            |digits: &str, long| digits.len() == long && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let whole = fits(native, 40) && sha2.is_none_or(|digits| fits(digits, 64));
        if whole { Ok(PasswordHash(text.to_uppercase())) } else { Err(BadHash) }
    }

    /// The digits of `mysql_native_password`.
    #[must_use]
    pub fn native(&self) -> &str {
        let digits = self.0.trim_start_matches('*');
        digits.split_once(':').map_or(digits, |(native, _)| native)
    }

    /// The digits of `caching_sha2_password`, where they are known.
    #[must_use]
    pub fn sha2(&self) -> Option<&str> {
        self.0.split_once(':').map(|(_, digits)| digits)
    }

    /// The text, in upper case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for PasswordHash {
    type Error = BadHash;

    fn try_from(text: String) -> Result<PasswordHash, BadHash> {
        PasswordHash::new(&text)
    }
}

impl From<PasswordHash> for String {
    fn from(hash: PasswordHash) -> String {
        hash.0
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash")
    }
}

/// Hashes a password for storage.
pub(super) type Hash<'h> = &'h dyn Fn(&str) -> PasswordHash;

/// A password as it is stored; `None` for an empty one.
pub(super) fn stored(password: &Secret, hash: Hash<'_>) -> Result<Option<PasswordHash>, CatalogError> {
    match password {
        Secret::Plain(plain) | Secret::Hash(plain) if plain.is_empty() => Ok(None),
        Secret::Plain(plain) => Ok(Some(hash(plain))),
        Secret::Hash(text) => {
            PasswordHash::new(text).map(Some).map_err(|error| CatalogError::Refused(error.to_string()))
        }
    }
}
