//! Names of columns and aliases, which MySQL compares without case. DataFusion compares them with case, so that a
//! statement's names are replaced by those that its tables and aliases have.

use super::having;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    self, Expr, Ident, JoinConstraint, JoinOperator, ObjectNamePart, OrderBy, OrderByExpr, OrderByKind,
    Query, Select, SelectItem, SetExpr, TableAlias, TableFactor, TableWithJoins, Visit, VisitMut, Visitor,
    VisitorMut,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// The tables of a statement: name and columns of each.
pub type Tables = [(String, Vec<String>)];

/// Corrects the names in a statement that differ from exactly one column or alias only in case.
pub fn fix_case(statement: &mut Statement, tables: &Tables) {
    let statement = match statement {
        Statement::Statement(statement) => statement,
        Statement::Explain(explain) => return fix_case(&mut explain.statement, tables),
        _ => return,
    };
    let mut known = Known::default();
    for (table, columns) in tables {
        known.of_tables.extend(columns.iter().cloned());
        known.columns.entry(table.clone()).or_default().extend(columns.iter().cloned());
    }
    known.of_tables.sort();
    known.of_tables.dedup();
    known.names.clone_from(&known.of_tables);
    let _: ControlFlow<()> = Visit::visit(statement.as_ref(), &mut known);
    known.names.sort();
    known.names.dedup();
    let written = match statement.as_mut() {
        ast::Statement::Query(query) => titles(&mut query.body),
        _ => Vec::new(),
    };
    let _: ControlFlow<()> = VisitMut::visit(statement.as_mut(), &mut known);
    if let ast::Statement::Query(query) = statement.as_mut() {
        keep_titles(query, &written);
    }
}

/// Returns the items of the select that gives a result its titles.
fn items(body: &mut SetExpr) -> &mut [SelectItem] {
    match body {
        SetExpr::Select(select) => &mut select.projection,
        SetExpr::Query(query) => items(&mut query.body),
        SetExpr::SetOperation { left, .. } => items(left),
        _ => &mut [],
    }
}

/// Returns the name of a column.
fn column(expr: &Expr) -> Option<&Ident> {
    match expr {
        Expr::Identifier(name) => Some(name),
        Expr::CompoundIdentifier(parts) => parts.last(),
        _ => None,
    }
}

/// Returns the names of a result's columns as the statement writes them; `None` where that is no name.
fn titles(body: &mut SetExpr) -> Vec<Option<String>> {
    let title = |item: &mut SelectItem| match item {
        SelectItem::UnnamedExpr(expr) => column(expr).map(|name| name.value.clone()),
        _ => None,
    };
    items(body).iter_mut().map(title).collect()
}

/// Gives the result's columns the titles that the statement writes, as in MySQL.
fn keep_titles(query: &mut Query, written: &[Option<String>]) {
    let mut renamed = Vec::new();
    for (item, title) in items(&mut query.body).iter_mut().zip(written) {
        if let (SelectItem::UnnamedExpr(expr), Some(title)) = (&*item, title)
            && let Some(name) = column(expr).filter(|name| name.value != *title)
        {
            let alias = Ident::with_quote('`', title.clone());
            renamed.push((expr.clone(), name.value.clone(), alias.clone()));
            *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
        }
    }
    // What is sorted by has the new name, too.
    if let Some(OrderBy { kind: OrderByKind::Expressions(sorted), .. }) = &mut query.order_by {
        for OrderByExpr { expr, .. } in sorted {
            let is_same = |of: &Expr, name: &str| match &*expr {
                Expr::Identifier(by) => by.value == name,
                by => by == of,
            };
            if let Some((.., alias)) = renamed.iter().find(|(of, name, _)| is_same(of, name)) {
                *expr = Expr::Identifier(alias.clone());
            }
        }
    }
}

/// What the names of a statement can refer to.
#[derive(Debug, Default)]
struct Known {
    /// The columns of all tables.
    of_tables: Vec<String>,
    /// All columns and aliases.
    names: Vec<String>,
    /// The columns of common table expressions.
    of_ctes: BTreeSet<String>,
    /// The columns of each table, by its name and its aliases.
    columns: BTreeMap<String, Vec<String>>,
}

impl Known {
    fn alias(&mut self, alias: &TableAlias) {
        self.names.extend(alias.columns.iter().map(|column| column.name.value.clone()));
    }

    /// Replaces a name by the only one of `names` that is equal without case, unless it is one of them as it is.
    fn fix(names: &[String], name: &mut Ident) {
        if names.contains(&name.value) {
            return;
        }
        let wanted = name.value.to_lowercase();
        let mut same = names.iter().filter(|known| known.to_lowercase() == wanted);
        if let (Some(known), None) = (same.next(), same.next()) {
            name.value.clone_from(known);
            name.quote_style = Some('`');
        }
    }

    /// Replaces the names in `USING (…)`, which are those of columns and no aliases, unless a subquery is joined.
    fn fix_using(&self, joined: &mut TableWithJoins) {
        for join in &mut joined.joins {
            let Some(JoinConstraint::Using(names)) = constraint(&mut join.join_operator) else { continue };
            for part in names.iter_mut().flat_map(|name| &mut name.0) {
                if let ObjectNamePart::Identifier(name) = part {
                    Known::fix(&self.of_tables, name);
                    Known::fix(&self.names, name);
                }
            }
        }
    }
}

