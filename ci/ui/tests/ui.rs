//! What must not compile: each file beside this one says which hole or rule it proves.

#[test]
fn what_must_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/core/*.rs");
    cases.compile_fail("tests/pool/*.rs");
    cases.compile_fail("tests/torch/*.rs");
}
