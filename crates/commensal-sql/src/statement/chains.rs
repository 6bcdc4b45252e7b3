//! How deep the tree of a statement becomes, which takes as much stack from whoever walks through it. The parser limits
//! parentheses; operators in a row are as deep as there are of them.

use sqlparser::tokenizer::Token;

/// Depth from which a statement is refused.
pub(super) const DEEPEST: usize = 400;

/// An operator that is no AND or OR takes longer to plan: each calculation finds the types of those in it again.
const WEIGHT: usize = 2;

const LOGICAL: [&str; 3] = ["and", "or", "xor"];
const OPERATORS: [&str; 7] = ["div", "mod", "like", "regexp", "rlike", "is", "collate"];
/// Words after which an expression begins anew.
const STARTS: [&str; 12] =
    ["select", "from", "where", "on", "having", "by", "limit", "when", "then", "else", "set", "values"];
const SETS: [&str; 4] = ["union", "except", "intersect", "join"];

/// What is between two parentheses.
#[derive(Default)]
struct Level {
    /// Weight of the operators of the present part of a condition.
    operators: usize,
    /// Depth of the deepest parentheses in it.
    inside: usize,
    /// Depth of the deepest part of the present condition.
    deepest: usize,
    /// Parts of the condition.
    parts: usize,
    /// Depth of the deepest expression before it.
    before: usize,
    /// Joins and set operations.
    sets: usize,
}

impl Level {
    fn end_part(&mut self) {
        self.deepest = self.deepest.max(self.operators + self.inside);
        (self.operators, self.inside) = (0, 0);
    }

    fn end_expression(&mut self) {
        self.end_part();
        self.before = self.before.max(self.parts + self.deepest);
        (self.parts, self.deepest) = (0, 0);
    }

    fn depth(mut self) -> usize {
        self.end_expression();
        self.before + self.sets
    }
}

/// Returns the depth of the tree of these tokens.
pub(super) fn depth<'a>(tokens: impl Iterator<Item = &'a Token>) -> usize {
    let mut outer = Vec::new();
    let mut level = Level::default();
    let end = |level: &mut Level, outer: &mut Vec<Level>| {
        let Some(around) = outer.pop() else { return };
        let depth = std::mem::replace(level, around).depth();
        level.inside = level.inside.max(depth + 1);
    };
    for token in tokens {
        match token {
            Token::LParen => outer.push(std::mem::take(&mut level)),
            Token::RParen => end(&mut level, &mut outer),
            Token::Comma => level.end_expression(),
            Token::Word(word) if word.quote_style.is_none() => {
                let is = |words: &[&str]| words.iter().any(|one| word.value.eq_ignore_ascii_case(one));
                if is(&STARTS) {
                    level.end_expression();
                } else if is(&LOGICAL) {
                    level.end_part();
                    level.parts += 1;
                } else if is(&OPERATORS) {
                    level.operators += WEIGHT;
                } else if is(&SETS) {
                    level.sets += 1;
                }
            }
            token if is_operator(token) => level.operators += WEIGHT,
            _ => {}
        }
    }
    while !outer.is_empty() {
        end(&mut level, &mut outer);
    }
    level.depth()
}

fn is_operator(token: &Token) -> bool {
    use Token::{
        Ampersand, Caret, Div, DoubleEq, Eq, Gt, GtEq, Lt, LtEq, Minus, Mod, Mul, Neq, Overlap, Pipe, Plus,
        ShiftLeft, ShiftRight, Spaceship, StringConcat,
    };
    matches!(
        token,
        Ampersand
            | Caret
            | Div
            | DoubleEq
            | Eq
            | Gt
            | GtEq
            | Lt
            | LtEq
            | Minus
            | Mod
            | Mul
            | Neq
            | Overlap
            | Pipe
            | Plus
            | ShiftLeft
            | ShiftRight
            | Spaceship
            | StringConcat
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlparser::dialect::MySqlDialect;
    use sqlparser::tokenizer::Tokenizer;

    #[test]
    fn rows_of_operators() {
        for (sql, want) in [
            ("select a, b from t", 0),
            ("select 1 + 2 * 3, 4 - 5 and 6", 4),
            ("select 1 from t where a = 1 or b = 2 or c = 3", 4),
            ("select (1 + (2 + (3 + 4)))", 9),
            ("select ((1 + 1) + 1) + 1, 1 + (1)", 8),
            ("select case when a = 1 then 2 when a = 2 then 3 else 4 end", 2),
            ("select 1 union select 2, 3 union all (select 4 union select 5)", 4),
            ("select `and` + `or`", 2),
            ("select * from a join b on a.x = b.x join c on b.y = c.y and 1", 5),
            (") + 1 + 1 ((", 6),
        ] {
            let tokens = Tokenizer::new(&MySqlDialect {}, sql).tokenize().unwrap();
            assert_eq!(depth(tokens.iter()), want, "{sql}");
        }
    }
}
