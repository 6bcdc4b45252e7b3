//! What the error numbers of sockets say about a load: which of them are limits of the load generator itself, and the
//! likely causes of the others.

use crate::record::SocketErrors;
use commensal_core::errno::Errno;

/// Limits of the load generator or of its machine, which say nothing about the service: the error number, what is used
/// up, and the way out (connect(2), socket(2), epoll_ctl(2), ip(7), tcp(7)).
const OWN: [(Errno, &str, &str); 5] = [
    (
        Errno::EADDRNOTAVAIL,
        "the load generator ran out of local ports",
        "a port stays in use for a minute after its connection was closed, so let the service keep connections alive, \
         lower the rate, or widen net.ipv4.ip_local_port_range",
    ),
    (
        Errno::EMFILE,
        "the load generator ran out of file descriptors",
        "use fewer connections, or raise the limit of open files (ulimit -n)",
    ),
    (
        Errno::ENFILE,
        "the load generator's machine ran out of open files",
        "use fewer connections, close other programs, or raise fs.file-max",
    ),
    (
        Errno::ENOBUFS,
        "the kernel had no buffers for the load generator's sockets",
        "use fewer connections, or free memory on the load generator's machine",
    ),
    (
        Errno::ENOMEM,
        "the kernel had no memory for the load generator's sockets",
        "use fewer connections, or free memory on the load generator's machine",
    ),
];

/// Likely causes of other error numbers.
const CAUSES: [(Errno, &str); 8] = [
    (Errno::ECONNREFUSED, "nothing listens at the address"),
    (Errno::ECONNRESET, "the server reset the connection"),
    (Errno::EPIPE, "the server had closed the connection"),
    (Errno::ETIMEDOUT, "the address does not respond"),
    (Errno::EHOSTUNREACH, "there is no route to the host"),
    (Errno::ENETUNREACH, "there is no route to the network"),
    (Errno::EACCES, "a firewall or a security policy forbids it"),
    (Errno::EPERM, "a firewall or a security policy forbids it"),
];

/// Errors of an attempt to connect that prove that the service was not there, however much load it can take: an overloaded
/// server lets connections wait.
const UNREACHABLE: [Errno; 6] = [
    Errno::ECONNREFUSED,
    Errno::ETIMEDOUT,
    Errno::EHOSTUNREACH,
    Errno::ENETUNREACH,
    Errno::EACCES,
    Errno::EPERM,
];

/// Returns whether the errors prove that the service could not be reached at times.
pub(super) fn unreachable(errors: &SocketErrors) -> bool {
    UNREACHABLE.iter().any(|errno| errors.count(*errno) > 0)
}

/// Returns one sentence for each limit of the load generator itself that the load ran into.
pub(super) fn own_limits(errors: &SocketErrors) -> Vec<String> {
    let sentence = |(errno, what, way_out): &(Errno, &str, &str)| {
        let count = errors.count(*errno);
        (count > 0).then(|| format!("{what} ({errno}, {}): {way_out}", times(count)))
    };
    OWN.iter().filter_map(sentence).collect()
}

/// Returns the sentence for an error that is a limit of the load generator itself; `None` for any other error.
pub(super) fn own_limit(error: &std::io::Error) -> Option<String> {
    let number = error.raw_os_error()?;
    let (errno, what, way_out) = OWN.iter().find(|(errno, ..)| errno.0 == number)?;
    Some(format!("{what} ({errno}): {way_out}"))
}

/// Lists the errors with their counts and likely causes; empty if there are none.
pub(super) fn listed(errors: &SocketErrors) -> String {
    let one = |(name, count): (&str, u64)| {
        let cause = CAUSES.iter().find(|(errno, _)| errno.name() == Some(name));
        let cause = cause.map(|(_, cause)| format!(": {cause}")).unwrap_or_default();
        format!("{name} ({}{cause})", times(count))
    };
    errors.counts().map(one).collect::<Vec<_>>().join(", ")
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn the_limits_of_the_generator_are_told_from_other_errors() {
        let check = |errno: Errno, own: bool| {
            let error = io::Error::from_raw_os_error(errno.0);
            let said = own_limit(&error);
            assert_eq!(said.is_some(), own, "{errno}: {said:?}");
            assert!(said.is_none_or(|said| said.contains(&errno.to_string())), "{errno}");
        };
        OWN.iter().for_each(|(errno, ..)| check(*errno, true));
        CAUSES.iter().for_each(|(errno, _)| check(*errno, false));
        assert_eq!(own_limit(&io::ErrorKind::TimedOut.into()), None);
    }

    #[test]
    fn errors_are_listed_with_their_causes() {
        let mut errors = SocketErrors::default();
        assert_eq!(listed(&errors), "");
        for errno in [Errno::EPERM, Errno::ECONNREFUSED, Errno::EPERM, Errno::EPROTO] {
            errors.add(errno);
        }
        assert_eq!(
            listed(&errors),
            "ECONNREFUSED (once: nothing listens at the address), EPERM (2 times: a firewall or a security policy \
             forbids it), EPROTO (once)"
        );
    }
}
