//! Authentication of clients.

use crate::catalog::{Catalog, User};
use crate::engine::Engine;
use crate::engine::password::{self, Method};
use crate::statement::UserName;
use std::net::IpAddr;

/// Result of an authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Logged in as this user.
    As(UserName),
    /// Refused; the reason is for the log, not for the client.
    Refused(&'static str),
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// The address.
    pub address: IpAddr,
    /// Whether it uses TLS.
    pub encrypted: bool,
}

fn user<'c>(catalog: &'c Catalog, name: &str, peer: IpAddr) -> Option<(&'c UserName, &'c User)> {
    let local = || peer.is_loopback().then(|| catalog.login(name, "localhost")).flatten();
    catalog.login(name, &peer.to_string()).or_else(local)
}

/// The method by which a client must prove its identity: the requested method `asked`, unless only the hash for the
/// other one is known for this user. The answer is the same for unknown users.
#[must_use]
pub fn method(engine: &Engine, name: &str, from: Origin, asked: Method) -> Method {
    let other = engine.with_catalog(|catalog| {
        let kept = user(catalog, name, from.address).and_then(|(_, user)| user.password.as_ref());
        kept.is_some_and(|kept| kept.sha2().is_none())
    });
    if other { Method::Native } else { asked }
}

/// Decides about a login: finds the user for this name and address, and verifies the proof for the salt by its method.
/// A user without a password is only admitted from this machine.
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
