//! The layout against what PyTorch does, and against a model that is too simple to be wrong.

mod knobs;
mod largest;
mod model;
mod order;
mod pools;
mod pools_model;
mod properties;
mod support;
mod traces;
