use std::io::Cursor;

use super::*;

/// Takes dictionaries with the key "n", whose values it counts.
#[derive(Default)]
struct Numbers(Vec<Value>);

impl Taker for Numbers {
    fn is_record(&self, pairs: &[[Value; 2]]) -> bool {
        // The first text of the store.
        pairs.iter().any(|[key, _]| *key == Value::Text(0))
    }

    fn take(&mut self, _: &Store, pairs: &[[Value; 2]]) -> Result<Option<Value>> {
        if !self.is_record(pairs) {
            return Ok(None);
        }
        let start = u32::try_from(self.0.len())?;
        self.0.extend(pairs.iter().map(|[_, value]| *value));
        Ok(Some(Value::Run { kind: Kind::Event, start, count: 1 }))
    }
}

fn run(bytes: &[u8]) -> Result<(Store, Value, Numbers)> {
    let mut numbers = Numbers::default();
    let mut store = Store::default();
    store.text("n")?;
    let (store, root) = read(Box::new(Cursor::new(bytes.to_vec())), store, &mut numbers, &mut |_| {})?;
    Ok((store, root, numbers))
}

fn error(bytes: &[u8]) -> String {
    format!("{:#}", run(bytes).err().unwrap())
}

/// As Python pickles an expression.
fn pickled(expression: &str, protocol: u32) -> Vec<u8> {
    let script =
        format!("import pickle, sys\nsys.stdout.buffer.write(pickle.dumps({expression}, {protocol}))");
    let output = std::process::Command::new("python3").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn plain_data_is_read() {
    for protocol in 2..=5 {
        let bytes = pickled("{'a': [1, -2, 2**40, -2**40, 2**70, 1.5, True, None, ('x',)]}", protocol);
        let (store, root, _) = run(&bytes).unwrap();
        let items = store.list_of(store.field(root, "a").unwrap(), "a").unwrap();
        let numbers = [Value::Int(1), Value::Int(-2), Value::Int(1 << 40), Value::Int(-1 << 40), Value::Huge];
        assert_eq!(items[..5], numbers, "protocol {protocol}");
        assert_eq!(items[5..8], [Value::Float(1.5f64.to_bits()), Value::Bool(true), Value::None]);
        let Value::List(inner) = items[8] else { panic!("{items:?}") };
        assert!(matches!(store.items(inner), [Value::Text(text)] if store.text_of(*text) == "x"));
    }
}

#[test]
fn records_are_taken_and_their_list_is_one_run() {
    for protocol in 2..=5 {
        let bytes =
            pickled("{'all': [{'n': k} for k in range(5000)], 'other': [{'n': -1}, {'m': 2}]}", protocol);
        let (store, root, numbers) = run(&bytes).unwrap();
        let all = store.list_of(store.field(root, "all").unwrap(), "all").unwrap();
        assert_eq!(all, [Value::Run { kind: Kind::Event, start: 0, count: 5000 }], "protocol {protocol}");
        assert_eq!(numbers.0.len(), 5001);
        assert!(numbers.0[..5000].iter().enumerate().all(|(at, value)| *value == Value::Int(at as i64)));
        let other = store.list_of(store.field(root, "other").unwrap(), "other").unwrap();
        assert!(matches!(other, [Value::Run { start: 5000, count: 1, .. }, Value::Dict(_)]), "{other:?}");
    }
}

#[test]
fn what_is_referred_to_again_is_kept_once() {
    let script = "(lambda f: (lambda s: [{'n': s}, {'n': s}, [f, f], s])([f, f]))({'line': 1})";
    let (store, root, numbers) = run(&pickled(script, 4)).unwrap();
    let items = store.list_of(root, "root").unwrap();
    // Both records have the list that comes last, whose items are one frame.
    assert_eq!(numbers.0, [items[2], items[2]]);
    assert_eq!(items[1], items[2]);
    let frames = store.list_of(items[1], "frames").unwrap();
    assert!(frames.len() == 2 && frames[0] == frames[1]);
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
    let mut bytes = b"\x80\x02)".to_vec();
    for _ in 0..4000 {
        bytes.extend(b"2\x86");
    }
    bytes.push(b'.');
    assert!(run(&bytes).is_ok());
}

#[test]
fn what_holds_itself_is_refused() {
    assert!(error(b"\x80\x02]q\0(h\0e.").contains("it holds itself"));
    assert!(error(b"\x80\x02}\x8c\x01a]q\0h\0as.").contains("was used already"));
    assert!(error(b"]2a.").contains("doubles what is not finished"));
}

#[test]
fn every_cut_and_every_changed_byte_is_an_answer() {
    let bytes = b"\x80\x04\x95\x1f\0\0\0\0\0\0\0}\x94(\x8c\x01a\x94]\x94(K\x01M\x02\x03e\x8c\x01b\x94h\x02\x8c\x01c\x94\x8a\x01\x05u.";
    assert!(run(bytes).is_ok());
    for end in 0..bytes.len() {
        assert!(run(&bytes[..end]).is_err(), "{end}");
        for byte in 0..=255 {
            let mut changed = bytes.to_vec();
            changed[end] = byte;
            // Either is right; a panic or a hang is not.
            let _ = run(&changed);
        }
    }
}

#[test]
fn errors_name_the_place_and_the_reason() {
    assert!(error(b"\x80\x04\x8c\x09ab").contains("at byte 2: the file ends here, 7 bytes too early"));
    assert!(error(b"h\x05").contains("nothing was kept under 5"));
    assert!(error(b"e").contains("there is no mark"));
    let (store, root, _) = run(b"}\x8c\x01aK\x05s.").unwrap();
    let list = store.list_of(store.field(root, "a").unwrap(), "a").unwrap_err().to_string();
    assert_eq!(list, "a: expected a list, found an integer");
    assert_eq!(store.field(root, "b").unwrap_err().to_string(), "the key b is missing");
}
