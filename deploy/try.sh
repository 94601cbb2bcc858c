#!/usr/bin/env bash
# The cluster of docs/operating/cluster.md on one machine, each of its machines a network namespace of its own: three
# nodes with etcd and Patroni, HAProxy, two API processes, workers. Its addresses are those of the files here, and nobody
# outside can reach them. Needs root; `make deploy-checkers` gets the programs. WORKERS=4. Several can run side by side, each
# with its TRY_NAME=ti, which its namespaces begin with, and its TRY_DIR=/var/tmp/trading-intents-try-ti.
set -euo pipefail
cd "$(dirname "$0")/.."
HERE=$PWD
NAME=${TRY_NAME:-ti}
[[ $NAME =~ ^[a-z0-9]+$ ]] || { echo "TRY_NAME is of small letters and digits: $NAME" >&2; exit 2; }
DIR=${TRY_DIR:-/var/tmp/trading-intents-try-$NAME}
WORKERS=${WORKERS:-4}
FETCHED=$HERE/.venv/deploy
PROGRAM=$HERE/.venv/bin/trading-intents
PG_BIN=$("$HERE/.venv/bin/python" -c "from trading_intents.storage.embedded.cluster import find_binaries; print(find_binaries(''))")
LIBRARIES=$(echo "$FETCHED"/root/usr/lib/*-linux-gnu)
AS_NOBODY=(setpriv --reuid nobody --regid nogroup --clear-groups)
PASSWORD=only-for-trying
LIMIT_SECONDS=${LIMIT_SECONDS:-180} # for each part to come
NODES=(lb api-1 api-2 pg-1 pg-2 pg-3)
for number in $(seq "$WORKERS"); do NODES+=("worker-$number"); done

address() {
  case $1 in
    lb) echo 10.0.0.10 ;;
    api-*) echo "10.0.1.${1#api-}" ;;
    pg-*) echo "10.0.2.${1#pg-}" ;;
    worker-*) echo "10.0.3.${1#worker-}" ;;
  esac
}

on() { ip netns exec "$NAME-$1" "${@:2}"; }

# start NODE NAME COMMAND...: in the background, with a log and a pid of its own.
start() {
  setsid ip netns exec "$NAME-$1" "${@:3}" >>"$DIR/log/$1-$2.log" 2>&1 </dev/null &
  echo $! >"$DIR/run/$1-$2.pid"
}

stop() {
  for file in "$@"; do
    [ ! -e "$file" ] || { kill -- "-$(cat "$file")" 2>/dev/null || true; rm -f "$file"; }
  done
}

until_true() {
  local ends=$((SECONDS + LIMIT_SECONDS))
  while [ $SECONDS -lt $ends ]; do
    if "${@:2}" >/dev/null 2>&1; then return; fi
    sleep 0.2
  done
  echo "$1 did not come within $LIMIT_SECONDS s; the logs in $DIR/log end with:" >&2
  tail -qn 2 "$DIR"/log/*.log >&2
  return 1
}

make_network() {
  ip netns add "$NAME-net"
  ip -n "$NAME-net" link add name switch type bridge
  ip -n "$NAME-net" link set switch up
  for node in "${NODES[@]}"; do
    ip netns add "$NAME-$node"
    ip -n "$NAME-$node" link set lo up
    ip -n "$NAME-net" link add name "$node" type veth peer name eth0 netns "$NAME-$node"
    ip -n "$NAME-net" link set "$node" master switch up
    ip -n "$NAME-$node" addr add "$(address "$node")/16" dev eth0
    ip -n "$NAME-$node" link set eth0 up
  done
}

start_postgresql() {
  for node in pg-1 pg-2 pg-3; do
    at=$(address "$node")
    # The PostgreSQL of the wheel knows no TLS.
    sed -e "s#^name: pg-1#name: $node#" -e "s#10.0.2.1:\(8008\|5432\)#$at:\1#" -e "s#/usr/lib/postgresql/18/bin#$PG_BIN#" \
      -e "s#/var/lib/postgresql/18/trading-intents#$DIR/$node/data#" -e '/^    ssl_/d; s/hostssl/host/' \
      -e "s#^    ssl: .*#    unix_socket_directories: $DIR/$node#" \
      deploy/patroni/patroni.yml >"$DIR/$node/patroni.yml"
    start_node "$node"
  done
  until_true "the primary" primary
  until_true "a synchronous standby" has_standby
}

# etcd and Patroni of a node, which starts PostgreSQL.
start_node() {
  local at members=pg-1=http://10.0.2.1:2380,pg-2=http://10.0.2.2:2380,pg-3=http://10.0.2.3:2380
  at=$(address "$1")
  start "$1" etcd "${AS_NOBODY[@]}" "$FETCHED/python/bin/etcd" --name "$1" --data-dir "$DIR/$1/etcd" \
    --listen-peer-urls "http://$at:2380" --initial-advertise-peer-urls "http://$at:2380" --initial-cluster "$members" \
    --listen-client-urls "http://$at:2379,http://127.0.0.1:2379" --advertise-client-urls "http://$at:2379" --log-level warn
  start "$1" patroni "${AS_NOBODY[@]}" env "HOME=$DIR/$1" PATRONI_SUPERUSER_PASSWORD=$PASSWORD PATRONI_REPLICATION_PASSWORD=$PASSWORD \
    "$FETCHED/python/bin/patroni" "$DIR/$1/patroni.yml"
}

# One primary, and two standbys that follow it on its timeline.
healthy() {
  on "$(primary)" curl -fsS -m 5 http://127.0.0.1:8008/cluster | "$HERE/.venv/bin/python" -c '
import json, sys
members = json.load(sys.stdin)["members"]
states = sorted((each["role"], each["state"]) for each in members)
wanted = [("leader", "running"), ("replica", "streaming"), ("sync_standby", "streaming")]
sys.exit(states != wanted or len({each.get("timeline") for each in members}) != 1)'
}

# Every process of the machine is gone at once, as when its power fails.
lose() { ip netns pids "$NAME-$1" | xargs -r kill -9 2>/dev/null || true; rm -f "$DIR/run/$1"-*.pid; }

# For so many seconds no standby takes what the primary writes: commits wait.
lag() {
  local receivers
  receivers=$(for node in pg-1 pg-2 pg-3; do ip netns pids "$NAME-$node"; done | xargs -rI{} sh -c 'grep -qs walreceiver /proc/{}/cmdline && echo {} || true')
  # shellcheck disable=SC2086
  kill -STOP $receivers; sleep "$1"; kill -CONT $receivers
}

# From now on the primary sends no standby what it writes, and its commits wait. Patroni has noticed that the standbys lag.
withhold() {
  local node
  node=$(primary)
  ip netns pids "$NAME-$node" | xargs -rI{} sh -c 'grep -qs walsender /proc/{}/cmdline && kill -STOP {} || true'
  sleep 3 # by then each has reported what it has
  until_true "standbys that lag" lagging "$node"
}

lagging() {
  on "$1" curl -fsS -m 5 http://127.0.0.1:8008/cluster | "$HERE/.venv/bin/python" -c '
import json, sys
lags = [each["lag"] for each in json.load(sys.stdin)["members"] if each["role"] != "leader"]
sys.exit(not lags or min(lags) == 0)'
}

# From now on the primary answers before a standby has what it wrote, and one that lacks some of it may take over.
make_asynchronous() {
  on "$(primary)" curl -fsS -m 5 -o /dev/null -X PATCH http://127.0.0.1:8008/config \
    -d '{"synchronous_mode": false, "synchronous_mode_strict": false}'
  until_true "asynchronous mode" is_asynchronous
}

is_asynchronous() { [ -z "$(sql postgres "SHOW synchronous_standby_names")" ]; }

# No standby gets what the primary writes from now on. That they may not log in is not known to them either.
detach() { sql postgres "ALTER ROLE replicator NOLOGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_replication"; }

start_front() { start lb haproxy env "LD_LIBRARY_PATH=$LIBRARIES" "$(haproxy_program)" -f "$DIR/haproxy.cfg" -db; }

primary() {
  for node in pg-1 pg-2 pg-3; do
    if on "$node" curl -fsS -m 5 -o /dev/null http://127.0.0.1:8008/primary 2>/dev/null; then echo "$node"; return; fi
  done
  return 1
}

has_standby() { [ "$(sql postgres "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")" -ge 1 ]; }

# sql DATABASE STATEMENT: as the superuser, at the primary.
sql() {
  PGPASSWORD=$PASSWORD on "$(primary)" timeout 20 "$PG_BIN/psql" -XAtq -v ON_ERROR_STOP=1 -h 127.0.0.1 -U postgres -d "$1" -c "$2"
}

# A commit may wait for a standby that is just being made: what is there is not made again.
make_logins() {
  [ "$(sql postgres "SELECT count(*) FROM pg_roles WHERE rolname = 'trading_intents'")" = 1 ] || sql postgres "
    CREATE ROLE trading_intents_owner LOGIN CREATEROLE PASSWORD '$PASSWORD';
    CREATE ROLE trading_intents LOGIN PASSWORD '$PASSWORD';
    CREATE ROLE trading_intents_worker LOGIN PASSWORD '$PASSWORD'"
}

make_database() {
  [ "$(sql postgres "SELECT count(*) FROM pg_database WHERE datname = 'trading_intents'")" = 1 ] ||
    sql postgres "CREATE DATABASE trading_intents OWNER trading_intents_owner"
}

start_platform() {
  until_true "the logins" make_logins
  until_true "the database" make_database
  for node in "${NODES[@]}"; do
    case $node in api-* | worker-*)
      start "$node" haproxy env "LD_LIBRARY_PATH=$LIBRARIES" "$(haproxy_program)" -f deploy/haproxy/primary.cfg -db ;;
    esac
  done
  until_true "HAProxy" platform api-1 migrate
  for node in "${NODES[@]}"; do
    case $node in
      api-*) start "$node" serve "${AS_NOBODY[@]}" "$0" as "$node" serve --roles api,stream ;;
      worker-*) start "$node" serve "${AS_NOBODY[@]}" "$0" as "$node" serve --roles worker ;;
    esac
  done
  sed -e "s#/etc/haproxy/tls/trading-intents.pem#$DIR/tls/both.pem#" -e "s#/run/haproxy/admin.sock#$DIR/run/haproxy.sock#" \
    deploy/haproxy/haproxy.cfg >"$DIR/haproxy.cfg"
  start_front
  for node in "${NODES[@]}"; do
    case $node in api-* | worker-*) until_true "$node" on "$node" curl -fsS "http://$(address "$node"):8080/readyz" ;; esac
  done
  until_true "HAProxy in front" on lb curl -fsS --cacert "$DIR/tls/server.pem" https://trading-intents.test/readyz \
    --resolve trading-intents.test:443:10.0.0.10
}

haproxy_program() { command -v haproxy || echo "$FETCHED/root/usr/sbin/haproxy"; }

# The program with the settings of a node's process.
run_as() {
  export HOME=$DIR TRADING_INTENTS_DATA_DIR=$DIR/keys PYTHONDONTWRITEBYTECODE=1
  export TRADING_INTENTS_DATABASE_URL=postgresql://trading_intents:$PASSWORD@127.0.0.1/trading_intents
  export TRADING_INTENTS_DATABASE_WORKER_URL=postgresql://trading_intents_worker:$PASSWORD@127.0.0.1/trading_intents
  export TRADING_INTENTS_DATABASE_OWNER_URL=postgresql://trading_intents_owner:$PASSWORD@127.0.0.1/trading_intents
  export TRADING_INTENTS_HTTP_HOST=$(address "$1") TRADING_INTENTS_GRPC_HOST=$(address "$1") TRADING_INTENTS_TRUSTED_PROXIES=10.0.0.10
  exec "$PROGRAM" "${@:2}"
}

platform() { on "$1" "${AS_NOBODY[@]}" "$0" as "$@"; }

up() {
  mkdir -p "$DIR"/{log,run,tls,keys,pg-1,pg-2,pg-3}
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=trading-intents.test \
    -addext subjectAltName=DNS:trading-intents.test,IP:10.0.0.10 -keyout "$DIR/tls/server.key" -out "$DIR/tls/server.pem" 2>/dev/null
  cat "$DIR/tls/server.pem" "$DIR/tls/server.key" >"$DIR/tls/both.pem"
  chmod 600 "$DIR"/tls/*.key "$DIR/tls/both.pem"
  chmod 700 "$DIR/keys"
  chown -R nobody:nogroup "$DIR"
  make_network
  start_postgresql
  start_platform
  echo "ready: https://10.0.0.10 in the namespace $NAME-lb, the primary is $(primary)"
}

down() {
  stop "$DIR"/run/*-serve.pid "$DIR"/run/*-haproxy.pid
  sleep 1
  stop "$DIR"/run/*.pid
  for namespace in $(ip netns list | awk -v own="^$NAME-" '$1 ~ own {print $1}'); do
    for _ in $(seq 50); do [ -n "$(ip netns pids "$namespace")" ] || break; sleep 0.2; done
    ip netns pids "$namespace" | xargs -r kill -9
    ip netns del "$namespace"
  done
}

# Refused while no standby is synchronous.
switch_over() {
  node=$(primary)
  on "$node" curl -fsS -m 60 -X POST http://127.0.0.1:8008/switchover -d "{\"leader\": \"$node\"}"
}

case ${1:-} in
  up) up ;;
  down) down ;;
  primary) primary ;;
  sql) sql trading_intents "$2" ;;
  on) on "${@:2}" ;;
  as) run_as "${@:2}" ;;
  platform) platform "${@:2}" ;;
  switchover) until_true "the switchover" switch_over ;;
  kill-primary) kill -9 "$(head -1 "$DIR/$(primary)/data/postmaster.pid")" ;;
  healthy) until_true "the cluster" healthy ;;
  lag) lag "$2" ;;
  withhold) withhold ;;
  asynchronous) make_asynchronous ;;
  detach) detach ;;
  lose) lose "$2" ;;
  start) start_node "$2" ;;
  restart-front) stop "$DIR/run/lb-haproxy.pid"; sleep 0.2; start_front ;;
  cut) ip -n "$NAME-net" link set "$2" down ;;
  join) ip -n "$NAME-net" link set "$2" up ;;
  *) echo "usage: deploy/try.sh up | down | primary | sql STATEMENT | on NODE COMMAND | platform NODE COMMAND | healthy | switchover | kill-primary | lose NODE | start NODE | cut NODE | join NODE | lag SECONDS | withhold | asynchronous | detach | restart-front" >&2; exit 2 ;;
esac
