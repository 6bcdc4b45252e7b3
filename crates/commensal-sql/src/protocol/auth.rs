//! Who may connect.

use crate::catalog::{Catalog, User};
use crate::engine::Engine;
use crate::engine::password::{self, Method};
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

fn user<'c>(catalog: &'c Catalog, name: &str, peer: IpAddr) -> Option<(&'c UserName, &'c User)> {
    let local = || peer.is_loopback().then(|| catalog.login(name, "localhost")).flatten();
    catalog.login(name, &peer.to_string()).or_else(local)
}

/// The method by which somebody shall prove who it is, who asks for `asked`: that one, unless of this user's password only
/// the hash of the other is known. Who is no user is asked the same.
#[must_use]
pub fn method(engine: &Engine, name: &str, from: Origin, asked: Method) -> Method {
    let other = engine.with_catalog(|catalog| {
        let kept = user(catalog, name, from.address).and_then(|(_, user)| user.password.as_ref());
        kept.is_some_and(|kept| kept.sha2().is_none())
    });
    if other { Method::Native } else { asked }
}

/// Decides it: by the user that a name from that address stands for, and what was sent for the salt, by which method. A user
/// without a password is let in from this machine only.
#[must_use]
pub fn decide(engine: &Engine, name: &str, from: Origin, proof: (Method, &[u8]), salt: &[u8]) -> Access {
    let peer = from.address;
    engine.with_catalog(|catalog| {
        let local = peer.is_loopback();
        let Some((user, kept)) = user(catalog, name, peer) else { return Access::Refused("no such user") };
        if kept.password.is_none() && !local {
            return Access::Refused("a user without a password, from another machine");
        }
        if kept.tls && !from.encrypted {
            return Access::Refused("a user who needs TLS, without it");
        }
        match password::fits(proof.0, kept.password.as_ref(), salt, proof.1) {
            true => Access::As(user.clone()),
            false => Access::Refused("wrong password"),
        }
    })
}
