//! Faults, made by the stand-ins.
