//! What must not compile: each file in `ui/` says which rule it proves.

#[test]
fn what_must_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
