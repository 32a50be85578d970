#!/usr/bin/env bash
# Run bertjax.main on every worker of a Cloud TPU slice that exists already:
#
#   launch/tpu_pod.sh [--dry-run] NAME ZONE --config=configs/large.py --workdir=gs://BUCKET/large
#
# Copies the committed state of this repository to every worker, installs it there (extra tpu,
# Python from PYTHON=; TPU images may need a newer one: `sudo apt-get install python3.11-venv`),
# and starts the same command on all of them; they find each other from the slice's metadata.
# --dry-run prints the gcloud commands.
#
# The run outlives the connection: each worker logs to bertjax/run.log in its home, which is also
# shown here, and keeps the process number in run.pid. Giving the same command again ends what is
# running and goes on from its last checkpoint. A run that fails is started again, up to 10 times
# while the slice is READY, except after a mistake in the arguments (exit code 2). A preempted
# slice is gone: create it again (queued resources) and give the same command; the workdir in the
# bucket has everything.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

dry_run=
if [[ ${1:-} == --dry-run ]]; then
    dry_run=yes
    shift
fi
if [[ $# -lt 3 || $1 == -* || $2 == -* ]]; then
    echo "Usage: launch/tpu_pod.sh [--dry-run] NAME ZONE --config=... --workdir=gs://..." >&2
    exit 2
fi
name=$1
zone=$2
shift 2

tpu() {  # tpu VERB ARGUMENT...: on all workers of the slice
    local command=(gcloud compute tpus tpu-vm "$@" "--zone=$zone")
    if [[ -n $dry_run ]]; then
        printf '%q ' "${command[@]}"
        echo
    else
        "${command[@]}"
    fi
}

unpack='mkdir -p bertjax && tar -xf bertjax.tar -C bertjax'
# `printf %q`: the worker's shell reads the arguments as they stand here.
start=$(printf '%q ' env EXTRAS=tpu "PYTHON=${PYTHON:-}" bash bertjax/launch/tpu_worker.sh "$@")

archive=$(mktemp -d)
trap 'rm -rf "$archive"' EXIT
git -C "$root" archive --output="$archive/bertjax.tar" HEAD
[[ -z $(git -C "$root" status --porcelain) ]] ||
    echo "Changes that are not committed do not reach the workers." >&2

tpu scp "$archive/bertjax.tar" "$name:bertjax.tar" --worker=all
tpu ssh "$name" --worker=all "--command=$unpack"
for try in 1 2 3 4 5 6 7 8 9 10; do
    code=0
    tpu ssh "$name" --worker=all "--command=$start" || code=$?
    [[ $code != 0 && $code != 2 && $code != 130 && $code != 143 ]] || exit "$code"
    state=$(tpu describe "$name" '--format=value(state)') || state=gone
    if [[ $state != READY ]]; then
        echo "The slice $name is $state: create it again and give the same command." >&2
        exit "$code"
    fi
    echo "Try $try ended with exit code $code; starting again from the last checkpoint." >&2
    sleep 10
done
exit "$code"
