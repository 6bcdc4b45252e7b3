//! MySQL's two methods by which a client proves that it has a password.
//!
//! ```text
//! mysql_native_password    client sends  SHA1(password) XOR SHA1(salt, SHA1(SHA1(password)))
//! caching_sha2_password    client sends  SHA256(password) XOR SHA256(SHA256(SHA256(password)), salt)
//! ```
//! Neither the password nor its stored form (the hash of its hash) is sent, and the client's response is useless with
//! another salt. MySQL's server can verify the second method only after a login with the plain password. This server
//! stores the hash for the second method when the password is set, like the hash for the first method.

use super::error::{Error, cannot};
use crate::catalog::PasswordHash;
use commensal_host::{Host, LinuxHost};
use sha1::{Digest, Sha1};
use sha2::Sha256;
use std::fmt;
use std::path::Path;
use subtle::ConstantTimeEq;

/// Length of a salt in bytes.
pub const SALT: usize = 20;

/// Method by which a client proves that it knows a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// `mysql_native_password`, which every client supports except MySQL's own clients since 9.0.
    Native,
    /// `caching_sha2_password`, the default of MySQL since 8.0.
    Sha2,
}

impl Method {
    /// Returns the name of the method in the protocol.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Method::Native => "mysql_native_password",
            Method::Sha2 => "caching_sha2_password",
        }
    }
}

/// Returns the hashes to store for a password.
#[must_use]
pub fn hash(password: &str) -> PasswordHash {
    let native = Sha1::digest(Sha1::digest(password));
    let sha2 = <Sha256 as sha2::Digest>::digest(<Sha256 as sha2::Digest>::digest(password));
    PasswordHash::of_digests(&native.into(), &sha2.into())
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

/// Returns the response that a client sends for a password.
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

/// Whether this is a client's response for an empty password: nothing, or a zero byte with the second method.
#[must_use]
pub fn is_empty(method: Method, sent: &[u8]) -> bool {
    sent.is_empty() || (method == Method::Sha2 && sent == [0])
}

/// Verifies a client's response against the stored hash. Hashes are compared in constant time.
#[must_use]
pub fn fits(method: Method, kept: &PasswordHash, salt: &[u8], sent: &[u8]) -> bool {
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

/// File name of the key of [`Decoys`] in the state folder.
const KEY_FILE: &str = "login-key";

/// Data that stands in for the password of a user that does not exist, so that a refused login does not reveal whether
/// the user exists.
///
/// Most users can log in by either method, and the client chooses. A user whose password was given as a hash can log in
/// by the first method only, so the server requests that method. The server treats a name that does not exist like a
/// user of one of these two kinds. The name and a secret key determine the kind, so a name always has the same kind.
/// The key is stored in the state folder, so that a restart does not change the responses. (MySQL's server draws a
/// method for each such name and remembers it until it exits, `decoy_user`.)
pub struct Decoys {
    key: [u8; 32],
    /// Hash that the server compares with a response for a name that does not exist. The server ignores the result.
    hash: PasswordHash,
}

/// Omits the key, which is secret.
impl fmt::Debug for Decoys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decoys")
    }
}

impl Decoys {
    fn new(key: [u8; 32]) -> Decoys {
        Decoys { key, hash: hash(&digits(&key)) }
    }

    /// Reads the key in the state folder. If the folder has no key, makes and stores a new key. Without a state folder,
    /// the key is lost when the server exits, like all users.
    ///
    /// # Errors
    /// The file cannot be read, or the kernel has no random numbers.
    pub fn open(state: Option<&Path>) -> Result<Decoys, Error> {
        let file = state.map(|folder| folder.join(KEY_FILE));
        let mut host = LinuxHost::new();
        if let Some(file) = &file {
            let text = host.state_read(file).map_err(|error| cannot("read", file, &error))?;
            let key: Option<[u8; 32]> =
                text.and_then(|text| bytes(text.trim())).and_then(|key| key.try_into().ok());
            if let Some(key) = key {
                return Ok(Decoys::new(key));
            }
        }
        let mut key = [0; 32];
        let filled = getrandom::fill(&mut key);
        filled.map_err(|error| Error::Engine(format!("cannot get random numbers: {error}")))?;
        if let Some(file) = &file
            && let Err(error) = host.state_replace(file, &format!("{}\n", digits(&key)))
        {
            // Users can log in without the file. But after a restart, the responses to unknown user names may differ
            // from those before.
            tracing::warn!("cannot write {}: {error}", file.display());
        }
        Ok(Decoys::new(key))
    }

