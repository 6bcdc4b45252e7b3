#!/usr/bin/env bash
# Records the terminal that README shows: nginx beside four gzip, before and after `apply`. Writes terminal.txt beside this
# script; `cargo xtask gen` makes the picture. Needs root, nginx and gzip. Changes nothing that it does not undo.
#
#   docs/picture/record.sh target/release/commensal
set -euo pipefail
program=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
pids=()
finish() {
  "$program" --state-dir "$work/state" restore >"$work/restore.log" 2>&1 || cat "$work/restore.log" >&2
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap finish EXIT

head -c 4096 /dev/zero >"$work/index.html"
cat >"$work/nginx.conf" <<CONF
worker_processes 1; daemon off; pid $work/nginx.pid; error_log $work/error.log;
events { worker_connections 512; }
http { access_log off; server { listen 127.0.0.1:8088; root $work; } }
CONF
nginx -c "$work/nginx.conf" & pids+=($!)
for _ in 1 2 3 4; do gzip -9 </dev/zero >/dev/null & pids+=($!); done
cat >"$work/groups.toml" <<'TOML'
[group.web]
class = "online"
match = [{ process = { exe = "nginx" } }]

[group.backup]
class = "offline"
match = [{ process = { exe = "gzip" } }]
TOML
cd "$work"
"$program" lab load http://127.0.0.1:8088/ --rate 2000 --for 90s >load.txt 2>&1 & pids+=($!)
sleep 3

# Shows a command as it is typed, and the first lines of what it prints, without the columns that a README has no width for.
show() { # LINES COMMAND...
  local lines=$1; shift
  echo "# commensal $*"
  "$program" --state-dir "$work/state" "$@" 2>/dev/null | head -n "$lines" | cut -c1-96 || true
  echo
}
{
  echo "# cat groups.toml"; cat groups.toml; echo
  show 9 blame web -c groups.toml --for 5s
  echo "# commensal apply -c groups.toml"
  "$program" --state-dir "$work/state" apply -c groups.toml | grep -E 'cpu\.(idle|shares|weight)|^done' | sed -E 's/ {2,}#/  #/' | cut -c1-96
  echo
  show 9 blame web -c groups.toml --for 5s
  echo "# commensal restore"
  "$program" --state-dir "$work/state" restore | grep -E ' cpu|/cpu/|back in' | head -4 | cut -c1-96
} >"$work/terminal.txt"
cp "$work/terminal.txt" "$here/terminal.txt"
