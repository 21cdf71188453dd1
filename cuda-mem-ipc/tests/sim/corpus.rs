//! What fuzzing found worth keeping, again: the targets `frame`, `connection` and `hand_over` of `ci/fuzz`.

mod connection;
mod frame;
mod hand_over;

const FRAME: &str = include_str!("../../../ci/fuzz/seeds/frame.txt");
const HAND_OVER: &str = include_str!("../../../ci/fuzz/seeds/hand_over.txt");
const CONNECTION: &str = include_str!("../../../ci/fuzz/seeds/connection.txt");

/// One input a line, as hexadecimal digits; lines with `#` say something.
fn inputs(text: &str) -> Vec<Vec<u8>> {
    let byte = |digits: &[u8; 2]| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap();
    let input = |line: &str| {
        let (pairs, rest) = line.as_bytes().as_chunks::<2>();
        assert!(rest.is_empty(), "half a byte: {line}");
        pairs.iter().map(byte).collect::<Vec<_>>()
    };
    let inputs = text.lines().filter(|line| !line.starts_with('#')).map(input).collect::<Vec<_>>();
    assert!(inputs.len() > 10, "the corpus is lost");
    inputs
}

#[test]
fn frames_are_read_as_they_are_written() {
    let read = inputs(FRAME).iter().map(|input| frame::check(input)).filter(|&read| read).count();
    assert!(read > 5, "the corpus has no frames any more, only refusals");
}

#[test]
fn messages_of_a_shared_pool_are_read_as_they_are_written() {
    let read = inputs(HAND_OVER).iter().map(|input| hand_over::check(input)).filter(|&read| read).count();
    assert!(read > 5, "the corpus has no messages any more, only refusals");
}

#[test]
fn connections_believe_nothing_and_leave_nothing_open() {
    let received = inputs(CONNECTION).iter().map(|input| connection::check(input)).sum::<usize>();
    assert!(received > 5, "the corpus has no messages any more, only refusals");
}