    /// Returns the hash that the server compares with responses for a name that does not exist.
    #[must_use]
    pub fn hash(&self) -> &PasswordHash {
        &self.hash
    }

    /// Chooses how the server treats a name that does not exist: true means like one of `some` users, false like one of
    /// the remaining `all - some`. The result is true for the share `some / all` of all names. If that share changes,
    /// the result changes for as few names as possible.
    #[must_use]
    pub fn is_among(&self, name: &str, some: usize, all: usize) -> bool {
        let drawn = sha256(&self.key, name.as_bytes());
        let drawn = drawn.iter().take(8).fold(0_u128, |sum, byte| (sum << 8) | u128::from(*byte));
        (drawn * all as u128) >> 64 < some as u128
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise 50
    #[test]
    fn passwords() {
        // The value of PASSWORD('mypass') in MySQL's manual.
        let known = hash("mypass");
        assert_eq!(known.native(), "6C8989366EAF75BB670AD8EA7A7FC1176A95CEF4");
        assert_eq!(known.sha2().map(str::len), Some(64));
        let kept = hash("geheim");
        let salt = [7; SALT];
        for (method, hashed) in [(Method::Native, Some(kept.native())), (Method::Sha2, kept.sha2())] {
            assert!(fits(method, &kept, &salt, &response(method, "geheim", &salt)));
            for (sent, why) in [
                (response(method, "geheim", &[8; SALT]), "another salt"),
                (response(method, "Geheim", &salt), "another password"),
                (Vec::new(), "none"),
                (vec![0; 19], "too short"),
                (hashed.and_then(bytes).unwrap(), "what is kept"),
            ] {
                assert!(!fits(method, &kept, &salt, &sent), "{method:?}: {why}");
            }
            assert!(is_empty(method, &[]));
            assert!(!is_empty(method, &response(method, "x", &salt)));
        }
        assert!(is_empty(Method::Sha2, &[0]) && !is_empty(Method::Native, &[0]));
        // The hash for the first method does not allow a login with the second method.
        let old = PasswordHash::new(&format!("*{}", kept.native())).unwrap();
        assert!(fits(Method::Native, &old, &salt, &response(Method::Native, "geheim", &salt)));
        assert!(!fits(Method::Sha2, &old, &salt, &response(Method::Sha2, "geheim", &salt)));
    }

    #[test]
    fn names_that_do_not_exist_have_the_shares_of_those_that_do() {
        let decoys = Decoys::new([7; 32]);
        let names: Vec<String> = (0..4_000).map(|number| format!("user{number}")).collect();
        let of = |some, all| names.iter().filter(|name| decoys.is_among(name, some, all)).collect::<Vec<_>>();
        assert!(of(0, 5).is_empty() && of(0, 0).is_empty());
        assert_eq!(of(5, 5).len(), names.len());
        let (quarter, half) = (of(1, 4), of(3, 6));
        assert!((800..1_200).contains(&quarter.len()), "{}", quarter.len());
        assert!((1_800..2_200).contains(&half.len()), "{}", half.len());
        assert!(quarter.iter().all(|name| half.contains(name)), "none changes sides without need");
        let other = Decoys::new([8; 32]);
        assert!(quarter.iter().any(|name| !other.is_among(name, 1, 4)), "another key, other names");
    }
}
