"""TPC-DS for cells: generates the data, finds the fastest queries, and runs as the client of a cell.

    tpcds.py make   --database FILE --scale SF      generates the data; stores text, time and digest of all 99 queries
    tpcds.py make-postgres --database FILE          copies the data to PostgreSQL; finds the queries that it can run
    tpcds.py sweep  --database FILE                 removes the copies of the cluster that killed cells left behind
    tpcds.py duckdb|postgres --database FILE --threads V --sessions C [--lite] [--cold] [--memory BYTES]

A PostgreSQL cell has a server of its own, on a copy of the cluster. PostgreSQL refuses to run as root, so if this
script runs as root, server and cluster belong to the user postgres. They are below /var/tmp, because other users
cannot enter the state directory. A cell uses the protocol of commensal's density cells on its standard input and
output. At most V threads compute: up to V worker threads take queries from the sessions in turn, and the engine
uses the remaining threads.
"""

import argparse
import glob
import hashlib
import json
import os
import pwd
import queue
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

LITE = 51


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def digest(rows):
    """Digest of rows, regardless of their order. Floats are rounded, because a sum depends on the order of the summands."""

    def cell(value):
        return f"{value:.5g}" if isinstance(value, float) else str(value)

    lines = sorted("\x1f".join(cell(value) for value in row) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def facts(database):
    with open(database + ".json", encoding="utf-8") as file:
        return json.load(file)


def make(options):
    import duckdb
    import duckdb_extensions

    partial = options.database + ".part"
    for stale in (partial, partial + ".wal"):
        if os.path.exists(stale):
            os.remove(stale)
    con = duckdb.connect(partial)
    duckdb_extensions.import_extension("tpcds", con=con)
    con.execute("load tpcds")
    con.execute(f"call dsdgen(sf={options.scale})")
    texts = dict(con.execute("select query_nr, query from tpcds_queries()").fetchall())
    con.close()
    queries = {}
    con = duckdb.connect(partial, read_only=True)
    for number, text in sorted(texts.items()):
        times, digests = [], set()
        for threads in (1, 2, 1):
            con.execute(f"set threads={threads}")
            begun = time.perf_counter()
            rows = con.execute(text).fetchall()
            times.append(time.perf_counter() - begun)
            digests.add(digest(rows))
        # If a LIMIT cuts between equal rows, the rows can differ from run to run; then only their number is compared.
        queries[number] = {
            "text": text,
            "seconds": min(times),
            "rows": len(rows),
            "stable": len(digests) == 1,
        }
    con.close()
    fastest = sorted(queries, key=lambda number: queries[number]["seconds"])[:LITE]
    with open(options.database + ".json", "w", encoding="utf-8") as file:
        json.dump({"scale": options.scale, "lite": sorted(fastest), "queries": queries}, file)
    os.replace(partial, options.database)
    total = sum(one["seconds"] for one in queries.values())
    print(f"{len(queries)} queries, {total:.1f} s if run one after the other; lite has the {LITE} fastest")


class Sessions:
    """The queries of all sessions. The next query of a session starts when its previous query has finished."""

    def __init__(self, count, numbers, seed):
        self.ready = queue.Queue()
        self.left = count * len(numbers)
        self.lock = threading.Lock()
        for session in range(count):
            order = list(numbers)
            random.Random(seed + session).shuffle(order)
            if order:
                self.ready.put((session, order))

    def work(self, run):
        while True:
            item = self.ready.get()
            if item is None:
                self.ready.put(None)
                return
            session, order = item
            run(session, order[0])
            with self.lock:
                self.left -= 1
                if self.left == 0:
                    self.ready.put(None)
            if len(order) > 1:
                self.ready.put((session, order[1:]))


def climb(options, known, numbers, connect):
    """Runs the sessions on worker threads; `connect` returns a function that runs a query and returns its rows."""
    workers = min(options.sessions, options.threads)
    sessions = Sessions(options.sessions, numbers, options.seed)
    told, lock = set(), threading.Lock()
    runners = [connect() for _ in range(workers)]

    def worker(runner):
        def run(_session, number):
            one = known["queries"][str(number)]
            try:
                rows = runner(one["text"])
            except Exception as error:  # any error of the engine fails the query
                say("fail q%02d: %s" % (number, " ".join(str(error).split())[:300]))
                return
            with lock:
                if number in told:
                    return
                told.add(number)
            say("result q%02d %s" % (number, digest(rows) if one["stable"] else f"{len(rows)}-rows"))

        sessions.work(run)

    say("ready")
    if not sys.stdin.readline().startswith("go"):
        sys.exit(0)
    begun = time.perf_counter()
    threads = [threading.Thread(target=worker, args=(runner,)) for runner in runners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say("done %.6f" % (time.perf_counter() - begun))
    sys.stdin.read()


def warm(known, numbers, run):
    """Runs each query once before the measurement."""
    for number in numbers:
        try:
            run(known["queries"][str(number)]["text"])
        except Exception as error:  # any error of the engine fails the query
            say("fail q%02d: %s" % (number, " ".join(str(error).split())[:300]))
            sys.exit(1)


def drop_cache(path):
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def chosen(known, lite):
    return known["lite"] if lite else sorted(int(number) for number in known["queries"])


def duckdb_cell(options):
    import duckdb

    known = facts(options.database)
    numbers = chosen(known, options.lite)
    if options.cold:
        drop_cache(options.database)
    con = duckdb.connect(options.database, read_only=True)
    # The worker threads that call DuckDB also execute queries, so DuckDB gets only the remaining threads.
    con.execute(f"set threads={max(1, options.threads - min(options.sessions, options.threads) + 1)}")
    # DuckDB spills data that exceeds its memory limit. All cells use one database, so each cell has its own spill folder.
    spill = os.path.join(os.path.dirname(os.path.abspath(options.database)), "cells", str(os.getpid()))
    os.makedirs(spill, exist_ok=True)
    con.execute(f"set temp_directory='{spill}'")
    if options.memory:
        con.execute(f"set memory_limit='{int(options.memory * 0.7)}B'")
    if not options.cold:
        warm(known, numbers, lambda text: con.execute(text).fetchall())

    def connect():
        cursor = con.cursor()
        return lambda text: cursor.execute(text).fetchall()

    try:
        climb(options, known, numbers, connect)
    finally:
        con.close()
        shutil.rmtree(spill, ignore_errors=True)


# Time limit (ms) of a query when the queries that PostgreSQL can run are determined: some of its plans never finish.
PATIENCE_MS = 20_000


class Postgres:
    """A PostgreSQL server: its programs, its user and its folder."""

    def __init__(self, folder):
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb")) or [shutil.which("initdb")]
        if not found[-1]:
            sys.exit("PostgreSQL is not installed (Debian: postgresql)")
        self.bin = os.path.dirname(found[-1])
        self.user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        self.folder = folder
        self.server = None

    def who(self):
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []} if self.user else {}

    def own(self, path):
        """Creates a folder that only the server's user can enter. Exits if the folder exists and belongs to another user."""
        try:
            os.mkdir(path, 0o700)
            if self.user:
                os.chown(path, self.user.pw_uid, self.user.pw_gid)
        except FileExistsError:
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != (self.user.pw_uid if self.user else os.geteuid()):
                sys.exit(f"{path} is not a folder that belongs to PostgreSQL's user; remove it")

    def tool(self, name, *args, **more):
        done = subprocess.run(
            [os.path.join(self.bin, name), *args], capture_output=True, text=True, cwd="/", **self.who(), **more
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip() or f"{name} exited with status {done.returncode}")
        return done.stdout

    def start(self):
        options = {
            "listen_addresses": "",
            "unix_socket_directories": self.folder,
            "fsync": "off",
            "autovacuum": "off",
            "max_parallel_workers_per_gather": "0",
            "jit": "off",
            "work_mem": "32MB",
            "max_connections": "300",
        }
        args = [os.path.join(self.bin, "postgres"), "-D", os.path.join(self.folder, "data")]
        for name, value in options.items():
            args += ["-c", f"{name}={value}"]
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.server = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **self.who())
        deadline = time.monotonic() + 60
        while True:
            try:
                self.sql("select 1")
                return
            except RuntimeError as error:
                if self.server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {error}") from error
                time.sleep(0.05)

    def stop(self):
        if self.server and self.server.poll() is None:
            self.server.send_signal(signal.SIGINT)
            self.server.wait(30)

    def session(self):
        """Opens one connection for all queries: steal is sampled, so the samples would miss a server process per query."""
        return Session(self)

    def sql(self, text, timeout_ms=0, **more):
        settings = self.settings(timeout_ms)
        return self.tool("psql", *self.client, "-v", "ON_ERROR_STOP=1", "-f", "-", input=text, env=settings, **more)

    @property
    def client(self):
        return ["-XqAt", "-F", "\x1f", "-h", self.folder, "-d", "postgres"]

    @staticmethod
    def settings(timeout_ms):
        return {"PGOPTIONS": f"-c statement_timeout={timeout_ms}", "PGUSER": "postgres", "PATH": os.environ.get("PATH", "")}

    def rows(self, text, timeout_ms=0):
        return table(self.sql(text, timeout_ms))