/// Returns what a join has after its tables.
fn constraint(operator: &mut JoinOperator) -> Option<&mut JoinConstraint> {
    match operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint)
        | JoinOperator::CrossJoin(constraint)
        | JoinOperator::StraightJoin(constraint) => Some(constraint),
        _ => None,
    }
}

impl Visitor for Known {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.alias(&cte.alias);
            self.of_ctes.extend(cte.alias.columns.iter().map(|column| column.name.value.clone()));
            self.of_ctes.extend(aliases_in(cte));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        let aliases = select.projection.iter().filter_map(|item| match item {
            SelectItem::ExprWithAlias { alias, .. } => Some(alias.value.clone()),
            _ => None,
        });
        self.names.extend(aliases);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        match factor {
            TableFactor::Table { name, alias: Some(alias), .. } => {
                self.alias(alias);
                let table = name.0.last().and_then(|part| part.as_ident());
                let columns = table.and_then(|table| self.columns.get(&table.value)).cloned();
                if let (Some(columns), true) = (columns, alias.columns.is_empty()) {
                    self.columns.insert(alias.name.value.clone(), columns);
                }
            }
            TableFactor::Derived { alias: Some(alias), .. } => self.alias(alias),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

impl VisitorMut for Known {
    type Break = ();

    /// An alias is not visible in the select that defines it, except behind the conditions: there, a name that is an alias
    /// but for its case is that of a column, or of a column of a subquery.
    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        select.from.iter_mut().for_each(|joined| self.fix_using(joined));
        let aliases: BTreeSet<String> = select
            .projection
            .iter()
            .filter_map(|item| match item {
                SelectItem::ExprWithAlias { alias, .. } => Some(alias.value.to_lowercase()),
                _ => None,
            })
            .collect();
        if aliases.is_empty() {
            return ControlFlow::Continue(());
        }
        let of_subqueries = aliases_in(&select.from);
        let (of_tables, of_ctes) = (&self.of_tables, &self.of_ctes);
        let mut prefer = |expr: &mut Expr| {
            if let Expr::Identifier(name) = expr
                && aliases.contains(&name.value.to_lowercase())
                && !of_subqueries.contains(&name.value)
                && !of_ctes.contains(&name.value)
            {
                Known::fix(of_tables, name);
            }
            ControlFlow::<()>::Continue(())
        };
        let _: ControlFlow<()> = ast::visit_expressions_mut(&mut select.projection, &mut prefer);
        let _: ControlFlow<()> = ast::visit_expressions_mut(&mut select.selection, &mut prefer);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::NestedJoin { table_with_joins, .. } = factor {
            self.fix_using(table_with_joins);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(name) => Known::fix(&self.names, name),
            Expr::CompoundIdentifier(parts) => {
                if let [.., table, name] = parts.as_mut_slice() {
                    Known::fix(self.columns.get(&table.value).unwrap_or(&self.names), name);
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Returns the names that the subqueries in a part of a statement give to columns.
fn aliases_in(part: &impl Visit) -> BTreeSet<String> {
    struct Aliases(BTreeSet<String>);
    impl Visitor for Aliases {
        type Break = ();
        fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
            self.0.extend(select.projection.iter().filter_map(|item| match item {
                SelectItem::ExprWithAlias { alias, .. } => Some(alias.value.clone()),
                _ => None,
            }));
            ControlFlow::Continue(())
        }
        fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
            if let TableFactor::Table { alias: Some(alias), .. }
            | TableFactor::Derived { alias: Some(alias), .. } = factor
            {
                self.0.extend(alias.columns.iter().map(|column| column.name.value.clone()));
            }
            ControlFlow::Continue(())
        }
    }
    let mut aliases = Aliases(BTreeSet::new());
    let _: ControlFlow<()> = part.visit(&mut aliases);
    aliases.0
}

/// Returns the clause of a statement that contains this name, as MySQL's messages call it. `qualified` states whether the
/// statement names the column's table as well.
#[must_use]
pub fn clause_of(statement: &Statement, name: &str, qualified: bool) -> &'static str {
    let mut search = Search { name, qualified, found: None };
    if let Statement::Statement(statement) = statement {
        let _: ControlFlow<()> = Visit::visit(statement.as_ref(), &mut search);
    }
    search.found.unwrap_or("field list")
}

struct Search<'a> {
    name: &'a str,
    qualified: bool,
    found: Option<&'static str>,
}

impl Search<'_> {
    fn look(&mut self, clause: &'static str, part: &impl Visit) {
        let (name, qualified) = (self.name, self.qualified);
        let found = ast::visit_expressions(part, |expr| {
            let last = match expr {
                Expr::Identifier(last) if !qualified => Some(last),
                Expr::CompoundIdentifier(parts) if qualified => parts.last(),
                _ => None,
            };
            match last.is_some_and(|last| last.value.eq_ignore_ascii_case(name)) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        if found.is_break() {
            self.found.get_or_insert(clause);
        }
    }
}

impl Visitor for Search<'_> {
    type Break = ();

    fn post_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        // MySQL resolves the tables first, and then the clauses in this order.
        self.look("on clause", &select.from);
        self.look("field list", &select.projection);
        let (condition, moved) = having::conditions(select);
        if let Some(condition) = condition {
            self.look("where clause", condition);
        }
        self.look("group statement", &select.group_by);
        self.look("having clause", &select.having);
        if let Some(moved) = moved {
            self.look("having clause", moved);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        self.look("order clause", &query.order_by);
        ControlFlow::Continue(())
    }
}
