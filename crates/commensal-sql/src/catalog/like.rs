//! SQL's LIKE.

/// Whether a text is like a pattern: `%` stands for any characters, `_` for one, a backslash takes their meaning away.
/// Upper and lower case differ. Takes at most the product of both lengths in steps.
#[must_use]
pub fn like(pattern: &str, text: &str) -> bool {
    let pattern = pieces(pattern);
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut next) = (0, 0);
    // Where to go on when it does not fit: behind the last `%`, and one character later each time.
    let mut again: Option<(usize, usize)> = None;
    while let Some(character) = text.get(at) {
        match pattern.get(next) {
            Some(Piece::Any) => {
                again = Some((next + 1, at));
                next += 1;
            }
            Some(Piece::One) => (at, next) = (at + 1, next + 1),
            Some(Piece::Character(wanted)) if wanted == character => (at, next) = (at + 1, next + 1),
            _ => {
                let Some((behind, from)) = again else { return false };
                again = Some((behind, from + 1));
                (at, next) = (from + 1, behind);
            }
        }
    }
    pattern[next..].iter().all(|piece| *piece == Piece::Any)
}

#[derive(PartialEq, Eq)]
enum Piece {
    Any,
    One,
    Character(char),
}

fn pieces(pattern: &str) -> Vec<Piece> {
    let mut characters = pattern.chars();
    let mut pieces = Vec::new();
    while let Some(character) = characters.next() {
        pieces.push(match character {
            '%' => Piece::Any,
            '_' => Piece::One,
            '\\' => Piece::Character(characters.next().unwrap_or('\\')),
            other => Piece::Character(other),
        });
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, want) in [
            ("", "", true),
            ("", "a", false),
            ("%", "", true),
            ("test%", "test_group", true),
            ("%group", "test_group", true),
            ("%es%g%", "test_group", true),
            ("t_st", "test", true),
            ("t_st", "tst", false),
            (r"t\_st", "test", false),
            (r"t\_st", "t_st", true),
            (r"100\%", "100%", true),
            ("%ab", "aab", true),
            ("a%b%c", "abab", false),
            ("TEST", "test", false),
            ("größe_", "größen", true),
        ] {
            assert_eq!(like(pattern, text), want, "{text} like {pattern}");
        }
        // Would take for ever if it tried every way.
        assert!(!like(&"%a".repeat(40), &"b".repeat(20_000)));
    }
}
