//! The start of a connection, up to the user's name: the greeting, TLS if the client requests it, and the login.
//!
//! ```text
//! server   greeting (0)                                   AuthSwitchRequest (n + 1)     result
//! client               login (1), or                                         proof (n + 2)
//!                      SSLRequest (1), TLS handshake, login (2)
//! ```

use super::packets::{Packet, PacketError, PayloadReader};
use super::socket::Socket;
use super::tls::Tls;
use crate::engine::password::{Method, SALT};
use std::io;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

/// `CLIENT_CONNECT_WITH_DB`.
const WITH_DATABASE: u32 = 0x0000_0008;
/// `CLIENT_COMPRESS`.
pub const COMPRESS: u32 = 0x0000_0020;
/// `CLIENT_PROTOCOL_41`.
const PROTOCOL_41: u32 = 0x0000_0200;
/// `CLIENT_SSL`.
const SSL: u32 = 0x0000_0800;
/// `CLIENT_SECURE_CONNECTION`.
const SECURE: u32 = 0x0000_8000;
/// `CLIENT_MULTI_STATEMENTS`.
pub const MANY_STATEMENTS: u32 = 0x0001_0000;
/// `CLIENT_PLUGIN_AUTH`.
const METHODS: u32 = 0x0008_0000;
/// `CLIENT_PLUGIN_AUTH_LENENC_CLIENT_DATA`.
const LONG_PROOF: u32 = 0x0020_0000;
/// `CLIENT_DEPRECATE_EOF`.
pub const NO_EOF: u32 = 0x0100_0000;

/// Capability flags of this server. They include `CLIENT_LONG_PASSWORD`, `LONG_FLAG` (without it, Connector/J reads one
/// byte of a column's flags, and the wrong number of decimals), `TRANSACTIONS` (so that responses contain the session's
/// status flags), `MULTI_RESULTS`, `PS_MULTI_RESULTS` and `CONNECT_ATTRS`.
const CAPABILITIES: u32 = WITH_DATABASE
    | COMPRESS
    | PROTOCOL_41
    | SECURE
    | MANY_STATEMENTS
    | METHODS
    | LONG_PROOF
    | NO_EOF
    | 0x0000_0001
    | 0x0000_0004
    | 0x0000_2000
    | 0x0002_0000
    | 0x0004_0000
    | 0x0010_0000;

/// utf8mb4_general_ci.
const COLLATION: u8 = 45;

/// `SERVER_STATUS_AUTOCOMMIT`.
pub const AUTOCOMMIT: u16 = 2;

/// The authentication method in the greeting. Every client supports this method, or requests the other method.
const METHOD: Method = Method::Native;

/// Source of packets.
pub type Incoming = Box<dyn AsyncRead + Send + Unpin>;
/// Destination of packets.
pub type Outgoing = Box<dyn AsyncWrite + Send + Unpin>;

/// A connection whose client has sent its login.
pub struct Greeted {
    /// Stream from the client.
    pub from: Incoming,
    /// Stream to the client.
    pub to: Outgoing,
    /// The login.
    pub login: Login,
    /// Version and cipher of TLS, if the connection is encrypted.
    pub encrypted: Option<(String, String)>,
}

/// A client's login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The packet's sequence number.
    pub number: u8,
    /// Capabilities that both the client and the server have.
    pub capabilities: u32,
    /// The number of the client's collation.
    pub collation: u8,
    /// The user's name.
    pub user: String,
    /// The client's response to the salt, which proves that it has the password.
    pub proof: Vec<u8>,
    /// The initial database; may be empty.
    pub database: String,
    /// The authentication method that the client prefers. If the server does not know that method, this is the method
    /// in the greeting.
    pub method: Method,
    /// Whether `proof` was computed by `method` from the salt that the server sent. If not, the server requests the
    /// proof with another packet.
    pub proven: bool,
}

/// Builds the greeting packet (`HandshakeV10`).
fn greeting(id: u32, salt: &[u8; SALT], tls: bool) -> Vec<u8> {
    let capabilities = (CAPABILITIES | if tls { SSL } else { 0 }).to_le_bytes();
    let mut packet = vec![0, 0, 0, 0, 10];
    packet.extend(crate::engine::variables::VERSION.as_bytes());
    packet.push(0);
    packet.extend(id.to_le_bytes());
    packet.extend(&salt[..8]);
    packet.push(0);
    packet.extend(&capabilities[..2]);
    packet.push(COLLATION);
    packet.extend(AUTOCOMMIT.to_le_bytes());
    packet.extend(&capabilities[2..]);
    packet.push(SALT as u8 + 1);
    packet.extend([0; 10]);
    packet.extend(&salt[8..]);
    packet.push(0);
    packet.extend(METHOD.name().as_bytes());
    packet.push(0);
    packet[0] = (packet.len() - 4) as u8;
    packet
}

