//! Bytes that mean something to the driver alone.

/// A type for 64 bytes that travel to another process as they are.
macro_rules! opaque {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name {
            bytes: [u8; 64],
        }

        impl $name {
            /// From the bytes that another process sent.
            #[must_use]
            pub fn from_bytes(bytes: [u8; 64]) -> Self {
                Self { bytes }
            }

            /// The bytes to send.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; 64] {
                &self.bytes
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use opaque;
