//! MySQL's syntax for the parser of DataFusion: which operators there are, and how tightly they bind.
//!
//! sqlparser has a dialect for MySQL, but with the precedence of PostgreSQL's operators.

use super::error::Error;
use super::functions::COMPOUND_UNITS;
use datafusion::execution::context::SessionState;
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, CastKind, DataType, DateTimeField, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArgumentList, FunctionArguments, Ident, Interval, ObjectName, UnaryOperator, Value,
};
use datafusion::sql::sqlparser::dialect::{Dialect, MySqlDialect, Precedence};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;
use std::any::TypeId;

/// How tightly operators bind: the rows of "Operator Precedence" in MySQL's manual, from the last row to the first.
mod level {
    pub const OR: u8 = 10;
    pub const XOR: u8 = 20;
    pub const AND: u8 = 30;
    pub const NOT: u8 = 40;
    pub const COMPARISON: u8 = 50;
    /// MySQL's grammar, unlike the manual, makes LIKE, REGEXP, IN and BETWEEN bind tighter than comparisons.
    pub const PREDICATE: u8 = 60;
    pub const BIT_OR: u8 = 70;
    pub const BIT_AND: u8 = 80;
    pub const SHIFT: u8 = 90;
    pub const SUM: u8 = 100;
    pub const PRODUCT: u8 = 110;
    pub const BIT_XOR: u8 = 120;
    /// Unary minus and `~`.
    pub const SIGN: u8 = 130;
    /// `!` and `BINARY`.
    pub const BANG: u8 = 140;
    /// What MySQL does not have as an operator.
    pub const CAST: u8 = 150;
    pub const PERIOD: u8 = 200;
}

/// Parses one statement.
///
/// # Errors
/// The text is not one statement of MySQL's syntax.
pub fn parse(base: &SessionState, text: &str) -> Result<Statement, Error> {
    let mut statements = DFParserBuilder::new(text)
        .with_dialect(&Mysql)
        .with_recursion_limit(base.config().options().sql_parser.recursion_limit.get())
        .build()?
        .parse_statements()?;
    match (statements.pop_front(), statements.is_empty()) {
        (Some(statement), true) => Ok(statement),
        _ => Err(Error::Syntax("expected one statement".to_owned())),
    }
}

/// MySQL's dialect.
#[derive(Debug)]
pub struct Mysql;

/// Delegates methods without arguments to sqlparser's dialect for MySQL. The list contains all that it overrides.
macro_rules! as_in_sqlparser {
    ($($method:ident),* $(,)?) => {
        $(fn $method(&self) -> bool {
            MySqlDialect {}.$method()
        })*
    };
}

impl Dialect for Mysql {
    fn dialect(&self) -> TypeId {
        MySqlDialect {}.dialect()
    }

    fn is_identifier_start(&self, character: char) -> bool {
        MySqlDialect {}.is_identifier_start(character)
    }

    fn is_identifier_part(&self, character: char) -> bool {
        MySqlDialect {}.is_identifier_part(character)
    }

    fn is_delimited_identifier_start(&self, character: char) -> bool {
        MySqlDialect {}.is_delimited_identifier_start(character)
    }

    fn identifier_quote_style(&self, identifier: &str) -> Option<char> {
        MySqlDialect {}.identifier_quote_style(identifier)
    }

    fn is_table_factor_alias(&self, explicit: bool, keyword: &Keyword, parser: &mut Parser<'_>) -> bool {
        MySqlDialect {}.is_table_factor_alias(explicit, keyword, parser)
    }

    fn parse_statement(&self, parser: &mut Parser<'_>) -> Option<Result<ast::Statement, ParserError>> {
        MySqlDialect {}.parse_statement(parser)
    }

    fn supports_group_by_with_modifier(&self) -> bool {
        true
    }

    fn allow_extract_custom(&self) -> bool {
        true
    }

    as_in_sqlparser!(
        supports_string_literal_backslash_escape,
        supports_string_literal_concatenation,
        ignores_wildcard_escapes,
        supports_numeric_prefix,
        supports_bitwise_shift_operators,
        supports_multiline_comment_hints,
        require_interval_qualifier,
        supports_limit_comma,
        supports_create_table_select,
        supports_insert_set,
        supports_user_host_grantee,
        supports_table_hints,
        requires_single_line_comment_whitespace,
        supports_match_against,
        supports_select_modifiers,
        supports_set_names,
        supports_comma_separated_set_assignments,
        supports_update_order_by,
        supports_data_type_signed_suffix,
        supports_cross_join_constraint,
        supports_double_ampersand_operator,
        supports_comment_optimizer_hint,
        supports_constraint_keyword_without_name,
        supports_key_column_option,
    );