/// Returns random bytes for the client's proof.
///
/// # Errors
/// The kernel has none.
pub fn salt() -> io::Result<[u8; SALT]> {
    let mut salt = [0; SALT];
    getrandom::fill(&mut salt).map_err(io::Error::other)?;
    // On the wire, the salt is terminated by a zero byte, so it must not contain one.
    salt.iter_mut().for_each(|byte| *byte = *byte % 126 + 1);
    Ok(salt)
}

/// Returns the character set of a collation: utf8mb4 for those that are not supported.
#[must_use]
pub fn letters(collation: u8) -> &'static str {
    match collation {
        5 | 8 | 15 | 31 | 47 | 48 | 49 | 94 => "latin1",
        33 | 83 | 192..=215 => "utf8mb3",
        _ => "utf8mb4",
    }
}

/// Greets a client and reads its login, after a TLS handshake if the client requests one.
///
/// # Errors
/// The client disconnects or sends an invalid packet, or the handshake fails.
pub async fn greet(
    mut socket: Socket,
    id: u32,
    salt: &[u8; SALT],
    tls: Option<&Tls>,
) -> Result<Greeted, PacketError> {
    socket.write_all(&greeting(id, salt, tls.is_some())).await?;
    let first = Packet::of_login(&mut socket, 1).await?;
    let asks_for_tls = first.bytes.first_chunk().is_some_and(|bytes| u32::from_le_bytes(*bytes) & SSL != 0);
    let mut encrypted = None;
    let (from, to, login): (Incoming, Outgoing, _) = match tls.filter(|_| asks_for_tls) {
        // Only the SSLRequest was read, and not a byte more, so the server cannot mistake plaintext for encrypted data.
        Some(tls) => {
            let mut stream = tls.accept(socket).await.map_err(PacketError::Handshake)?;
            let login = Packet::of_login(&mut stream, 2).await?;
            encrypted = Some(super::tls::names(&stream));
            let (from, to) = tokio::io::split(stream);
            (Box::new(from), Box::new(to), login)
        }
        None if asks_for_tls => return Err(PacketError::NoTls),
        None => (Box::new(socket.clone()), Box::new(socket), first),
    };
    let login = read(&login).ok_or(PacketError::NoLogin(login.bytes.len()))?;
    Ok(Greeted { from, to, login, encrypted })
}