def table(text):
    """Parses the output of psql into rows; fields with a decimal point become floats."""

    def value(field):
        if "." in field:
            try:
                return float(field)
            except ValueError:
                pass
        return field

    return [[value(field) for field in line.split("\x1f")] for line in text.splitlines()]


class Session:
    """A psql process with one connection, and so one server process, for any number of queries."""

    END = "-- end of a query --"

    def __init__(self, server):
        self.psql = subprocess.Popen(
            [os.path.join(server.bin, "psql"), *server.client, "-f", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd="/",
            env=server.settings(0),
            **server.who(),
        )

    def rows(self, text):
        # After the query, psql prints whether it failed and why, from its variables ERROR and LAST_ERROR_MESSAGE.
        self.psql.stdin.write(f"{text.rstrip().rstrip(';')};\n\\echo '{self.END}' :ERROR :LAST_ERROR_MESSAGE\n")
        self.psql.stdin.flush()
        lines = []
        for line in self.psql.stdout:
            if line.startswith(self.END):
                failed, _, why = line[len(self.END) :].strip().partition(" ")
                if failed != "false":
                    raise RuntimeError(why)
                return table("".join(lines))
            lines.append(line)
        raise RuntimeError("the connection was lost")


def home(database):
    """Returns the parent folder of all clusters, and the folder of the cluster of a database."""
    below = f"/var/tmp/commensal-density-{os.geteuid()}"
    return below, os.path.join(below, hashlib.sha256(os.path.abspath(database).encode()).hexdigest()[:12])


def make_postgres(options):
    import duckdb

    known = facts(options.database)
    below, folder = home(options.database)
    server = Postgres(folder)
    server.own(below)
    shutil.rmtree(folder, ignore_errors=True)
    server.own(folder)
    server.tool("initdb", "-D", os.path.join(folder, "data"), "-A", "trust", "--no-sync", "-U", "postgres")
    server.start()
    try:
        con = duckdb.connect(options.database, read_only=True)
        for (table,) in con.execute("select table_name from duckdb_tables()").fetchall():
            columns = con.execute(f"select column_name, data_type from duckdb_columns() where table_name = '{table}'")
            server.sql(f"create table {table} ({', '.join(f'{name} {kind}' for name, kind in columns.fetchall())})")
            rows = os.path.join(folder, "rows.csv")
            con.execute(f"copy {table} to '{rows}' (header false)")
            os.chmod(rows, 0o644)
            server.sql(f"copy {table} from '{rows}' (format csv)")
            os.remove(rows)
        server.sql("analyze")
        queries = {}
        for number, one in known["queries"].items():
            times, digests, rows = [], set(), []
            try:
                for _ in range(2):
                    begun = time.perf_counter()
                    rows = server.rows(one["text"], PATIENCE_MS)
                    times.append(time.perf_counter() - begun)
                    digests.add(digest(rows))
            except RuntimeError:
                continue
            queries[number] = {
                "text": one["text"],
                "seconds": min(times),
                "rows": len(rows),
                "stable": one["stable"] and len(digests) == 1,
            }
    finally:
        server.stop()
    fastest = sorted(queries, key=lambda number: queries[number]["seconds"])[:LITE]
    with open(options.database + ".postgres.json", "w", encoding="utf-8") as file:
        json.dump({"lite": sorted(int(number) for number in fastest), "queries": queries}, file)
    print(f"PostgreSQL can run {len(queries)} of {len(known['queries'])} queries within {PATIENCE_MS // 1000} s each")


def remove_stale(cells):
    """Removes the copies of cells whose process no longer exists."""
    for name in os.listdir(cells):
        if not os.path.exists(f"/proc/{name}"):
            shutil.rmtree(os.path.join(cells, name), ignore_errors=True)


def sweep(options):
    below, _ = home(options.database)
    cells = os.path.join(below, "cells")
    server = Postgres(below)
    if os.path.lexists(cells):
        # Exits if a folder belongs to another user: anybody can create files in /var/tmp.
        server.own(below)
        server.own(cells)
        remove_stale(cells)


def postgres_cell(options):
    with open(options.database + ".postgres.json", encoding="utf-8") as file:
        known = json.load(file)
    numbers = chosen(known, options.lite)
    below, folder = home(options.database)
    cells = os.path.join(below, "cells")
    own = os.path.join(cells, str(os.getpid()))
    server = Postgres(own)
    server.own(below)
    server.own(cells)
    remove_stale(cells)
    server.own(own)
    copied = subprocess.run(["cp", "-a", "--reflink=auto", os.path.join(folder, "data"), own], check=False)
    if copied.returncode != 0:
        sys.exit("the cluster cannot be copied; create it with commensal density prepare --postgres")
    if options.cold:
        os.sync()
        for below, _, names in os.walk(own):
            for name in names:
                drop_cache(os.path.join(below, name))
    server.start()
    try:
        if not options.cold:
            warm(known, numbers, server.rows)
        climb(options, known, numbers, lambda: server.session().rows)
    finally:
        server.stop()
        shutil.rmtree(own, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["make", "make-postgres", "sweep", "duckdb", "postgres"])
    parser.add_argument("--database", required=True)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lite", action="store_true")
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    what = {
        "make": make,
        "make-postgres": make_postgres,
        "sweep": sweep,
        "duckdb": duckdb_cell,
        "postgres": postgres_cell,
    }
    what[options.what](options)


if __name__ == "__main__":
    main()
