//! Who may connect.

use crate::engine::Engine;
use crate::engine::password;
use crate::statement::UserName;
use std::net::IpAddr;

/// What becomes of who wants to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// As this user.
    As(UserName),
    /// Not at all; why is for the log, and not for who asks.
    Refused(&'static str),
}

/// Where somebody comes from.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// The address.
    pub address: IpAddr,
    /// With TLS.
    pub encrypted: bool,
}

/// Decides it: by the user that a name from that address stands for, and what was sent for the salt. A user without a
/// password is let in from this machine only.
#[must_use]
pub fn decide(engine: &Engine, name: &str, from: Origin, salt: &[u8], sent: &[u8]) -> Access {
    let peer = from.address;
    let host = peer.to_string();
    engine.with_catalog(|catalog| {
        let local = peer.is_loopback();
        let found =
            catalog.login(name, &host).or_else(|| local.then(|| catalog.login(name, "localhost")).flatten());
        let Some((user, kept)) = found else { return Access::Refused("no such user") };
        if kept.password.is_none() && !local {
            return Access::Refused("a user without a password, from another machine");
        }
        if kept.tls && !from.encrypted {
            return Access::Refused("a user who needs TLS, without it");
        }
        match password::fits(kept.password.as_ref(), salt, sent) {
            true => Access::As(user.clone()),
            false => Access::Refused("wrong password"),
        }
    })
}
