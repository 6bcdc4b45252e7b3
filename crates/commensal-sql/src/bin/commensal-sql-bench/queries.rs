//! The 43 queries of ClickBench, for the table that `generate` writes.

/// One query shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number from 1, as in document 002 (Apache Doris' description of workload groups), whose q29 is number 29.
    pub number: usize,
    /// A short description.
    pub about: &'static str,
    /// The statement.
    pub sql: &'static str,
}

const FILE: &str = include_str!("clickbench.sql");

/// Returns all queries, in ClickBench's order.
#[must_use]
pub fn shapes() -> Vec<Shape> {
    let shape = |text: &'static str| {
        let (head, sql) = text.trim().split_once('\n')?;
        let (number, about) = head.split_once(": ")?;
        Some(Shape { number: number.parse().ok()?, about, sql: sql.trim_end_matches(';') })
    };
    FILE.split("\n-- ").filter_map(shape).collect()
}

/// Returns the query with this number.
#[must_use]
pub fn shape(number: usize) -> Option<Shape> {
    shapes().into_iter().find(|shape| shape.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_all_of_them() {
        let numbers: Vec<usize> = shapes().iter().map(|shape| shape.number).collect();
        assert_eq!(numbers, (1..=43).collect::<Vec<_>>());
        for shape in shapes() {
            assert!(shape.sql.starts_with("SELECT") && shape.sql.contains("FROM hits"), "{shape:?}");
            assert!(!shape.sql.contains(';') && !shape.sql.contains("--"), "{shape:?}");
        }
    }
}
