//! Shapes and strides, as numbers.

use super::{DLDataType, DlpackError};

/// More dimensions no library has.
pub(super) const MOST_DIMENSIONS: usize = 64;

/// What a tensor's elements are and where they lie, from its first on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) dtype: DLDataType,
    pub(super) shape: Vec<i64>,
    pub(super) strides: Vec<i64>,
    /// From the first byte of the first element to behind the last byte of the last.
    pub(super) bytes: usize,
}

impl Layout {
    /// Without strides rows lie one behind the other.
    pub(super) fn new(
        dtype: DLDataType,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Result<Self, DlpackError> {
        let element = dtype.bytes();
        if element == 0 {
            let DLDataType { code, bits, lanes } = dtype;
            return Err(DlpackError::Type { code, bits, lanes });
        }
        if shape.len() > MOST_DIMENSIONS {
            let ndim = i64::try_from(shape.len()).unwrap_or(i64::MAX);
            return Err(DlpackError::Dimensions { ndim });
        }
        expect_natural("size", shape)?;
        let strides = match strides {
            Some(strides) => strides.to_vec(),
            None => row_major(shape)?,
        };
        expect_natural("stride", &strides)?;
        let mut last = Some(0i64);
        for (size, stride) in shape.iter().zip(&strides) {
            let reach = size.checked_sub(1).and_then(|steps| steps.max(0).checked_mul(*stride));
            last = last.zip(reach).and_then(|(last, reach)| last.checked_add(reach));
        }
        let elements = last.and_then(|last| last.checked_add(1)).ok_or(DlpackError::TooLarge)?;
        let elements = if shape.contains(&0) { 0 } else { elements };
        let elements = usize::try_from(elements).map_err(|_| DlpackError::TooLarge)?;
        let bytes = elements.checked_mul(element).filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or(DlpackError::TooLarge)?;
        Ok(Self { dtype, shape: shape.to_vec(), strides, bytes })
    }
}

fn expect_natural(what: &'static str, numbers: &[i64]) -> Result<(), DlpackError> {
    match numbers.iter().enumerate().find(|(_, number)| **number < 0) {
        None => Ok(()),
        Some((dimension, &value)) => Err(DlpackError::Extent { what, dimension, value }),
    }
}

fn row_major(shape: &[i64]) -> Result<Vec<i64>, DlpackError> {
    let mut stride = 1i64;
    let mut strides = Vec::with_capacity(shape.len());
    for size in shape.iter().rev() {
        strides.push(stride);
        stride = stride.checked_mul((*size).max(1)).ok_or(DlpackError::TooLarge)?;
    }
    strides.reverse();
    Ok(strides)
}
