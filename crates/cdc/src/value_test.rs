use postgres_types::Type;
use proptest::prelude::*;

use super::*;

fn shown(built_in: &Type, text: &str) -> String {
    let mut out = b"<".to_vec();
    Rendering::of_type(built_in.oid()).write(&mut out, text.as_bytes()).unwrap();
    String::from_utf8(out.split_off(1)).unwrap()
}

/// Pairs of what Postgres writes and what is shown.
fn check(built_in: Type, pairs: &[(&str, &str)]) {
    for (text, expected) in pairs {
        assert_eq!(shown(&built_in, text), *expected, "{built_in}");
    }
}

#[test]
fn numbers_are_numbers_with_their_digits() {
    check(Type::INT8, &[("0", "0"), ("-9223372036854775808", "-9223372036854775808")]);
    check(Type::OID, &[("4294967295", "4294967295")]);
    check(
        Type::FLOAT8,
        &[
            ("5e-324", "5e-324"),
            ("1.7976931348623157e+308", "1.7976931348623157e+308"),
            ("-0", "-0"),
            ("NaN", r#""NaN""#),
            ("-Infinity", r#""-Infinity""#),
        ],
    );
    check(Type::NUMERIC, &[("1.50", r#""1.50""#), ("NaN", r#""NaN""#)]);
    check(Type::MONEY, &[("-$1,000.00", r#""-$1,000.00""#)]);
}

#[test]
fn what_is_no_number_is_a_string() {
    let wrong = ["", "-", "01", "+1", "1.", ".5", "1e", "1e+", "1 ", "0x1", "1,2", "--1", "1\n"];
    for text in wrong {
        assert_eq!(shown(&Type::FLOAT8, text), serde_json::to_string(text).unwrap(), "{text:?}");
    }
}

#[test]
fn truth_and_bytes() {
    check(Type::BOOL, &[("t", "true"), ("f", "false"), ("maybe", r#""maybe""#)]);
    check(Type::BYTEA, &[(r"\x", r#""""#), (r"\x00ff", r#""AP8=""#), (r"\x000102", r#""AAEC""#)]);
    let long: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let hex: String = long.iter().map(|byte| format!("{byte:02x}")).collect();
    check(Type::BYTEA, &[(&format!(r"\x{hex}"), &format!("\"{}\"", STANDARD.encode(&long)))]);
    for text in [r"\001", "", r"\x0", r"\xzz"] {
        let written = Rendering::of_type(Type::BYTEA.oid()).write(&mut Vec::new(), text.as_bytes());
        assert_eq!(written, Err(Reason::NotHex), "{text}");
    }
}

#[test]
fn moments_are_iso_8601_as_far_as_that_reaches() {
    check(
        Type::TIMESTAMP,
        &[
            ("2026-11-16 05:00:00.123456", r#""2026-11-16T05:00:00.123456""#),
            ("294276-12-31 23:59:59.999999", r#""294276-12-31T23:59:59.999999""#),
            ("4713-01-01 00:00:00 BC", r#""4713-01-01T00:00:00 BC""#),
            ("infinity", r#""infinity""#),
            ("a \"b", r#""a \"b""#),
        ],
    );
    check(
        Type::TIMESTAMPTZ,
        &[
            ("2026-11-16 05:00:00+00", r#""2026-11-16T05:00:00Z""#),
            ("0044-03-15 12:00:00.5+00 BC", r#""0044-03-15T12:00:00.5Z BC""#),
            ("2026-11-16 05:00:00+05:30", r#""2026-11-16T05:00:00+05:30""#),
            ("-infinity", r#""-infinity""#),
        ],
    );
    check(Type::DATE, &[("2026-11-16", r#""2026-11-16""#), ("0044-03-15 BC", r#""0044-03-15 BC""#)]);
    check(Type::TIMETZ, &[("05:00:00.5+00", r#""05:00:00.5+00""#)]);
}

#[test]
fn arrays_are_arrays() {
    check(
        Type::INT4_ARRAY,
        &[
            ("{}", "[]"),
            ("{1,NULL,-3}", "[1,null,-3]"),
            ("{{1,2},{3,4}}", "[[1,2],[3,4]]"),
            ("[0:1]={1,2}", r#""[0:1]={1,2}""#),
        ],
    );
    check(
        Type::TEXT_ARRAY,
        &[
            (r#"{a,"NULL",NULL,"",ü}"#, r#"["a","NULL",null,"","ü"]"#),
            (r#"{"a,b","{}","x\"y\\z"}"#, r#"["a,b","{}","x\"y\\z"]"#),
        ],
    );
    check(Type::BOX_ARRAY, &[("{(1,1),(0,0);(2,2),(1,1)}", r#"["(1,1),(0,0)","(2,2),(1,1)"]"#)]);
    check(Type::BYTEA_ARRAY, &[(r#"{"\\x00ff",NULL}"#, r#"["AP8=",null]"#)]);
    check(Type::TIMESTAMPTZ_ARRAY, &[(r#"{"2026-11-16 05:00:00+00"}"#, r#"["2026-11-16T05:00:00Z"]"#)]);
    check(Type::FLOAT4_ARRAY, &[("{NaN,1.5}", r#"["NaN",1.5]"#)]);
    check(Type::INT2_VECTOR, &[("1 2", r#""1 2""#)]);
}

#[test]
fn what_is_no_array_is_a_string() {
    for text in
        ["", "{", "}", "{1", "{1}}", "{1}x", "{,}", "{1,}", "{\"a}", "{\"a\\", "{a\"b\"}", "{{{{{{{1}}}}}}}"]
    {
        assert_eq!(shown(&Type::TEXT_ARRAY, text), serde_json::to_string(text).unwrap(), "{text:?}");
    }
}

#[test]
fn every_control_character_is_escaped_as_json_libraries_do() {
    let text: String = (1..0x90_u32).chain([0x2028, 0x1_F600]).filter_map(char::from_u32).collect();
    assert_eq!(shown(&Type::TEXT, &text), serde_json::to_string(&text).unwrap());
}

#[test]
fn text_that_is_not_utf_8_has_no_form() {
    for built_in in [Type::TEXT, Type::INT4, Type::TEXT_ARRAY, Type::TIMESTAMP, Type::BOOL] {
        for text in [&b"\xff"[..], b"{\"a\xff\"}", b"1 \xff"] {
            let written = Rendering::of_type(built_in.oid()).write(&mut Vec::new(), text);
            assert_eq!(written, Err(Reason::NotUtf8), "{built_in}");
        }
    }
}

fn some_type() -> impl Strategy<Value = Type> {
    prop::sample::select(vec![
        Type::TEXT,
        Type::INT8,
        Type::FLOAT8,
        Type::BOOL,
        Type::TIMESTAMP,
        Type::TIMESTAMPTZ,
        Type::TEXT_ARRAY,
        Type::INT4_ARRAY,
        Type::BOX_ARRAY,
        Type::TIMESTAMPTZ_ARRAY,
        Type::BYTEA_ARRAY,
        Type::BYTEA,
    ])
}

proptest! {
    #[test]
    fn whatever_the_text_is_it_is_json_on_one_line(
        built_in in some_type(),
        text in prop_oneof![any::<String>(), r#"[{},;"\\ 0-9a\n+:TNULBC.-]{0,40}"#],
    ) {
        let mut out = Vec::new();
        if Rendering::of_type(built_in.oid()).write(&mut out, text.as_bytes()).is_ok() {
            let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
            prop_assert!(!out.contains(&b'\n'));
            if built_in == Type::TEXT {
                prop_assert_eq!(value, serde_json::Value::String(text));
            }
        }
    }

    #[test]
    fn bytes_never_panic(built_in in some_type(), text in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = Rendering::of_type(built_in.oid()).write(&mut Vec::new(), &text);
    }

    /// Written as Postgres writes arrays, with every element in quotes.
    #[test]
    fn elements_come_back(elements in prop::collection::vec(any::<Option<String>>(), 1..6)) {
        let texts: Vec<String> = elements
            .iter()
            .map(|element| match element {
                None => "NULL".to_owned(),
                Some(text) => format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\"")),
            })
            .collect();
        let shown = shown(&Type::TEXT_ARRAY, &format!("{{{}}}", texts.join(",")));
        prop_assert_eq!(serde_json::from_str::<Vec<Option<String>>>(&shown).unwrap(), elements);
    }
}
