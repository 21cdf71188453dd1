//! Tensors that are lent to other libraries and borrowed from them, without a copy: DLPack, version 1.x and the one before.
//!
//! [`Tensor`] lends a buffer. [`Borrowed`] has what another library lends, and gives it back once. Streams are handled as the Python
//! array API says: the consumer names its stream, and the producer orders that behind its own work ([`consumer_stream`]). Nothing is said
//! of the way back, so the uses of a borrowed tensor are waited for on the host before it is given back, whichever library lent it; memory that this crate
//! lends is released behind the consumer's stream.
//!
//! ```
//! use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, Stream};
//! use cuda_mem_torch::dlpack::{Borrowed, DLDataType, Tensor};
//!
//! let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
//! let stream = Stream::new(&driver.device(0)?.primary_context()?)?;
//! let buffer = DeviceBuffer::<f32>::zeroed(&stream, 6)?;
//! let address = buffer.as_raw();
//!
//! // For a consumer that works on a stream of its own.
//! let theirs = Stream::new(stream.context())?;
//! let lent = Tensor::new(buffer, DLDataType::F32, &[2, 3])?.into_versioned(Some(&theirs))?;
//!
//! // In the consumer, which takes it over.
//! // SAFETY: lent just now, and taken over once.
//! let tensor = unsafe { Borrowed::from_versioned(theirs.context(), lent, Some(&theirs)) }?;
//! assert_eq!((tensor.address(), tensor.shape(), tensor.strides()), (address, &[2, 3][..], &[3, 1][..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod borrowed;
mod error;
mod ffi;
mod layout;
mod lent;
mod stream;

pub use borrowed::Borrowed;
pub use error::{DlpackError, Refused};
pub use ffi::{
    DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, DLDataType, DLDevice, DLManagedTensor,
    DLManagedTensorVersioned, DLPackVersion, DLTensor, FLAG_READ_ONLY, VERSION,
};
pub use lent::{Lend, Tensor};
pub use stream::consumer_stream;
