//! Functions that MySQL's clients use and that DataFusion has under another name: `IF(…)`, `LOCATE(…)`, `CAST(… AS
//! SIGNED)`.

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    CaseWhen, CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident,
    ObjectName,
};

/// Rewrites an expression to the form that DataFusion knows. Does not rewrite the operands of the expression.
pub fn change(expr: &mut Expr) {
    match expr {
        Expr::Function(function) => {
            if let Some(other) = function_of(function) {
                *expr = other;
            }
        }
        Expr::Cast { data_type, .. } => number(data_type),
        Expr::Convert { expr: value, data_type: Some(kind), is_try: false, charset: None, .. } => {
            let mut data_type = kind.clone();
            number(&mut data_type);
            let value = value.clone();
            *expr = Expr::Cast { kind: CastKind::Cast, expr: value, data_type, array: false, format: None };
        }
        _ => {}
    }
}

/// Replaces a type that only MySQL's CAST accepts with the column type that has the same values.
fn number(kind: &mut DataType) {
    match kind {
        DataType::Signed | DataType::SignedInteger => *kind = DataType::BigInt(None),
        DataType::Unsigned | DataType::UnsignedInteger => *kind = DataType::BigIntUnsigned(None),
        _ => {}
    }
}

/// Returns the replacement of a function; `None` if DataFusion has the function under the same name.
fn function_of(function: &mut Function) -> Option<Expr> {
    let name = function.name.to_string().to_lowercase();
    match (name.as_str(), arguments(function)?.as_slice()) {
        ("if", [condition, yes, no]) => Some(Expr::Case {
            case_token: AttachedToken::empty(),
            end_token: AttachedToken::empty(),
            operand: None,
            conditions: vec![CaseWhen { condition: condition.clone(), result: yes.clone() }],
            else_result: Some(Box::new(no.clone())),
        }),
        ("ucase", [_]) => renamed(function, "upper"),
        ("lcase", [_]) => renamed(function, "lower"),
        ("locate", [_, _]) => {
            if let FunctionArguments::List(list) = &mut function.args {
                list.args.reverse();
            }
            renamed(function, "strpos")
        }
        _ => None,
    }
}

fn renamed(function: &Function, name: &str) -> Option<Expr> {
    let name = ObjectName::from(vec![Ident::new(name)]);
    Some(Expr::Function(Function { name, ..function.clone() }))
}

/// Returns the arguments of a function, if all are unnamed expressions.
fn arguments(function: &Function) -> Option<Vec<Expr>> {
    let FunctionArguments::List(list) = &function.args else { return None };
    let plain = |argument: &FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    list.args.iter().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::dialect::MySqlDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    #[test]
    fn expressions() {
        for (mysqls, ours) in [
            ("IF(a = 1, 'x', b)", "CASE WHEN a = 1 THEN 'x' ELSE b END"),
            ("IF(a, b)", "IF(a, b)"),
            ("LOCATE('b', x)", "strpos(x, 'b')"),
            ("ucase(x)", "upper(x)"),
            ("CAST(x AS SIGNED INTEGER)", "CAST(x AS BIGINT)"),
            ("CAST(x AS UNSIGNED)", "CAST(x AS BIGINT UNSIGNED)"),
            ("CONVERT(x, SIGNED)", "CAST(x AS BIGINT)"),
            ("CAST(x AS CHAR)", "CAST(x AS CHAR)"),
            ("lower(x)", "lower(x)"),
        ] {
            let mut expr = Parser::new(&MySqlDialect {}).try_with_sql(mysqls).unwrap().parse_expr().unwrap();
            change(&mut expr);
            assert_eq!(expr.to_string(), ours, "{mysqls}");
        }
    }
}
