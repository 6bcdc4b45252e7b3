//! Names in the catalogue: the built-in names, the rule for valid names, and the check whether a pattern matches a
//! name.

use super::outcome::{CatalogError, refuse};
use datafusion::arrow::array::{BooleanArray, Datum, StringArray};
use datafusion::arrow::error::ArrowError;

/// The default group.
pub const NORMAL: &str = "normal";

/// The user that has all privileges and cannot be dropped.
pub const ROOT: &str = "root";

/// Arrow's compute kernel for `LIKE` or `ILIKE`.
pub type LikeKernel = fn(&dyn Datum, &dyn Datum) -> Result<BooleanArray, ArrowError>;

/// Whether a string matches a pattern, in which `%` stands for any characters, `_` for one character, and a backslash
/// escapes them. A pattern that is too large for Arrow's kernel matches nothing.
#[must_use]
pub fn is_like(kernel: LikeKernel, pattern: &str, text: &str) -> bool {
    let answer = kernel(&StringArray::new_scalar(text), &StringArray::new_scalar(pattern));
    answer.is_ok_and(|answer| answer.value(0))
}

/// Checks the name of a user, role or policy. Letters, digits and a few punctuation characters are allowed, so that
/// names are easy to read in result rows and in files.
pub(super) fn check_name(name: &str) -> Result<(), CatalogError> {
    let fits = |character: char| character.is_alphanumeric() || "_-.@".contains(character);
    if !name.is_empty() && name.chars().count() <= 64 && name.chars().all(fits) {
        return Ok(());
    }
    refuse(format!(
        "invalid name {name:?}: 1 to 64 letters, digits, \"_\", \"-\", \".\" and \"@\" are allowed"
    ))
}

#[cfg(test)]
mod tests {
    use super::is_like;
    use datafusion::arrow::compute::kernels::comparison::{ilike, like};

    #[test]
    fn patterns() {
        for (pattern, text, with_case, without_case) in [
            ("", "", true, true),
            ("", "a", false, false),
            ("%", "", true, true),
            ("_", "", false, false),
            ("test%", "test_group", true, true),
            ("Test%", "test_group", false, true),
            ("%group", "test_group", true, true),
            ("%GROUP", "test_group", false, true),
            ("%es%g%", "test_group", true, true),
            ("%eS%G%", "test_group", false, true),
            ("t_st", "test", true, true),
            ("t_st", "tst", false, false),
            ("t_ST", "test", false, true),
            (r"t\_st", "test", false, false),
            (r"t\_st", "t_st", true, true),
            (r"T\_st", "t_st", false, true),
            (r"100\%", "100%", true, true),
            (r"100\%", "1000", false, false),
            (r"\%%", "%a", true, true),
            (r"a\\%", r"a\b", true, true),
            (r"a\", r"a\", true, true),
            (r"\a", "a", true, true),
            ("a.c", "abc", false, false),
            ("(a|b)_*", "(a|b)c*", true, true),
            ("%ab", "aab", true, true),
            ("a%b%c", "abab", false, false),
            ("a_b", "a\nb", true, true),
            ("TEST", "test", false, true),
            ("größe_", "größen", true, true),
            ("GRÖSSE", "größe", false, false),
            ("GRÖ%", "größe", false, true),
        ] {
            let answers = (is_like(like, pattern, text), is_like(ilike, pattern, text));
            assert_eq!(answers, (with_case, without_case), "{text:?} like {pattern:?}");
        }
        // A matcher that backtracks over all possibilities would not finish.
        assert!(!is_like(like, &"%a".repeat(40), &"b".repeat(20_000)));
        assert!(!is_like(like, &"_".repeat(1_000_000), "a"));
    }
}
