//! Programs that must not compile, in `tests`: in a package of their own, so that little else is built again for them.
