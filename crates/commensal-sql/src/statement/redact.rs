//! Hides the secrets in a statement's text, for process lists and logs.

/// Words that mark a quoted text as a secret when they are part of its key.
const SECRETS: [&str; 6] = ["password", "passwd", "secret", "token", "credential", "access_key"];
const HIDDEN: &str = "'***'";

/// The text with every quoted piece hidden that follows a key such as `s3.secret_key`, or `IDENTIFIED BY`. In doubt a
/// piece is hidden.
#[must_use]
pub fn redacted(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut word = String::new();
    let mut secret = false;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character.is_alphanumeric() || matches!(character, '_' | '.' | '@') {
            word.push(character);
            shown.push(character);
            continue;
        }
        secret |= announces(&std::mem::take(&mut word));
        match character {
            '\'' | '"' | '`' => {
                let quoted = quoted(&mut characters, character);
                if secret {
                    shown.push_str(HIDDEN);
                    secret = false;
                } else {
                    secret = announces(&quoted);
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

fn announces(word: &str) -> bool {
    let word = word.to_lowercase();
    word == "by" || SECRETS.iter().any(|secret| word.contains(secret))
}

/// The content up to the end of the quotes, as written.
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
            ("create user u identified by 'x'", "create user u identified by '***'"),
            (
                "create user u identified by password '*AB' default role 'r'",
                "create user u identified by password '***' default role 'r'",
            ),
            ("set password for u = password('x')", "set password for u = password('***')"),
            (
                "S3('URI' = 'https://b', \"s3.access_key\"= \"ak\", 's3.secret_key' = 's;''k', 'format'='csv')",
                "S3('URI' = 'https://b', \"s3.access_key\"= '***', 's3.secret_key' = '***', 'format'='csv')",
            ),
            (r"f('aws.secret' = 'a\'b')", "f('aws.secret' = '***')"),
            ("f(session_token='open", "f(session_token='***'"),
        ] {
            assert_eq!(redacted(text), want);
        }
    }
}
