"""What a Python program does with the server, by way of PyMySQL. Arguments: port, whether to encrypt (a CA's file)."""

import datetime
import decimal
import sys
import threading
import time

import pymysql
from pymysql.constants import CLIENT, COMMAND
from pymysql.cursors import SSCursor

PORT = int(sys.argv[1])
ENDLESS = ("select count(*) from hits a, hits b, hits c "
           "where a.url < b.url and b.url < c.url and a.g + b.g = c.g")


def connect(**more):
    return pymysql.connect(host="127.0.0.1", port=PORT, user="jack", password="geheim", **more)


def same(got, want):
    assert repr(got) == repr(want), f"got {got!r}, not {want!r}"


def fails(code, action):
    try:
        action()
    except pymysql.MySQLError as error:
        same(error.args[0], code)
    else:
        raise AssertionError(f"no error {code}")


def query(connection, sql, values=None):
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall()


def results(connection):
    """What comes back, by type."""
    same(query(connection, "select 1, -9223372036854775808, cast(18446744073709551615 as bigint unsigned), null, true"),
         ((1, -(2**63), 2**64 - 1, None, 1),))
    same(query(connection, "select 1.5e0, cast(1.1 as float), -1e300, 2e-8, cast('NaN' as double)"),
         ((1.5, 1.1, -1e300, 2e-8, float("nan")),))
    same(query(connection, "select cast(-12.345 as decimal(10, 3)), date '2024-02-29', "
                           "timestamp '2024-02-29 12:34:56.789', timestamp '1969-12-31 23:59:59', time '12:34:56'"),
         ((decimal.Decimal("-12.345"), datetime.date(2024, 2, 29),
           datetime.datetime(2024, 2, 29, 12, 34, 56, 789000), datetime.datetime(1969, 12, 31, 23, 59, 59),
           datetime.timedelta(seconds=45296)),))
    same(query(connection, "select x'00ff27', 'a', '\U0001f600'"), ((b"\x00\xff'", "a", "\U0001f600"),))
    same(len(query(connection, "select repeat('x', 17000000)")[0][0]), 17_000_000)
    same(len(query(connection, f"select repeat('x', {0xffffff - 4})")[0][0]), 0xFFFFFF - 4)


def values(connection):
    """What goes there and back; PyMySQL writes values into the text, so that dates come back as texts."""
    for value in [5, -5, 2**63 - 1, 2**64 - 1, 1.25, None, "o'br\"ien\\ \0 \n \U0001f600 %", "", b"\x00\xff'\\"]:
        same(query(connection, "select %s", (value,)), ((value,),))
    for value, want in [
        (True, 1), (False, 0), (decimal.Decimal("12.50"), 12.5),
        (datetime.date(2024, 2, 29), "2024-02-29"),
        (datetime.datetime(2024, 2, 29, 1, 2, 3, 456789), "2024-02-29 01:02:03.456789"),
        (datetime.time(1, 2, 3), "01:02:03"),
    ]:
        same(query(connection, "select %s", (value,)), ((want,),))
    same(query(connection, "select url from hits where id = %s", (7,))[0][0][-2:], "/7")


def session(connection):
    """Names, databases, transactions, pings."""
    query(connection, "set names utf8mb4 collate utf8mb4_general_ci")
    fails(1115, lambda: connect(charset="koi8r"))
    connection.autocommit(True)
    assert connection.get_autocommit()
    same(query(connection, "select @@autocommit"), ((1,),))
    assert connection.get_autocommit(), "the flag is in the end of rows as well"
    connection.autocommit(False)
    connection.ping(reconnect=False)
    assert not connection.get_autocommit()
    connection.begin(), connection.commit(), connection.rollback()
    connection.select_db("information_schema")
    same(query(connection, "select database()"), (("information_schema",),))
    fails(1049, lambda: connection.select_db("nowhere"))
    connection.select_db("main")
    fails(1049, lambda: connect(database="nowhere"))
    fails(1045, lambda: pymysql.connect(host="127.0.0.1", port=PORT, user="jack", password="x"))
    same(query(connect(database="main"), "select connection_id() > 0"), ((1,),))
    same(type(query(connection, "select now()")[0][0]), datetime.datetime)


