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
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

/// `CLIENT_CONNECT_WITH_DB`.
const WITH_DATABASE: u32 = 0x0000_0008;
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

/// Capability flags of this server. They include `CLIENT_LONG_PASSWORD`, `TRANSACTIONS` (so that responses contain the
/// session's status flags), `MULTI_RESULTS`, `PS_MULTI_RESULTS` and `CONNECT_ATTRS`.
const CAPABILITIES: u32 = WITH_DATABASE
    | PROTOCOL_41
    | SECURE
    | MANY_STATEMENTS
    | METHODS
    | LONG_PROOF
    | NO_EOF
    | 0x0000_0001
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
    /// Whether the connection is encrypted.
    pub encrypted: bool,
}

/// A client's login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The packet's sequence number.
    pub number: u8,
    /// Capabilities that both the client and the server have.
    pub capabilities: u32,
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
    let (from, to, login): (Incoming, Outgoing, _) = match tls.filter(|_| asks_for_tls) {
        // Only the SSLRequest was read, and not a byte more, so the server cannot mistake plaintext for encrypted data.
        Some(tls) => {
            let mut stream = tls.accept(socket).await.map_err(PacketError::Handshake)?;
            let login = Packet::of_login(&mut stream, 2).await?;
            let (from, to) = tokio::io::split(stream);
            (Box::new(from), Box::new(to), login)
        }
        None if asks_for_tls => return Err(PacketError::NoTls),
        None => (Box::new(socket.clone()), Box::new(socket), first),
    };
    let login = read(&login).ok_or(PacketError::NoLogin(login.bytes.len()))?;
    Ok(Greeted { from, to, login, encrypted: asks_for_tls })
}

/// Parses a login packet (`HandshakeResponse41`); `None` if it is malformed or the client's protocol is too old.
fn read(packet: &Packet) -> Option<Login> {
    let mut bytes = PayloadReader(&packet.bytes);
    let said = bytes.u32()?;
    // Maximum packet size, character set, reserved bytes.
    bytes.take(4 + 1 + 23)?;
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
    let is = |method: Method| wanted == method.name().as_bytes();
    Some(Login {
        number: packet.number,
        capabilities: said & CAPABILITIES,
        user,
        proof: proof.to_vec(),
        database: database.unwrap_or_default(),
        method: if is(Method::Sha2) { Method::Sha2 } else { METHOD },
        proven: wanted.is_empty() || is(METHOD),
    })
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
    let Packet { number, bytes } = Packet::of_method(&mut greeted.from, login.number.wrapping_add(2)).await?;
    (login.number, login.proof, login.method, login.proven) = (number, bytes, method, true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(said: u32, rest: &[u8]) -> Option<Login> {
        let bytes = [&said.to_le_bytes()[..], &[0; 28], rest].concat();
        read(&Packet { number: 1, bytes })
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
}
