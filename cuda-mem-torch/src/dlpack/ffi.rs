//! The standard's C structures, of version 1.x and before.

use std::ffi::c_void;

/// The version that is written. Readers of the same major version read it.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 1 };

/// Devices of the host.
pub const DL_CPU: i32 = 1;
/// Memory of a CUDA device.
pub const DL_CUDA: i32 = 2;
/// Pinned host memory.
pub const DL_CUDA_HOST: i32 = 3;
/// Managed memory.
pub const DL_CUDA_MANAGED: i32 = 13;

/// The tensor must not be written.
pub const FLAG_READ_ONLY: u64 = 1;

/// A version of the standard. The [module](super) has an example.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Another one has another layout.
    pub major: u32,
    /// A later one adds to it.
    pub minor: u32,
}

/// Where memory lies. The [module](super) has an example.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLDevice {
    /// The kind of device: [`DL_CUDA`] and others.
    pub device_type: i32,
    /// Its number.
    pub device_id: i32,
}

/// What an element is: a number of lanes of `bits` bits each.
///
/// ```
/// use cuda_mem_torch::dlpack::DLDataType;
///
/// assert_eq!(DLDataType::F32.bytes(), 4);
/// assert_eq!(DLDataType { lanes: 4, ..DLDataType::U8 }.bytes(), 4);
/// ```
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLDataType {
    /// The kind of number.
    pub code: u8,
    /// Its bits.
    pub bits: u8,
    /// How many make an element.
    pub lanes: u16,
}

impl DLDataType {
    /// `u8`.
    pub const U8: Self = Self::new(1, 8);
    /// `i8`.
    pub const I8: Self = Self::new(0, 8);
    /// `i16`.
    pub const I16: Self = Self::new(0, 16);
    /// `i32`.
    pub const I32: Self = Self::new(0, 32);
    /// `i64`.
    pub const I64: Self = Self::new(0, 64);
    /// A half-precision number.
    pub const F16: Self = Self::new(2, 16);
    /// `f32`.
    pub const F32: Self = Self::new(2, 32);
    /// `f64`.
    pub const F64: Self = Self::new(2, 64);
    /// A brain float.
    pub const BF16: Self = Self::new(4, 16);
    /// A truth value in a byte.
    pub const BOOL: Self = Self::new(6, 8);

    /// One lane.
    const fn new(code: u8, bits: u8) -> Self {
        Self { code, bits, lanes: 1 }
    }

    /// The bytes of an element; 0 if it is not made of whole bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        if self.bits.is_multiple_of(8) { usize::from(self.bits / 8) * usize::from(self.lanes) } else { 0 }
    }
}

/// A tensor that somebody else owns. The [module](super) has an example.
#[repr(C)]
#[derive(Debug)]
pub struct DLTensor {
    /// The memory.
    pub data: *mut c_void,
    /// Where it lies.
    pub device: DLDevice,
    /// How many dimensions it has.
    pub ndim: i32,
    /// What its elements are.
    pub dtype: DLDataType,
    /// The elements in each dimension.
    pub shape: *mut i64,
    /// How many elements are from one to the next in each dimension. Null where rows lie one behind the other, which versions
    /// from 1.2 on do not write.
    pub strides: *mut i64,
    /// Where in the memory it begins.
    pub byte_offset: u64,
}

/// A tensor that is lent, as versions before 1.0 have it. The [module](super) has an example.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The lender's own.
    pub manager_ctx: *mut c_void,
    /// To be called once by the borrower, with this structure.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A tensor that is lent, as versions 1.x have it. The [module](super) has an example.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// What the rest is of.
    pub version: DLPackVersion,
    /// The lender's own.
    pub manager_ctx: *mut c_void,
    /// To be called once by the borrower, with this structure.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// [`FLAG_READ_ONLY`] and others.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

// What other languages assume of these structures.
const _: () = {
    assert!(size_of::<DLTensor>() == 48 && std::mem::offset_of!(DLTensor, shape) == 24);
    assert!(size_of::<DLManagedTensor>() == 64 && std::mem::offset_of!(DLManagedTensor, deleter) == 56);
    assert!(size_of::<DLManagedTensorVersioned>() == 80);
    assert!(std::mem::offset_of!(DLManagedTensorVersioned, flags) == 24);
    assert!(std::mem::offset_of!(DLManagedTensorVersioned, dl_tensor) == 32);
};
