use super::*;

fn error(bytes: &[u8]) -> String {
    format!("{:#}", Pickle::read(bytes).unwrap_err())
}

#[test]
fn plain_data_is_read() {
    // {"a": [1, -2, 2**40, 1.5, True, None, ("x",)]}
    let bytes = b"\x80\x04}\x94\x8c\x01a\x94](K\x01J\xfe\xff\xff\xff\x8a\x06\0\0\0\0\0\x01G?\xf8\0\0\0\0\0\0\x88N\x8c\x01x\x85es.";
    let pickle = Pickle::read(bytes).unwrap();
    let items = pickle.list(pickle.root(), "a").unwrap().iter().map(|id| pickle.get(*id).clone());
    let items = items.collect::<Vec<_>>();
    assert_eq!(items[..4], [Value::Int(1), Value::Int(-2), Value::Int(1 << 40), Value::Float(1.5)]);
    assert_eq!(items[4..6], [Value::Bool(true), Value::None]);
    let Value::List(inner) = &items[6] else { panic!("{items:?}") };
    assert_eq!(pickle.get(inner[0]), &Value::Text("x".to_owned()));
}

#[test]
fn nothing_is_imported_or_called() {
    // What pickle.dumps writes for an object whose __reduce__ is os.system("true").
    let bytes = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.";
    assert!(error(bytes).contains("asks to import or call"), "{}", error(bytes));
    assert!(error(b"cos\nsystem\n(S'true'\ntR.").contains("asks to import or call"));
}

#[test]
fn what_doubles_at_each_step_is_kept_once() {
    // A list of twice the one before, 4000 times over: 2^4000 items for who copies.
    let mut bytes = b"\x80\x02]".to_vec();
    for _ in 0..4000 {
        bytes.extend(b"2\x86");
    }
    bytes.push(b'.');
    let pickle = Pickle::read(&bytes).unwrap();
    assert_eq!(pickle.values.len(), 4001);
}

#[test]
fn a_list_may_hold_itself() {
    let pickle = Pickle::read(b"\x80\x02}\x8c\x01a]q\0h\0as.").unwrap();
    let id = pickle.field(pickle.root(), "a").unwrap();
    assert_eq!(pickle.list(pickle.root(), "a").unwrap(), [id]);
}

#[test]
fn every_cut_and_every_changed_byte_is_an_answer() {
    let bytes = b"\x80\x04\x95\x1f\0\0\0\0\0\0\0}\x94(\x8c\x01a\x94]\x94(K\x01M\x02\x03e\x8c\x01b\x94h\x02\x8c\x01c\x94\x8a\x01\x05u.";
    assert!(Pickle::read(bytes).is_ok());
    for end in 0..bytes.len() {
        assert!(Pickle::read(&bytes[..end]).is_err(), "{end}");
        for byte in 0..=255 {
            let mut changed = bytes.to_vec();
            changed[end] = byte;
            // Either is right; a panic or a hang is not.
            let _ = Pickle::read(&changed);
        }
    }
}

#[test]
fn errors_name_the_place_and_the_reason() {
    assert!(error(b"\x80\x04\x8c\x09ab").contains("at byte 2: it ends 7 bytes too early"));
    assert!(error(b"h\x05").contains("nothing was kept under 5"));
    assert!(error(b"e").contains("there is no mark"));
    let pickle = Pickle::read(b"}\x8c\x01aK\x05s.").unwrap();
    let list = pickle.list(pickle.root(), "a").unwrap_err().to_string();
    assert_eq!(list, "a: expected a list, found an integer");
    assert_eq!(pickle.text(pickle.root(), "b").unwrap_err().to_string(), "the key b is missing");
}