    fn prec_value(&self, precedence: Precedence) -> u8 {
        match precedence {
            Precedence::Period => level::PERIOD,
            Precedence::DoubleColon | Precedence::AtTz | Precedence::Colon | Precedence::PgOther => {
                level::CAST
            }
            Precedence::MulDivModOp => level::PRODUCT,
            Precedence::PlusMinus => level::SUM,
            Precedence::Xor => level::XOR,
            Precedence::Ampersand => level::BIT_AND,
            Precedence::Caret => level::BIT_XOR,
            Precedence::Pipe => level::BIT_OR,
            Precedence::Between | Precedence::Like => level::PREDICATE,
            Precedence::Eq | Precedence::Is => level::COMPARISON,
            Precedence::UnaryNot => level::NOT,
            Precedence::And => level::AND,
            Precedence::Or => level::OR,
        }
    }

    fn get_next_precedence(&self, parser: &Parser<'_>) -> Option<Result<u8, ParserError>> {
        let level = match &parser.peek_token_ref().token {
            Token::StringConcat => level::OR,
            Token::Overlap => level::AND,
            Token::ShiftLeft | Token::ShiftRight => level::SHIFT,
            Token::Word(word) if word.keyword == Keyword::MOD => level::PRODUCT,
            // sqlparser asks `prec_value` for all others.
            _ => return None,
        };
        Some(Ok(level))
    }

    fn parse_prefix(&self, parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
        let (operator, level) = match &parser.peek_token_ref().token {
            Token::Minus => (Prefix::Operator(UnaryOperator::Minus), level::SIGN),
            Token::Plus => (Prefix::Operator(UnaryOperator::Plus), level::SIGN),
            Token::Tilde => (Prefix::Operator(UnaryOperator::BitwiseNot), level::SIGN),
            Token::ExclamationMark => (Prefix::Operator(UnaryOperator::Not), level::BANG),
            Token::DoubleExclamationMark => (Prefix::TwiceNot, level::BANG),
            Token::Word(word) if word.keyword == Keyword::BINARY => (Prefix::Binary, level::BANG),
            Token::Word(word) if word.keyword == Keyword::INTERVAL => return interval(parser),
            Token::Word(word) if word.keyword == Keyword::CAST => {
                let is_call = parser.peek_nth_token_ref(1).token == Token::LParen;
                return is_call.then(|| cast(parser));
            }
            Token::Word(word) if word.quote_style.is_none() && is_without_parentheses(&word.value) => {
                if parser.peek_nth_token_ref(1).token == Token::LParen {
                    return None;
                }
                let name = word.value.clone();
                parser.next_token();
                return Some(Ok(call(&name, Vec::new())));
            }
            Token::Word(word) if word.quote_style.is_none() && word.value.starts_with('_') => {
                return introduced(parser);
            }
            _ => return None,
        };
        parser.next_token();
        Some(parser.parse_subexpr(level).map(|expr| operator.of(expr)))
    }

    fn parse_infix(
        &self,
        parser: &mut Parser<'_>,
        left: &Expr,
        precedence: u8,
    ) -> Option<Result<Expr, ParserError>> {
        let op = match &parser.peek_token_ref().token {
            Token::Word(word) if word.keyword == Keyword::DIV => BinaryOperator::MyIntegerDivide,
            Token::Word(word) if word.keyword == Keyword::MOD => BinaryOperator::Modulo,
            // MySQL concatenates only with PIPES_AS_CONCAT in `sql_mode`.
            Token::StringConcat => BinaryOperator::Or,
            _ => return None,
        };
        parser.next_token();
        let right = parser.parse_subexpr(precedence);
        let left = Box::new(left.clone());
        Some(right.map(|right| Expr::BinaryOp { left, op, right: Box::new(right) }))
    }
}

/// A word or sign before an expression.
enum Prefix {
    Operator(UnaryOperator),
    /// `!!x`, which is one token.
    TwiceNot,
    /// `BINARY x`, a cast.
    Binary,
}

