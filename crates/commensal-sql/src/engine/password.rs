//! MySQL's two methods to prove a password.
//!
//! ```text
//! mysql_native_password    client sends  SHA1(password) XOR SHA1(salt, SHA1(SHA1(password)))
//! caching_sha2_password    client sends  SHA256(password) XOR SHA256(SHA256(SHA256(password)), salt)
//! ```
//! Neither the password nor its stored form (the hash of its hash) crosses the wire, and what does is useless with
//! another salt. MySQL's server can only verify the second method after a login with the plain password; here the hash
//! for it is stored when the password is set, like that for the first method.

use crate::catalog::PasswordHash;
use sha1::{Digest, Sha1};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// Bytes of a salt.
pub const SALT: usize = 20;

/// How a client proves that it knows a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// `mysql_native_password`, which every client supports except MySQL's own since 9.0.
    Native,
    /// `caching_sha2_password`, the default of MySQL since 8.0.
    Sha2,
}

impl Method {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Method::Native => "mysql_native_password",
            Method::Sha2 => "caching_sha2_password",
        }
    }
}

/// The hashes that are stored for a password.
#[must_use]
pub fn hash(password: &str) -> Option<PasswordHash> {
    let native = digits(&Sha1::digest(Sha1::digest(password)));
    let twice = <Sha256 as sha2::Digest>::digest(<Sha256 as sha2::Digest>::digest(password));
    PasswordHash::new(&format!("*{native}:{}", digits(&twice))).ok()
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Decodes a hexadecimal hash.
fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pair = |at: usize| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..digits.len()).step_by(2).map(pair).collect()
}

fn either(one: &[u8], other: &[u8]) -> Vec<u8> {
    one.iter().zip(other).map(|(one, other)| one ^ other).collect()
}

fn sha256(first: &[u8], second: &[u8]) -> Vec<u8> {
    use sha2::Digest;
    Sha256::new().chain_update(first).chain_update(second).finalize().to_vec()
}

/// The response that a client sends for a password.
#[must_use]
pub fn response(method: Method, password: &str, salt: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    match method {
        Method::Native => {
            let once = Sha1::digest(password.as_bytes());
            let mask = Sha1::new().chain_update(salt).chain_update(Sha1::digest(once)).finalize();
            either(&once, &mask)
        }
        Method::Sha2 => {
            let once = sha256(password.as_bytes(), &[]);
            either(&once, &sha256(&sha256(&once, &[]), salt))
        }
    }
}

/// Verifies a client's response. A user without a password has no stored hash, and sends an empty response (or a zero
/// byte with the second method). The time taken does not depend on what is wrong.
#[must_use]
pub fn fits(method: Method, kept: Option<&PasswordHash>, salt: &[u8], sent: &[u8]) -> bool {
    let Some(kept) = kept else {
        return sent.is_empty() || (method == Method::Sha2 && sent == [0]);
    };
    let kept = match method {
        Method::Native => bytes(kept.native()),
        Method::Sha2 => kept.sha2().and_then(bytes),
    };
    let Some(kept) = kept.filter(|kept| sent.len() == kept.len()) else { return false };
    let twice = match method {
        Method::Native => {
            let mask = Sha1::new().chain_update(salt).chain_update(&kept).finalize();
            Sha1::digest(either(sent, &mask)).to_vec()
        }
        Method::Sha2 => sha256(&either(sent, &sha256(&kept, salt)), &[]),
    };
    twice.ct_eq(&kept).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise 60
    #[test]
    fn passwords() {
        // The value that MySQL's manual states for PASSWORD('mypass').
        let known = hash("mypass").unwrap();
        assert_eq!(known.native(), "6C8989366EAF75BB670AD8EA7A7FC1176A95CEF4");
        assert_eq!(known.sha2().map(str::len), Some(64));
        let kept = hash("geheim").unwrap();
        let salt = [7; SALT];
        for (method, hashed) in [(Method::Native, Some(kept.native())), (Method::Sha2, kept.sha2())] {
            assert!(fits(method, Some(&kept), &salt, &response(method, "geheim", &salt)));
            for (sent, why) in [
                (response(method, "geheim", &[8; SALT]), "another salt"),
                (response(method, "Geheim", &salt), "another password"),
                (Vec::new(), "none"),
                (vec![0; 19], "too short"),
                (hashed.and_then(bytes).unwrap(), "what is kept"),
            ] {
                assert!(!fits(method, Some(&kept), &salt, &sent), "{method:?}: {why}");
            }
            assert!(fits(method, None, &salt, &[]));
            assert!(!fits(method, None, &salt, &response(method, "x", &salt)));
        }
        assert!(fits(Method::Sha2, None, &salt, &[0]) && !fits(Method::Native, None, &salt, &[0]));
        // The hash for the first method does not allow a login with the second.
        let old = PasswordHash::new(&format!("*{}", kept.native())).unwrap();
        assert!(fits(Method::Native, Some(&old), &salt, &response(Method::Native, "geheim", &salt)));
        assert!(!fits(Method::Sha2, Some(&old), &salt, &response(Method::Sha2, "geheim", &salt)));
    }
}
