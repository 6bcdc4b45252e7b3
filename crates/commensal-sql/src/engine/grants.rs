//! The tables of the database `mysql` that clients read for users, privileges and routines. There are no routines, and
//! privileges on tables are in SHOW GRANTS.

use super::Engine;
use super::grid::{Grid, text};
use crate::statement::UserName;

/// Name of the database, which statements reach by name only.
const MYSQL: &str = "mysql";

/// Columns of `user` for the privileges on everything.
const PRIVILEGES: &str = "Select_priv Insert_priv Update_priv Delete_priv Create_priv Drop_priv Reload_priv Shutdown_priv \
     Process_priv File_priv Grant_priv References_priv Index_priv Alter_priv Show_db_priv Super_priv Create_tmp_table_priv \
     Lock_tables_priv Execute_priv Repl_slave_priv Repl_client_priv Create_view_priv Show_view_priv Create_routine_priv \
     Alter_routine_priv Create_user_priv Event_priv Trigger_priv Create_tablespace_priv Delete_history_priv";

/// Columns of `user` behind those.
const REST: &str = "ssl_type ssl_cipher x509_issuer x509_subject max_questions max_updates max_connections \
     max_user_connections plugin authentication_string password_expired is_role default_role max_statement_time";

/// Tables without rows, and their columns.
const EMPTY: [(&str, &str); 8] = [
    (
        "db",
        "Host Db User Select_priv Insert_priv Update_priv Delete_priv Create_priv Drop_priv Grant_priv References_priv \
         Index_priv Alter_priv Create_tmp_table_priv Lock_tables_priv Create_view_priv Show_view_priv Create_routine_priv \
         Alter_routine_priv Execute_priv Event_priv Trigger_priv Delete_history_priv",
    ),
    ("tables_priv", "Host Db User Table_name Grantor Timestamp Table_priv Column_priv"),
    ("columns_priv", "Host Db User Table_name Column_name Timestamp Column_priv"),
    ("procs_priv", "Host Db User Routine_name Routine_type Grantor Proc_priv Timestamp"),
    (
        "proc",
        "db name type specific_name language sql_data_access is_deterministic security_type param_list returns body \
         definer created modified sql_mode comment character_set_client collation_connection db_collation body_utf8 \
         aggregate",
    ),
    (
        "event",
        "db name body definer execute_at interval_value interval_field created modified last_executed starts ends status \
         on_completion sql_mode comment originator time_zone character_set_client collation_connection db_collation \
         body_utf8",
    ),
    ("func", "name ret dl type"),
    ("time_zone_name", "Name Time_zone_id"),
];

/// Whether this is the database, and no folder has its name.
#[must_use]
pub fn is_database(engine: &Engine, name: &str) -> bool {
    name.eq_ignore_ascii_case(MYSQL) && !engine.storage.data.has_database(name)
}

/// Returns a table with the rows that a user may see; `None` for other names.
#[must_use]
pub fn table(engine: &Engine, user: &UserName, name: &str) -> Option<Grid> {
    if name != "user" {
        let (_, columns) = EMPTY.iter().find(|(known, _)| *known == name)?;
        return Some(Grid::texts(&columns.split_whitespace().collect::<Vec<_>>()));
    }
    let columns = ["Host", "User", "Password"].into_iter().chain(PRIVILEGES.split_whitespace());
    let mut grid = Grid::texts(&columns.chain(REST.split_whitespace()).collect::<Vec<_>>());
    let sees_all = engine.is_admin(user);
    let names: Vec<UserName> =
        engine.with_catalog(|catalog| catalog.users().map(|(name, _)| name.clone()).collect());
    for name in names.iter().filter(|name| sees_all || *name == user) {
        let may = if engine.is_admin(name) { "Y" } else { "N" };
        let mut row = vec![text(&name.host), text(&name.name), text("")];
        row.extend(PRIVILEGES.split_whitespace().map(|_| text(may)));
        row.extend(REST.split_whitespace().map(|column| {
            text(match column {
                "plugin" => "mysql_native_password",
                "password_expired" | "is_role" => "N",
                "max_questions" | "max_updates" | "max_connections" | "max_user_connections" => "0",
                "max_statement_time" => "0.000000",
                _ => "",
            })
        }));
        grid.row(row);
    }
    Some(grid)
}