impl Prefix {
    fn of(self, expr: Expr) -> Expr {
        let expr = Box::new(expr);
        match self {
            Prefix::Operator(op) => Expr::UnaryOp { op, expr },
            Prefix::TwiceNot => {
                let op = UnaryOperator::Not;
                Expr::UnaryOp { op, expr: Box::new(Expr::UnaryOp { op, expr }) }
            }
            Prefix::Binary => cast_to_binary(expr),
        }
    }
}

/// Whether this is the name of a function that MySQL calls without parentheses, too, and that is no keyword for sqlparser.
fn is_without_parentheses(name: &str) -> bool {
    ["current_user", "utc_date", "utc_time", "utc_timestamp"]
        .iter()
        .any(|function| function.eq_ignore_ascii_case(name))
}

/// Parses `CAST(x AS type)`, where a type of texts may have a character set.
fn cast(parser: &mut Parser<'_>) -> Result<Expr, ParserError> {
    parser.next_token();
    parser.expect_token(&Token::LParen)?;
    let expr = Box::new(parser.parse_expr()?);
    parser.expect_keyword_is(Keyword::AS)?;
    let data_type = parser.parse_data_type()?;
    let has_set =
        parser.parse_keywords(&[Keyword::CHARACTER, Keyword::SET]) || parser.parse_keyword(Keyword::CHARSET);
    let charset = if has_set { Some(parser.parse_object_name(false)?) } else { None };
    parser.expect_token(&Token::RParen)?;
    Ok(match charset {
        Some(charset) => Expr::Convert {
            is_try: false,
            expr,
            data_type: Some(data_type),
            charset: Some(charset),
            target_before_value: false,
            styles: Vec::new(),
        },
        None => Expr::Cast { kind: CastKind::Cast, expr, data_type, array: false, format: None },
    })
}

fn cast_to_binary(expr: Box<Expr>) -> Expr {
    let (kind, data_type) = (CastKind::Cast, DataType::Binary(None));
    Expr::Cast { kind, expr, data_type, array: false, format: None }
}

/// Parses an interval in a compound unit, such as `INTERVAL '1:30' HOUR_MINUTE`.
fn compound_interval(parser: &mut Parser<'_>) -> Result<Expr, ParserError> {
    parser.next_token();
    let value = Box::new(parser.parse_expr()?);
    let unit = parser.parse_identifier()?;
    if !COMPOUND_UNITS.contains(&unit.value.to_ascii_lowercase().as_str()) {
        return Err(ParserError::ParserError("not a compound unit".to_owned()));
    }
    Ok(Expr::Interval(Interval {
        value,
        leading_field: Some(DateTimeField::Custom(unit)),
        leading_precision: None,
        last_field: None,
        fractional_seconds_precision: None,
    }))
}

/// Parses the function `INTERVAL(x, a, b, …)`. An interval with one value in parentheses and a unit is left to sqlparser.
fn interval(parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
    if let Ok(Some(interval)) = parser.maybe_parse(compound_interval) {
        return Some(Ok(interval));
    }
    let arguments = parser.maybe_parse(|parser| {
        parser.next_token();
        parser.expect_token(&Token::LParen)?;
        let arguments = parser.parse_comma_separated(Parser::parse_expr)?;
        parser.expect_token(&Token::RParen)?;
        match arguments.len() {
            1 => Err(ParserError::ParserError("an interval".to_owned())),
            _ => Ok(arguments),
        }
    });
    Some(Ok(call("interval", arguments.ok().flatten()?)))
}

