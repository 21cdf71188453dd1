//! Copies and fills.

mod batch;
mod linear;
mod memset;
mod planar;
mod transfer;

pub(crate) use batch::*;
pub(crate) use linear::*;
pub(crate) use memset::*;
pub(crate) use planar::*;
