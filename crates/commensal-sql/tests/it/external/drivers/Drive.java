import java.math.BigDecimal;
import java.math.BigInteger;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.Date;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Time;
import java.sql.Timestamp;
import java.util.Arrays;

/** What a Java program does with the server, by way of MariaDB's JDBC driver. Arguments: port, a CA's file. */
public class Drive {
    static final String ENDLESS = "select count(*) from hits a, hits b, hits c "
        + "where a.url < b.url and b.url < c.url and a.g + b.g = c.g";
    static final Object[] VALUES = {
        5, -5, Long.MAX_VALUE, Long.MIN_VALUE, 1.25, null, "", "o'br\"ien\\ \0 \uD83D\uDE00", true, false,
        Date.valueOf("2024-02-29"), Timestamp.valueOf("2024-02-29 01:02:03.456789"), Time.valueOf("01:02:03"),
        new BigDecimal("12.50"), new byte[] {0, -1, 39},
    };
    static String url;

    static Connection connect(String options) throws SQLException {
        return DriverManager.getConnection(url + options, "jack", "geheim");
    }

    static String shown(Object value) {
        return value instanceof byte[] ? Arrays.toString((byte[]) value) : String.valueOf(value);
    }

    static void same(Object got, Object want) {
        if (!shown(got).equals(shown(want))) throw new AssertionError("got " + shown(got) + ", not " + shown(want));
    }

    static Object as(ResultSet row, Object value) throws SQLException {
        if (value instanceof Boolean) return row.getBoolean(1);
        if (value instanceof byte[]) return row.getBytes(1);
        return value == null ? row.getObject(1) : row.getObject(1, value.getClass());
    }

    /** Every value there and back, the prepared statement executed again with the next one. */
    static void values(Connection connection) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement("select ?")) {
            for (Object value : VALUES) {
                statement.setObject(1, value);
                ResultSet rows = statement.executeQuery();
                rows.next();
                same(as(rows, value), value);
            }
        }
        try (PreparedStatement statement =
                connection.prepareStatement("select id from hits where g = ? and url like ? and id < ?")) {
            statement.setInt(1, 7);
            statement.setString(2, "https://%");
            statement.setLong(3, 1_500);
            ResultSet rows = statement.executeQuery();
            long sum = 0;
            while (rows.next()) sum += rows.getLong(1);
            same(sum, 7L + 1_007);
        }
    }

    static void results(Connection connection) throws SQLException {
        String sql = "select 1, cast(18446744073709551615 as bigint unsigned), 1.5e0, true, "
            + "cast(12.345 as decimal(10, 3)), date '2024-02-29', timestamp '2024-02-29 12:34:56.789', "
            + "time '12:34:56', x'00ff27', null, 'a'";
        Object[] want = {
            1L, new BigInteger("18446744073709551615"), 1.5, 1, new BigDecimal("12.345"),
            Date.valueOf("2024-02-29"), Timestamp.valueOf("2024-02-29 12:34:56.789"), Time.valueOf("12:34:56"),
            new byte[] {0, -1, 39}, null, "a",
        };
        String[] types = {
            "BIGINT", "BIGINT UNSIGNED", "DOUBLE", "INTEGER", "DECIMAL", "DATE", "DATETIME", "TIME", "VARBINARY",
            "NULL", "VARCHAR",
        };
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            ResultSet rows = statement.executeQuery();
            rows.next();
            for (int at = 0; at < want.length; at++) {
                same(rows.getObject(at + 1), want[at]);
                same(rows.getMetaData().getColumnTypeName(at + 1), types[at]);
            }
        }
    }

    static void session(Connection connection) throws SQLException {
        same(connection.getAutoCommit(), true);
        connection.setAutoCommit(false);
        same(connection.getAutoCommit(), false);
        connection.commit();
        connection.rollback();
        connection.setAutoCommit(true);
        same(connection.getAutoCommit(), true);
        same(connection.isValid(5), true);
        connection.setCatalog("information_schema");
        same(connection.getCatalog(), "information_schema");
        connection.setCatalog("main");
        connection.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
        try (PreparedStatement statement = connection.prepareStatement("select ?")) {
            for (int at = 0; at < 3; at++) {
                statement.setInt(1, at);
                statement.addBatch();
            }
            same(statement.executeBatch().length, 3);
        }
        try (Statement statement = connection.createStatement()) {
            statement.setFetchSize(100);
            ResultSet rows = statement.executeQuery("select id from hits");
            int count = 0;
            while (rows.next()) count++;
            same(count, 20_000);
            try {
                statement.executeQuery("select nothing from hits");
                throw new AssertionError("no error");
            } catch (SQLException error) {
                same(error.getErrorCode(), 1054);
            }
            statement.setQueryTimeout(1);
            try {
                statement.executeQuery(ENDLESS);
                throw new AssertionError("no time-out");
            } catch (SQLException error) {
                same(error.getErrorCode(), 1317);
            }
            same(statement.executeQuery("select 1").next(), true);
        }
    }

    static void several() throws SQLException {
        try (Connection connection = connect("?allowMultiQueries=true"); Statement statement = connection.createStatement()) {
            StringBuilder found = new StringBuilder();
            boolean rows = statement.execute("select 1; set dry_run_query = false; select 2, 3");
            while (rows || statement.getUpdateCount() != -1) {
                if (rows) statement.getResultSet().next();
                found.append(rows ? statement.getResultSet().getString(1) : "done").append(' ');
                rows = statement.getMoreResults();
            }
            same(found, "1 done 2 ");
        }
    }

    /** What an editor asks a database for. */
    static void metadata(Connection connection) throws SQLException {
        DatabaseMetaData about = connection.getMetaData();
        StringBuilder found = new StringBuilder();
        try (ResultSet rows = about.getTables("main", null, "%", new String[] {"TABLE"})) {
            while (rows.next()) found.append(rows.getString("TABLE_NAME")).append(' ').append(rows.getString("TABLE_TYPE"));
        }
        same(found, "hits TABLE");
        found.setLength(0);
        try (ResultSet rows = about.getColumns("main", null, "hits", "%")) {
            while (rows.next()) {
                found.append(rows.getInt("ORDINAL_POSITION")).append(rows.getString("COLUMN_NAME")).append(' ');
                found.append(rows.getString("TYPE_NAME")).append(' ').append(rows.getInt("DATA_TYPE")).append("; ");
            }
        }
        same(found, "1id BIGINT -5; 2g BIGINT -5; 3url TEXT -1; ");
        found.setLength(0);
        try (ResultSet rows = about.getCatalogs()) {
            while (rows.next()) found.append(rows.getString(1)).append(' ');
        }
        same(found, "information_schema main ");
        same(about.getPrimaryKeys("main", null, "hits").next(), false);
    }

    public static void main(String[] arguments) throws Exception {
        url = "jdbc:mariadb://127.0.0.1:" + arguments[0] + "/main";
        String tls = "useSsl=true&serverSslCert=" + arguments[1];
        for (String options : new String[] {"?useServerPrepStmts=true", "?useServerPrepStmts=true&" + tls}) {
            try (Connection connection = connect(options)) {
                values(connection);
                results(connection);
                session(connection);
            }
            System.out.println("ok " + options.split("serverSslCert")[0]);
        }
        try (Connection connection = connect("")) {
            results(connection);
            session(connection);
            metadata(connection);
        }
        several();
        System.out.println("ok as texts");
    }
}