def errors(connection):
    """An error is one of its statement; the connection goes on."""
    fails(1054, lambda: query(connection, "select nothing from hits"))
    fails(1064, lambda: query(connection, "selekt"))
    fails(1193, lambda: query(connection, "set no_such_variable = 1"))
    same(query(connection, "select 1"), ((1,),))
    large = connect()
    same(len(query(large, "select '" + "x" * 3_000_000 + "'")[0][0]), 3_000_000)
    try:
        query(large, "select '" + "x" * 5_000_000 + "'")
    except pymysql.MySQLError as error:
        # The server closes while the client still writes: which of both is seen first is a matter of luck.
        assert error.args[0] in (1153, 2006, 2013), error
    else:
        raise AssertionError("5 MB in one packet")


def several(connection):
    """Several results of one text, and none after an error."""
    many = connect(client_flag=CLIENT.MULTI_STATEMENTS)
    with many.cursor() as cursor:
        cursor.execute("select 1; set dry_run_query = false; select 2, 'a;b'")
        found = [list(cursor.fetchall())]
        while cursor.nextset():
            found.append(list(cursor.fetchall()))
        same(found, [[(1,)], [], [(2, "a;b")]])
        cursor.execute("select 1; select nothing from hits; select 3")
        fails(1054, cursor.nextset)
    same(query(many, "select 4"), ((4,),))
    fails(1064, lambda: query(connection, "select 1; select 2"))
    with connection.cursor() as cursor:
        same(cursor.executemany("select %s", [(1,), (2,), (3,)]), 3)


def unbuffered(_):
    """Rows as they come; what is left is thrown away by the cursor."""
    connection = connect(cursorclass=SSCursor)
    with connection.cursor() as cursor:
        cursor.execute("select id, url from hits order by id")
        same([cursor.fetchone()[0] for _ in range(3)], [0, 1, 2])
    same(list(query(connection, "select 7")), [(7,)])


def kills(connection):
    """KILL QUERY, KILL, and the command of the protocol for the latter."""
    for kill, goes_on in [
        (lambda victim: query(connection, f"kill query {victim}"), True),
        (lambda victim: query(connection, f"kill {victim}"), False),
        (lambda victim: connection.kill(victim), False),
    ]:
        victim, seen = connect(), []

        def run():
            try:
                query(victim, ENDLESS)
            except pymysql.MySQLError as error:
                seen.append(error.args[0])
        thread = threading.Thread(target=run)
        thread.start()
        while not any(row[0] == victim.thread_id() and row[4] == "Query"
                      for row in query(connection, "show processlist")):
            time.sleep(0.02)
        kill(victim.thread_id())
        thread.join(60)
        assert not thread.is_alive()
        assert seen[0] in ((1317,) if goes_on else (1317, 2013)), seen
        if goes_on:
            same(query(victim, "select 1"), ((1,),))
    fails(1094, lambda: query(connection, "kill 123456"))


def goes_away(connection):
    """Closes its socket in the middle of a result, and of a query: nobody is left in the list."""
    for sql in ["select a.id, a.url, b.url from hits a, hits b where a.g = b.g", ENDLESS]:
        gone = connect()
        gone._execute_command(COMMAND.COM_QUERY, sql)
        if "a.id" in sql:
            assert gone._sock.recv(10_000)
        time.sleep(0.3)
        gone._force_close()
    end = time.monotonic() + 60
    while len(query(connection, "show processlist")) > 1:
        assert time.monotonic() < end, query(connection, "show processlist")
        time.sleep(0.05)


def encrypts(_):
    """The same behind TLS."""
    connection = connect(ssl={"ca": sys.argv[2], "check_hostname": True})
    results(connection)
    values(connection)
    same(len(query(connection, "select url from hits")), 20_000)
    connection.close()


for part in [results, values, session, errors, several, unbuffered, encrypts, kills, goes_away]:
    started, begun = connect(), time.monotonic()
    part(started)
    started.close()
    print("ok", part.__name__, f"{time.monotonic() - begun:.1f} s", flush=True)
