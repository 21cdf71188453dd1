//! Resources over other resources: each adds one thing, and they nest in any order.
//!
//! No adaptor holds a lock while its upstream works: an allocation may release what waited for the end of a capture, which
//! comes back through the same adaptors.

mod limit;
mod observe;

pub use limit::LimitingAdaptor;
pub use observe::{OutstandingAllocation, TrackingAdaptor};

/// Writes what every adaptor has, for a handle with the fields `upstream` and `inner`, an `Arc` of its `RawResource`.
macro_rules! adaptor {
    ($name:ident) => {
        impl<R: MemoryResource> $name<R> {
            /// The resource that the memory comes from.
            #[must_use]
            pub fn upstream(&self) -> &R {
                &self.upstream
            }
        }

        // SAFETY: all memory comes from `upstream`, of which the same is true.
        unsafe impl<R: MemoryResource> MemoryResource for $name<R> {
            type Access = R::Access;

            fn raw(&self) -> Arc<dyn RawResource> {
                Arc::clone(&self.inner) as Arc<dyn RawResource>
            }

            fn resource_context(&self) -> &ResourceContext {
                self.upstream.resource_context()
            }
        }

        $crate::resource::equal_handles!($name<R>, inner);

        // Not derived: a resource need not be printable, and what it gives memory from is.
        impl<R> fmt::Debug for $name<R> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("inner", &self.inner).finish()
            }
        }
    };
}

use adaptor;
