//! Linux error numbers and their names, for core and for the fake host.

use std::fmt;

/// A Linux error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $number:literal),* $(,)?) => {
        #[allow(missing_docs, reason = "the names are the kernel's own (errno(3))")]
        impl Errno {
            $(pub const $name: Errno = Errno($number);)*

            /// Name of the error number (`EINVAL`); `None` for a number that is not in the list.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $($number => Some(stringify!($name)),)* _ => None }
            }

            /// The error number with this name; `None` for a name that is not in the list.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Errno> {
                match name { $(stringify!($name) => Some(Errno($number)),)* _ => None }
            }
        }
    };
}

errnos! {
    EPERM = 1, ENOENT = 2, ESRCH = 3, EINTR = 4, EIO = 5, ENXIO = 6, E2BIG = 7, EBADF = 9, EAGAIN = 11,
    ENOMEM = 12, EACCES = 13, EBUSY = 16, EEXIST = 17, ENODEV = 19, ENOTDIR = 20, EISDIR = 21, EINVAL = 22, ENFILE = 23, EMFILE = 24,
    EFBIG = 27, ENOSPC = 28, EROFS = 30, EMLINK = 31, EPIPE = 32, ERANGE = 34, ENAMETOOLONG = 36, ENOTEMPTY = 39, ELOOP = 40, EPROTO = 71, EBADMSG = 74,
    EOPNOTSUPP = 95, EAFNOSUPPORT = 97, EADDRINUSE = 98, EADDRNOTAVAIL = 99, ENETDOWN = 100, ENETUNREACH = 101,
    ECONNABORTED = 103, ECONNRESET = 104, ENOBUFS = 105, ENOTCONN = 107, ETIMEDOUT = 110, ECONNREFUSED = 111,
    EHOSTDOWN = 112, EHOSTUNREACH = 113, EDQUOT = 122,
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}
