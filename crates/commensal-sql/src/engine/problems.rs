//! Errors of planning, in MySQL's words and with MySQL's numbers.

use super::error::{Error, Problem};
use super::names;
use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionState;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, GroupByExpr, Select, Visit, Visitor, visit_expressions};
use std::ops::ControlFlow;

/// Why a statement cannot be planned.
///
/// `missing` is the first of its tables that does not exist.
pub fn explain(
    state: &SessionState,
    database: &str,
    statement: &Statement,
    missing: Option<Error>,
    error: DataFusionError,
) -> Error {
    if let Some(missing) = missing {
        return missing;
    }
    if let DataFusionError::SchemaError(problem, _) = error.find_root()
        && let Some(error) = of_columns(problem, statement)
    {
        return error;
    }
    let mut calls = Calls { state, unknown: None, misplaced: false, has_groups: false };
    if let Statement::Statement(statement) = statement {
        let _: ControlFlow<()> = Visit::visit(statement.as_ref(), &mut calls);
    }
    match calls {
        Calls { unknown: Some(name), .. } => {
            Error::Name(Problem::Function, format!("FUNCTION {database}.{name} does not exist"))
        }
        Calls { misplaced: true, .. } => {
            Error::Name(Problem::GroupFunction, "Invalid use of group function".to_owned())
        }
        Calls { has_groups, .. } => match Error::from(error) {
            Error::Name(Problem::Ungrouped, _) if !has_groups => {
                let text = "Mixing of GROUP columns (MIN(),MAX(),COUNT(),...) with no GROUP columns is \
                            illegal if there is no GROUP BY clause";
                Error::Name(Problem::Mixed, text.to_owned())
            }
            error => error,
        },
    }
}

fn of_columns(problem: &SchemaError, statement: &Statement) -> Option<Error> {
    let clause = |field: &Column| names::clause_of(statement, field.name(), field.relation.is_some());
    Some(match problem {
        SchemaError::FieldNotFound { field, .. } => {
            let (name, clause) = (field.flat_name(), clause(field));
            Error::Name(Problem::Column, format!("Unknown column '{name}' in '{clause}'"))
        }
        SchemaError::AmbiguousReference { field } => {
            let (name, clause) = (field.flat_name(), clause(field));
            Error::Name(Problem::Ambiguous, format!("Column '{name}' in {clause} is ambiguous"))
        }
        SchemaError::DuplicateQualifiedField { qualifier, .. } => {
            Error::Name(Problem::Alias, format!("Not unique table/alias: '{}'", qualifier.table()))
        }
        SchemaError::DuplicateUnqualifiedField { .. } => return None,
    })
}

/// Calls of functions that do not exist, and of aggregate functions where there is no group.
struct Calls<'a> {
    state: &'a SessionState,
    unknown: Option<String>,
    misplaced: bool,
    /// Whether a query has a GROUP BY.
    has_groups: bool,
}

impl Calls<'_> {
    fn name(expr: &Expr) -> Option<String> {
        match expr {
            Expr::Function(function) => Some(function.name.to_string().to_lowercase()),
            _ => None,
        }
    }

    fn aggregates(&self, part: &impl Visit) -> bool {
        let is = |expr: &Expr| {
            Self::name(expr).is_some_and(|name| self.state.aggregate_functions().contains_key(&name))
        };
        visit_expressions(
            part,
            |expr| if is(expr) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) },
        )
        .is_break()
    }
}

impl Visitor for Calls<'_> {
    type Break = ();

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        self.misplaced |= self.aggregates(&select.selection) || self.aggregates(&select.group_by);
        self.has_groups |= !matches!(&select.group_by, GroupByExpr::Expressions(keys, _) if keys.is_empty());
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        let Some(name) = Self::name(expr) else { return ControlFlow::Continue(()) };
        let known = self.state.scalar_functions().contains_key(&name)
            || self.state.aggregate_functions().contains_key(&name)
            || self.state.window_functions().contains_key(&name);
        if !known {
            self.unknown.get_or_insert(name);
        }
        if let Expr::Function(function) = expr
            && self.state.aggregate_functions().contains_key(&Self::name(expr).unwrap_or_default())
            && function.over.is_none()
        {
            self.misplaced |= self.aggregates(&function.args);
        }
        ControlFlow::Continue(())
    }
}
