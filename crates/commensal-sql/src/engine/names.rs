//! Names of columns and aliases, which MySQL compares without case. DataFusion compares them with case, so that a
//! statement's names are replaced by those that its tables and aliases have.

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    self, Expr, Ident, Query, Select, SelectItem, TableAlias, TableFactor, Visit, VisitMut, Visitor,
    VisitorMut,
};
use std::collections::BTreeMap;
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
        known.names.extend(columns.iter().cloned());
        known.columns.entry(table.clone()).or_default().extend(columns.iter().cloned());
    }
    let _: ControlFlow<()> = Visit::visit(statement.as_ref(), &mut known);
    known.names.sort();
    known.names.dedup();
    let _: ControlFlow<()> = VisitMut::visit(statement.as_mut(), &mut known);
}

/// What the names of a statement can refer to.
#[derive(Debug, Default)]
struct Known {
    /// All columns and aliases.
    names: Vec<String>,
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
}

impl Visitor for Known {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let ctes = query.with.iter().flat_map(|with| &with.cte_tables);
        ctes.for_each(|cte| self.alias(&cte.alias));
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
        self.look("where clause", &select.selection);
        self.look("group statement", &select.group_by);
        self.look("having clause", &select.having);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        self.look("order clause", &query.order_by);
        ControlFlow::Continue(())
    }
}
