//! MessagePack values as JSON.

use vcr_wire::{AsJson, Value};

#[test]
fn every_value_has_a_json() {
    let value = Value::Map(vec![
        (1_u64.into(), Value::Bin(vec![0, 255])),
        ("b\"".into(), Value::Array(vec![Value::F64(f64::NAN), Value::F32(0.5), u64::MAX.into(), Value::Nil])),
        (Value::Nil, Value::Int((-1_i64).into())),
        ("a".into(), Value::Array(vec![true.into(), Value::Ext(-1, vec![7]), "line\n".into()])),
    ]);
    let text = serde_json::to_string(&value).expect("it has a JSON");
    assert_eq!(text, r#"{"1":"00ff","b\"":[null,0.5,18446744073709551615,null],"null":-1,"a":[true,"07","line\n"]}"#);
}

#[test]
fn invalid_bytes_are_refused() {
    let nested = [vec![0x91; Value::MAX_DEPTH + 2], vec![0xc0]].concat();
    for (bytes, expected) in [
        (&b""[..], "but the frame ends here"),
        (b"\x92\x01", "but the frame ends here"),
        (b"\xdd\xff\xff\xff\xff", "but the frame ends here"),
        (b"\xc1", "expected an integer"),
        (b"\x81\x90\x01", "expected an integer, got an array"),
        (b"\x01\x02", "1 bytes follow"),
        (&nested, "nested too deeply"),
    ] {
        let error = serde_json::to_value(AsJson::new(bytes)).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}