/// Parses a login packet (`HandshakeResponse41`); `None` if it is malformed or the client's protocol is too old.
fn read(packet: &Packet) -> Option<Login> {
    let mut bytes = PayloadReader(&packet.bytes);
    let said = bytes.u32()?;
    // Before and after the collation: maximum packet size, reserved bytes.
    bytes.take(4)?;
    let collation = bytes.u8()?;
    bytes.take(23)?;
    if said & PROTOCOL_41 == 0 {
        return None;
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let user = text(bytes.until_zero()?);
    let proof = match said {
        _ if said & LONG_PROOF != 0 => bytes.with_length()?,
        _ if said & SECURE != 0 => {
            let size = bytes.u8()?;
            bytes.take(usize::from(size))?
        }
        _ => bytes.until_zero()?,
    };
    let database = if said & WITH_DATABASE != 0 { bytes.until_zero().map(text) } else { None };
    let wanted = if said & METHODS != 0 { bytes.until_zero().unwrap_or_default() } else { &[] };
    Some(Login {
        number: packet.number,
        capabilities: said & CAPABILITIES,
        collation,
        user,
        proof: proof.to_vec(),
        database: database.unwrap_or_default(),
        method: method(wanted),
        proven: wanted.is_empty() || wanted == METHOD.name().as_bytes(),
    })
}

/// Returns the method of this name, or that in the greeting.
fn method(name: &[u8]) -> Method {
    if name == Method::Sha2.name().as_bytes() { Method::Sha2 } else { METHOD }
}

/// Parses `COM_CHANGE_USER`, whose proof is ignored: it was computed from a salt that is used up.
pub fn read_change(bytes: &[u8]) -> Option<Login> {
    let mut bytes = PayloadReader(bytes);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let user = text(bytes.until_zero()?);
    let size = bytes.u8()?;
    bytes.take(usize::from(size))?;
    let database = text(bytes.until_zero()?);
    // Collations above 255 are all of utf8mb4, like that of the greeting.
    let collation = bytes.u16().and_then(|number| u8::try_from(number).ok()).unwrap_or(COLLATION);
    let method = method(bytes.until_zero().unwrap_or_default());
    let (number, capabilities, proof, proven) = (0, 0, Vec::new(), false);
    Some(Login { number, capabilities, collation, user, proof, database, method, proven })
}

/// Requests a proof by this method (`AuthSwitchRequest`), and stores the client's response in the login.
///
/// # Errors
/// The client disconnects, or sends an invalid packet.
pub async fn prove(greeted: &mut Greeted, method: Method, salt: &[u8; SALT]) -> Result<(), PacketError> {
    let login = &mut greeted.login;
    let text = [&[0xfe], method.name().as_bytes(), &[0], salt, &[0]].concat();
    let head = [text.len() as u8, 0, 0, login.number.wrapping_add(1)];
    greeted.to.write_all(&[&head, text.as_slice()].concat()).await?;
    greeted.to.flush().await?;
    let Packet { number, bytes, .. } =
        Packet::of_method(&mut greeted.from, login.number.wrapping_add(2)).await?;
    (login.number, login.proof, login.method, login.proven) = (number, bytes, method, true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(said: u32, rest: &[u8]) -> Option<Login> {
        let bytes = [&said.to_le_bytes()[..], &[0; 28], rest].concat();
        read(&Packet { first: 1, number: 1, bytes })
    }

    #[test]
    fn capabilities() {
        let packet = greeting(1, &[b'a'; SALT], false);
        // The version ends with a zero; the number, eight bytes of salt and another zero stand before the flags.
        let version = packet[5..].iter().position(|byte| *byte == 0).unwrap();
        let at = 5 + version + 1 + 4 + 8 + 1;
        let low = u32::from(u16::from_le_bytes([packet[at], packet[at + 1]]));
        assert_eq!(low, CAPABILITIES & 0xffff);
        assert_eq!(low & 0x0000_0004, 0x0000_0004, "CLIENT_LONG_FLAG");
    }

    #[test]
    fn logins() {
        let all = PROTOCOL_41 | SECURE | METHODS | WITH_DATABASE;
        let whole = b"jack\0\x03abcshop\0mysql_native_password\0rest";
        let got = login(all | SSL, whole).unwrap();
        assert_eq!(
            (got.user.as_str(), got.proof.as_slice(), got.database.as_str()),
            ("jack", &b"abc"[..], "shop")
        );
        assert!(got.proven && got.method == Method::Native && got.capabilities & SSL == 0);
        let new = login(all, b"jack\0\x00shop\0caching_sha2_password\0").unwrap();
        assert!(!new.proven && new.method == Method::Sha2);
        let other = login(all, b"jack\0\x00shop\0sha256_password\0").unwrap();
        assert!(!other.proven && other.method == Method::Native);
        assert_eq!(login(PROTOCOL_41 | LONG_PROOF, b"jack\0\x01a").unwrap().proof, b"a");
        assert_eq!(login(PROTOCOL_41, b"jack\0abc\0").unwrap().proof, b"abc");
        for broken in
            [&b"jack"[..], b"jack\0", b"jack\0\x09abc", b"jack\0\xfe\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            assert_eq!(login(all | LONG_PROOF, broken), None, "{broken:?}");
        }
        assert_eq!(login(SECURE, whole), None, "an old protocol");
    }

    #[test]
    fn changes_of_the_user() {
        let change = |collation: u16| {
            let start = &b"jill\0\x02abshop\0"[..];
            read_change(&[start, &collation.to_le_bytes(), b"caching_sha2_password\0rest"].concat()).unwrap()
        };
        let got = change(8);
        assert_eq!((got.user.as_str(), got.database.as_str(), got.collation), ("jill", "shop", 8));
        assert_eq!(got.method, Method::Sha2);
        assert_eq!(letters(change(264).collation), "utf8mb4", "utf8mb4_la_0900_ai_ci");
        let short = read_change(b"jill\0\0\0").unwrap();
        assert_eq!((short.database.as_str(), short.method), ("", Method::Native));
        assert_eq!(read_change(b"jill\0\x02a"), None);
    }
}
