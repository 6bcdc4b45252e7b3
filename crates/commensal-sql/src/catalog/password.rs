//! Password hashes in the form in which the server stores them.

use super::outcome::CatalogError;
use crate::statement::Secret;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A password's hash: a star and SHA-1 of SHA-1 of the password in forty hexadecimal digits, as for
/// `mysql_native_password`. For `caching_sha2_password`, a colon and SHA-256 of SHA-256 follow, unless only the first
/// hash is known. The hash is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PasswordHash(String);

/// The string is not a valid [`PasswordHash`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a password hash is * and 40 hexadecimal digits, as PASSWORD('…') returns it, optionally followed by : and 64 digits"
)]
pub struct BadHash;

impl PasswordHash {
    /// Parses a hash.
    ///
    /// # Errors
    /// [`BadHash`] if the string does not have the form of a [`PasswordHash`].
    pub fn new(text: &str) -> Result<PasswordHash, BadHash> {
        let digits = text.strip_prefix('*').ok_or(BadHash)?;
        let (native, sha2) = digits.split_once(':').map_or((digits, None), |(one, two)| (one, Some(two)));
        let fits =
            |digits: &str, long| digits.len() == long && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let whole = fits(native, 40) && sha2.is_none_or(|digits| fits(digits, 64));
        if whole { Ok(PasswordHash(text.to_uppercase())) } else { Err(BadHash) }
    }

    /// Creates a hash from its two parts: SHA-1 of SHA-1, and SHA-256 of SHA-256 of the password.
    #[must_use]
    pub fn of_digests(native: &[u8; 20], sha2: &[u8; 32]) -> PasswordHash {
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02X}")).collect::<String>();
        PasswordHash(format!("*{}:{}", digits(native), digits(sha2)))
    }

    /// Returns the digits for `mysql_native_password`.
    #[must_use]
    pub fn native(&self) -> &str {
        let digits = self.0.trim_start_matches('*');
        digits.split_once(':').map_or(digits, |(native, _)| native)
    }

    /// Returns the digits for `caching_sha2_password`, if they are known.
    #[must_use]
    pub fn sha2(&self) -> Option<&str> {
        self.0.split_once(':').map(|(_, digits)| digits)
    }

    /// Returns the hash as a string, in upper case.
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

/// Function that hashes a password for storage.
pub(super) type Hash<'h> = &'h dyn Fn(&str) -> PasswordHash;

/// Returns a password in the form that is stored; `None` for an empty password.
pub(super) fn stored(password: &Secret, hash: Hash<'_>) -> Result<Option<PasswordHash>, CatalogError> {
    match password {
        Secret::Plain(plain) | Secret::Hash(plain) if plain.is_empty() => Ok(None),
        Secret::Plain(plain) => Ok(Some(hash(plain))),
        Secret::Hash(text) => {
            PasswordHash::new(text).map(Some).map_err(|error| CatalogError::Refused(error.to_string()))
        }
    }
}
