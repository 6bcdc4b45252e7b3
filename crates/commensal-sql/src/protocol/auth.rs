//! Authentication of clients.
//!
//! A refusal must not reveal whether the user exists. So for an unknown user, the server requests the same methods in
//! the same packets, refuses with the same error, and does about the same work as for a known user
//! ([`Decoys`](password::Decoys)).

use crate::catalog::{Catalog, User};
use crate::engine::Engine;
use crate::engine::password::{self, Method};
use crate::statement::UserName;
use std::hint::black_box;
use std::net::IpAddr;

/// Result of an authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Logged in as this user.
    As(UserName),
    /// Refused; the reason is logged, not sent to the client.
    Refused(&'static str),
}

/// Origin of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// The address of the client.
    pub address: IpAddr,
    /// Whether the connection uses TLS.
    pub encrypted: bool,
}

/// Returns the user for this name and address. The function looks up both the user at `localhost` and the user at the
/// address in every case, so that the time does not reveal which of them exists.
fn account<'c>(catalog: &'c Catalog, name: &str, peer: IpAddr) -> Option<(&'c UserName, &'c User)> {
    let local = peer.is_loopback().then(|| catalog.login(name, "localhost")).flatten();
    catalog.login(name, &peer.to_string()).or(local)
}

/// Returns the method by which a client must prove its password: the requested method `asked`, unless the server has
/// only the `mysql_native_password` hash of this user. An unknown name gets the treatment of one of these two kinds of
/// users. The kind is always the same for the same name, and each kind is as frequent as among the known users.
#[must_use]
pub fn method(engine: &Engine, name: &str, from: Origin, asked: Method) -> Method {
    let native_only = engine.with_catalog(|catalog| {
        let (some, all) = catalog.native_only_users();
        let decoy = engine.decoys.is_among(name, some, all);
        account(catalog, name, from.address).map_or(decoy, |(_, user)| user.is_native_only())
    });
    if native_only { Method::Native } else { asked }
}

/// Decides about a login: finds the user for this name and address, and verifies the proof. The client has computed the
/// proof by the given method from its password and `salt`. A user without a password may log in from this machine only.
#[must_use]
pub fn decide(engine: &Engine, name: &str, from: Origin, proof: (Method, &[u8]), salt: &[u8]) -> Access {
    let (method, sent) = proof;
    engine.with_catalog(|catalog| {
        let found = account(catalog, name, from.address);
        let kept = found.and_then(|(_, user)| user.password.as_ref());
        // The proof is verified even where the result does not matter, so that each refusal costs the same work.
        let fits = black_box(password::fits(method, kept.unwrap_or(engine.decoys.hash()), salt, sent));
        let Some((name, user)) = found else { return Access::Refused("no such user") };
        if kept.is_none() && !from.address.is_loopback() {
            return Access::Refused("a user without a password, from another machine");
        }
        if user.tls && !from.encrypted {
            return Access::Refused("a user who needs TLS, without it");
        }
        let proven = if kept.is_some() { fits } else { password::is_empty(method, sent) };
        if proven { Access::As(name.clone()) } else { Access::Refused("wrong password") }
    })
}