/// Calls a function.
fn call(name: &str, arguments: Vec<Expr>) -> Expr {
    let plain = |argument| FunctionArg::Unnamed(FunctionArgExpr::Expr(argument));
    let args = arguments.into_iter().map(plain).collect();
    let list = FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() };
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(list),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// Parses a string that its character set introduces: `_utf8mb4'a'`, `_binary'a'`.
fn introduced(parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
    let Token::Word(set) = &parser.peek_token_ref().token else { return None };
    let set = set.value.to_ascii_lowercase();
    let is_known = ["_binary", "_utf8", "_utf8mb3", "_utf8mb4", "_ascii"].contains(&set.as_str());
    let Token::SingleQuotedString(text) = &parser.peek_nth_token_ref(1).token else { return None };
    if !is_known {
        return None;
    }
    let text = Box::new(Expr::Value(Value::SingleQuotedString(text.clone()).into()));
    parser.next_token();
    parser.next_token();
    Some(Ok(if set == "_binary" { cast_to_binary(text) } else { *text }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::ast::{VisitMut, VisitorMut};
    use std::ops::ControlFlow;

    /// The table of MySQL's manual, from the tightest to the loosest; operators of one row bind from left to right.
    const TABLE: [&[&str]; 11] = [
        &["^"],
        &["*", "/", "DIV", "%", "MOD"],
        &["-", "+"],
        &["<<", ">>"],
        &["&"],
        &["|"],
        &["LIKE", "REGEXP", "RLIKE", "NOT LIKE", "BETWEEN 1 AND"],
        &["=", "<=>", ">=", ">", "<=", "<", "<>", "!="],
        &["AND", "&&"],
        &["XOR"],
        &["OR", "||"],
    ];

    /// Prefixes, and the row of the table whose operators, and all below it, bind looser.
    const PREFIXES: [(&str, usize); 5] = [("-", 0), ("~", 0), ("!", 0), ("BINARY ", 0), ("NOT ", 8)];

    /// The expression without parentheses in its tree.
    fn tree(text: &str) -> Expr {
        struct Strip;
        impl VisitorMut for Strip {
            type Break = ();
            fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
                if let Expr::Nested(inner) = expr {
                    *expr = inner.as_ref().clone();
                }
                ControlFlow::Continue(())
            }
        }
        let mut parser = Parser::new(&Mysql).try_with_sql(text).unwrap();
        let mut expr = parser.parse_expr().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(parser.peek_token_ref().token, Token::EOF, "{text}");
        let _: ControlFlow<()> = VisitMut::visit(&mut expr, &mut Strip);
        expr
    }

    fn operators() -> impl Iterator<Item = (usize, &'static str)> {
        TABLE.iter().enumerate().flat_map(|(row, operators)| operators.iter().map(move |name| (row, *name)))
    }

    #[test]
    fn each_pair_of_operators_binds_as_in_mysqls_manual() {
        let mut pairs = 0;
        for (one_row, one) in operators() {
            for (other_row, other) in operators() {
                let plain = format!("a {one} b {other} c");
                let meant = match one_row <= other_row {
                    true => format!("(a {one} b) {other} c"),
                    false => format!("a {one} (b {other} c)"),
                };
                assert_eq!(tree(&plain), tree(&meant), "{plain} means {meant}");
                pairs += 1;
            }
            for (prefix, row) in PREFIXES {
                let plain = format!("{prefix}a {one} b");
                let meant = match row <= one_row {
                    true => format!("({prefix}a) {one} b"),
                    false => format!("{prefix}(a {one} b)"),
                };
                assert_eq!(tree(&plain), tree(&meant), "{plain} means {meant}");
            }
        }
        assert_eq!(pairs, 30 * 30);
    }

    #[test]
    fn what_only_mysql_has() {
        for (text, meant) in [
            ("a || b", "a OR b"),
            ("a && b", "a AND b"),
            ("a MOD b", "a % b"),
            ("!a = b", "(NOT (a)) = b"),
            ("!!a = b", "(NOT (NOT (a))) = b"),
            ("- a ^ b", "(- a) ^ b"),
            ("a IN (1) = b", "(a IN (1)) = b"),
            ("a = b IN (1)", "a = (b IN (1))"),
            ("a = b IS NULL", "(a = b) IS NULL"),
            ("a BETWEEN b | 1 AND c + 1 AND d", "(a BETWEEN (b | 1) AND (c + 1)) AND d"),
            ("_utf8mb4'x'", "'x'"),
            ("_binary'x'", "BINARY 'x'"),
            ("_column", "_column"),
            ("current_user", "current_user()"),
            ("UTC_DATE = b", "(UTC_DATE()) = b"),
            ("t.current_user", "t.current_user"),
            ("cast(a as char character set utf8mb4)", "convert(a, char character set utf8mb4)"),
            ("cast(a as char(2) charset utf8mb4)", "convert(a, char(2) character set utf8mb4)"),
        ] {
            assert_eq!(tree(text), tree(meant), "{text} means {meant}");
        }
    }
}
