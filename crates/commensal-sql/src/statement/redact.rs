//! Hides the secrets in a statement's text, for process lists and logs.

/// Words which, as part of a key, indicate that the quoted value of that key is a secret.
const SECRETS: [&str; 6] = ["password", "passwd", "secret", "token", "credential", "access_key"];
const HIDDEN: &str = "***";

/// Returns the text with hidden secrets: the content of quotes after a key such as `s3.secret_key` and after
/// `IDENTIFIED BY`. In case of doubt, the content is hidden. A text with quotes in it may be (a part of) a statement, such as
/// PREPARE takes: if there may be a secret in it, it and all texts that follow are hidden.
#[must_use]
pub fn redacted(text: &str) -> String {
    let identified = text.to_lowercase().contains("identified");
    let mut shown = String::with_capacity(text.len());
    let mut word = String::new();
    let mut secret = false;
    let mut is_statement = false;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character.is_alphanumeric() || matches!(character, '_' | '.' | '@') {
            word.push(character);
            shown.push(character);
            continue;
        }
        secret |= announces(&std::mem::take(&mut word), identified);
        match character {
            '\'' | '"' | '`' => {
                let quoted = quoted(&mut characters, character);
                is_statement |= holds_secret(&quoted);
                if secret || is_statement {
                    shown.push(character);
                    shown.push_str(HIDDEN);
                    shown.push(character);
                    secret = false;
                } else {
                    secret = announces(&quoted, identified);
                    shown.push(character);
                    shown.push_str(&quoted);
                    shown.push(character);
                }
                continue;
            }
            ',' | ';' => secret = false,
            _ => {}
        }
        shown.push(character);
    }
    shown
}

/// Whether a secret follows this word. `identified` states whether the statement contains `IDENTIFIED`.
fn announces(word: &str, identified: bool) -> bool {
    let word = word.to_lowercase();
    (identified && word == "by") || SECRETS.iter().any(|secret| word.contains(secret))
}

/// Whether the content of quotes may be a part of a statement with a secret.
fn holds_secret(quoted: &str) -> bool {
    let lower = quoted.to_lowercase();
    quoted.contains(['\'', '"', '`'])
        && (lower.contains("identified") || SECRETS.iter().any(|secret| lower.contains(secret)))
}

/// Consumes the quoted content up to the closing quote, and returns it as written.
fn quoted(characters: &mut std::str::Chars<'_>, quote: char) -> String {
    let mut text = String::new();
    while let Some(character) = characters.next() {
        if character == quote {
            if characters.as_str().starts_with(quote) {
                characters.next();
                text.extend([quote, quote]);
                continue;
            }
            break;
        }
        text.push(character);
        if character == '\\' && quote != '`' {
            text.extend(characters.next());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden() {
        for (text, want) in [
            ("select 'a' from t", "select 'a' from t"),
            ("select a from t order by 'x', \"y\"", "select a from t order by 'x', \"y\""),
            ("set passwd = 'a', x = 'b'", "set passwd = '***', x = 'b'"),
            ("f('hdfs.credential' = 'k')", "f('hdfs.credential' = '***')"),
            ("select 'password' = 'x'", "select 'password' = '***'"),
            ("create user u identified by 'x'", "create user u identified by '***'"),
            (
                "create user u identified by password '*AB' default role 'r'",
                "create user u identified by password '***' default role 'r'",
            ),
            ("set password for u = password('x')", "set password for u = password('***')"),
            (
                "S3('URI' = 'https://b', \"s3.access_key\"= \"ak\", 's3.secret_key' = 's;''k', 'format'='csv')",
                "S3('URI' = 'https://b', \"s3.access_key\"= \"***\", 's3.secret_key' = '***', 'format'='csv')",
            ),
            ("create user u identified by 'x,y'", "create user u identified by '***'"),
            ("create user u identified with 'p' by 'x'", "create user u identified with 'p' by '***'"),
            (r#"s3("secret_key" = "a\"b", 'q' = 'r')"#, r#"s3("secret_key" = "***", 'q' = 'r')"#),
            ("select 'password", "select 'password'"),
            (r"f('aws.secret' = 'a\'b')", "f('aws.secret' = '***')"),
            ("f(session_token='open", "f(session_token='***'"),
            (r#"select 'f("secret_key"="k")', 'b'"#, "select '***', '***'"),
            (r#"f('a', '("secret_key"="', 'k', '")')"#, "f('a', '***', '***', '***')"),
            ("select 'identified by ''k'''", "select '***'"),
            ("select 'it''s a'", "select 'it''s a'"),
        ] {
            assert_eq!(redacted(text), want);
        }
    }
}
