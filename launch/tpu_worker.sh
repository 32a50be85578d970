#!/usr/bin/env bash
# Run on each worker by tpu_pod.sh, with bertjax.main's arguments: end an earlier run if one is
# going on, start this one so that it outlives the connection, and show its log until it ends.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -f run.pid ]] && kill -TERM "$(<run.pid)" 2>/dev/null; then
    for _ in {1..120}; do  # time to write a checkpoint
        kill -0 "$(<run.pid)" 2>/dev/null || break
        sleep 1
    done
    kill -KILL "$(<run.pid)" 2>/dev/null || true
fi

echo "$(date -u +%FT%TZ) start: $*" >>run.log
setsid nohup launch/local.sh "$@" >>run.log 2>&1 </dev/null &
run=$!
echo "$run" >run.pid
tail --pid="$run" --lines=1 --follow run.log
wait "$run"
