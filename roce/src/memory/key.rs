//! The numbers that name queue pairs and regions on the wire.

use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $width:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(u32);

        impl $name {
            /// Takes the number as on the wire; bits beyond the field's width are dropped.
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(value & (u32::MAX >> (32 - $width)))
            }

            /// The number as on the wire.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

number!(
    /// A queue pair's number, 24 bits (IBA 9.2).
    Qpn, 24
);
number!(
    /// The number by which a peer names a shared receive queue of an XRC domain, 24 bits (IBA annex A14).
    SrqNumber, 24
);
number!(
    /// The key by which a local work request names a memory region.
    Lkey, 32
);
number!(
    /// The key by which a remote peer names a memory region (IBA 10.6.3).
    Rkey, 32
);
