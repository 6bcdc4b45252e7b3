//! Passwords as MySQL's `mysql_native_password` has them: `*` and SHA1(SHA1(password)) in hexadecimal digits.
//!
//! ```text
//! client sends   SHA1(password) XOR SHA1(salt, SHA1(SHA1(password)))
//! ```
//! so that neither the password nor what is kept of it crosses the wire, and what does is worth nothing with another salt.

use crate::catalog::PasswordHash;
use sha1::{Digest, Sha1};
use subtle::ConstantTimeEq;

/// Bytes of a salt.
pub const SALT: usize = 20;

/// What is kept of a password.
#[must_use]
pub fn hash(password: &str) -> Option<PasswordHash> {
    let twice = Sha1::digest(Sha1::digest(password.as_bytes()));
    let digits: String = twice.iter().map(|byte| format!("{byte:02X}")).collect();
    PasswordHash::new(&format!("*{digits}")).ok()
}

/// The bytes of a hash.
fn bytes(hash: &PasswordHash) -> Option<Vec<u8>> {
    let digits = hash.as_str().strip_prefix('*')?;
    let pair = |at: usize| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..digits.len()).step_by(2).map(pair).collect()
}

/// What a client sends for a password.
#[must_use]
pub fn response(password: &str, salt: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let once = Sha1::digest(password.as_bytes());
    let mask = Sha1::new().chain_update(salt).chain_update(Sha1::digest(once)).finalize();
    once.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect()
}

/// Whether a client knows the password. No password is kept for a user without one, who sends nothing. Takes as long
/// whatever is wrong.
#[must_use]
pub fn fits(kept: Option<&PasswordHash>, salt: &[u8], sent: &[u8]) -> bool {
    let Some(kept) = kept else { return sent.is_empty() };
    let Some(kept) = bytes(kept).filter(|_| sent.len() == SALT) else { return false };
    let mask = Sha1::new().chain_update(salt).chain_update(&kept).finalize();
    let once: Vec<u8> = sent.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect();
    Sha1::digest(once).as_slice().ct_eq(&kept).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords() {
        // The value that MySQL's manual gives for PASSWORD('mypass').
        assert_eq!(hash("mypass").unwrap().as_str(), "*6C8989366EAF75BB670AD8EA7A7FC1176A95CEF4");
        let kept = hash("geheim");
        let salt = [7; SALT];
        assert!(fits(kept.as_ref(), &salt, &response("geheim", &salt)));
        for (sent, why) in [
            (response("geheim", &[8; SALT]), "another salt"),
            (response("Geheim", &salt), "another password"),
            (Vec::new(), "none"),
            (vec![0; 19], "too short"),
            (bytes(kept.as_ref().unwrap()).unwrap(), "what is kept"),
        ] {
            assert!(!fits(kept.as_ref(), &salt, &sent), "{why}");
        }
        assert!(fits(None, &salt, &[]));
        assert!(!fits(None, &salt, &response("x", &salt)));
    }
}
