"""MySQL's own client library, by way of MySQL Connector/Python: it proves passwords by caching_sha2_password and has no other
method. Arguments: port, a CA's file."""

import sys

import mysql.connector
from mysql.connector import errors

PORT = int(sys.argv[1])
ENCRYPTED = {"ssl_ca": sys.argv[2], "ssl_verify_cert": True}
PLAIN = {"ssl_disabled": True}


def connect(user="jack", password="geheim", pure=False, **more):
    return mysql.connector.connect(host="127.0.0.1", port=PORT, user=user, password=password, use_pure=pure, **more)


def logs_in(pure, more):
    connection = connect(pure=pure, **more)
    cursor = connection.cursor()
    cursor.execute("select count(*), max(id) from hits")
    assert cursor.fetchall() == [(20000, 19999)]
    cursor.execute("select user()")
    assert cursor.fetchall()[0][0].startswith("jack@")
    connection.close()


def refused(**more):
    for user, password in [("jack", "Geheim"), ("jack", ""), ("nobody", "x")]:
        try:
            connect(user, password, **more)
        except errors.Error as error:
            assert error.errno == 1045, (user, password, error)
        else:
            raise AssertionError(f"{user} was let in")


def prepared():
    connection = connect(pure=True, **ENCRYPTED)
    cursor = connection.cursor(prepared=True)
    for bound in (10, 500):
        cursor.execute("select count(*) from hits where id < %s", (bound,))
        assert cursor.fetchall() == [(bound,)]
    connection.close()


def asked(connection, sql):
    cursor = connection.cursor()
    cursor.execute(sql)
    return cursor.fetchall()


def session(pure):
    """Compression, character sets, the state of the session, and another user over the same connection."""
    connection = connect("root", "", pure, compress=True, **PLAIN)
    assert asked(connection, "select repeat('ä', 70000)") == [("ä" * 70000,)]
    assert asked(connection, "show status like 'Ssl_cipher'")[0][1] == ""
    assert connection.cmd_statistics()["Threads"] == 1
    asked(connection, "select 1")
    connection.start_transaction()
    assert connection.in_transaction
    connection.rollback()
    assert not connection.in_transaction
    connection.cmd_change_user("jack", "geheim", "main")
    assert asked(connection, "select user() like 'jack@%'") == [(1,)]
    connection.cmd_reset_connection()
    connection.close()
    connection = connect(pure=pure, **ENCRYPTED)
    assert asked(connection, "show status like 'Ssl_cipher'")[0][1]
    connection.close()
    connection = connect("root", "", pure, charset="latin1", use_unicode=True, **PLAIN)
    assert asked(connection, "select 'ä€', char_length('ä€')") == [("ä€", 2)]
    connection.close()


for pure in (False, True):
    for more in (PLAIN, ENCRYPTED):
        logs_in(pure, more)
        print("ok", "pure" if pure else "C", *more)
connect("root", "", **PLAIN).close()
print("ok no password")
refused(**PLAIN)
refused(pure=True, **ENCRYPTED)
print("ok refused")
prepared()
print("ok prepared")
for pure in (False, True):
    session(pure)
    print("ok session", "pure" if pure else "C")
