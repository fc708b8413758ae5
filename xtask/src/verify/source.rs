//! Rust source with its comments and literals blanked out, so that a search finds only code.
//!
//! Line breaks stay where they are: a finding's line number is the file's.

/// What is left of the code, without the unit tests at its end.
pub(super) fn code_without_tests(text: &str) -> String {
    let mut code = blank(text);
    if let Some(start) = tests_start(&code) {
        code.truncate(start);
    }
    code
}

/// The code with comments, strings and characters as spaces.
pub(super) fn blank(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let token_length = comment(rest)
            .or_else(|| raw_string(rest, &code))
            .or_else(|| string(rest))
            .or_else(|| character(rest));
        match token_length {
            Some(length) => {
                let (token, after) = rest.split_at(length);
                code.extend(token.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
                rest = after;
            }
            None => code.extend(advance(&mut rest)),
        }
    }
    code
}

fn advance(rest: &mut &str) -> Option<char> {
    let mut chars = rest.chars();
    let first = chars.next();
    *rest = chars.as_str();
    first
}

fn comment(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    rest.starts_with("/*").then_some(())?;
    let (mut depth, mut at) = (0_usize, 0);
    loop {
        let Some(next) = rest[at..].find(['/', '*']).map(|offset| at + offset) else {
            return Some(rest.len());
        };
        match rest.get(next..next + 2) {
            Some("/*") => (depth, at) = (depth + 1, next + 2),
            Some("*/") => (depth, at) = (depth - 1, next + 2),
            _ => at = next + 1,
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

/// `r"…"`, `r#"…"#`, also after `b` or `c`; not the raw identifier `r#type`, nor a name's end.
fn raw_string(rest: &str, before: &str) -> Option<usize> {
    let hashes_and_on = rest.strip_prefix('r')?;
    let fence = hashes_and_on.len() - hashes_and_on.trim_start_matches('#').len();
    hashes_and_on[fence..].strip_prefix('"')?;
    let mut word = before.chars().rev().take_while(|c| c.is_alphanumeric() || *c == '_');
    if !matches!((word.next(), word.next()), (None | Some('b' | 'c'), None)) {
        return None;
    }
    let opening = 1 + fence + 1;
    let closing = format!("\"{}", "#".repeat(fence));
    let end = rest[opening..].find(&closing).map(|offset| opening + offset + closing.len());
    Some(end.unwrap_or(rest.len()))
}

fn string(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('"')?;
    let mut escaped = false;
    for (offset, c) in body.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(1 + offset + 1),
            _ => {}
        }
    }
    Some(rest.len())
}

/// `'x'` and `'\n'`; a lifetime has no closing quote right after its first letter.
fn character(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('\'')?;
    let first = body.chars().next()?;
    if first == '\\' {
        // The escaped character may itself be a quote.
        let escaped = body.chars().nth(1)?.len_utf8();
        let closing = body[1 + escaped..].find('\'')?;
        return Some(1 + 1 + escaped + closing + 1);
    }
    body[first.len_utf8()..].starts_with('\'').then_some(1 + first.len_utf8() + 1)
}

/// Where `#[cfg(test)] mod … {` begins.
fn tests_start(code: &str) -> Option<usize> {
    const MARK: &str = "#[cfg(test)]";
    code.match_indices(MARK).map(|(start, _)| start).find(|start| {
        let item = code[start + MARK.len()..].trim_start();
        let head = item.split(['{', ';']).next().unwrap_or_default();
        item.starts_with("mod ") && item[head.len()..].starts_with('{')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, code: &str) {
        let blanked = blank(text);
        assert_eq!(blanked.split_whitespace().collect::<Vec<_>>().join(" "), code);
        assert_eq!(blanked.lines().count(), text.lines().count(), "lines stay");
    }

    #[test]
    fn comments_and_literals_vanish_and_code_stays() {
        check("a // b\nc", "a c");
        check("a /* b /* c */ d */ e", "a e");
        check(r#"a "b // \" c" d"#, "a d");
        check(r###"a r#"b " c"# d"###, "a d");
        check("br\"x\" y", "b y");
        check("let c = '\"'; d", "let c = ; d");
        check(r"let c = '\''; d", "let c = ; d");
        check("fn f<'a>(x: &'a str) // y", "fn f<'a>(x: &'a str)");
        check("r#type for\"x\"", "r#type for");
        check("\"é // ü\" é", "é");
    }

    #[test]
    fn unit_tests_at_the_end_do_not_count() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n  HashMap\n}\n";
        assert_eq!(code_without_tests(text).trim(), "fn a() {}");
        let outside = "#[cfg(test)]\nmod tests;\nfn a() {}";
        assert!(code_without_tests(outside).contains("fn a"));
    }
}
