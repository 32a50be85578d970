# shellcheck shell=bash
# Sourced by the other launchers: `prepare_environment` leaves $root (the repository) and $python
# (the interpreter of its virtual environment), installing whatever is missing or out of date.
#
#   PYTHON=python3.12   another interpreter than python3; its environment is .venv-3.12
#   EXTRAS=cuda         further extras of pyproject.toml (cuda, tpu, parity, ...), comma-separated

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
    printf '%s\n' "$*" >&2
    exit 2
}

# The version of interpreter $1, '3.12', or a sentence that says why it cannot serve.
python_version() {
    local version
    command -v "$1" >/dev/null ||
        fail "'$1' is not on the PATH: install Python 3.11 or newer, or name one, as in PYTHON=python3.12."
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])') ||
        fail "'$1' does not run: name another interpreter, as in PYTHON=python3.12."
    case $version in
        2.* | 3.[0-9] | 3.10)
            fail "'$1' is Python $version, but 3.11 or newer is needed: name one, as in PYTHON=python3.12." ;;
    esac
    printf '%s' "$version"
}

# What environment $1 is made from and for, a line each: what calls for a new one, what calls for an
# installation into it, and the extras that it has besides test, plan and report.
wanted_stamp() {
    local version
    version=$("$1/bin/python" -S -c 'import sys; print(sys.version)' 2>/dev/null) || version=none
    printf '%s %s\n' "$root" "${version//$'\n'/ }"
    cksum <"$root/pyproject.toml"
    printf '%s\n' "${EXTRAS:-}"
}

is_up_to_date() {
    local extra installed
    [[ -f $1/.stamp && $(head -n 2 "$1/.stamp") == "$(wanted_stamp "$1" | head -n 2)" ]] || return 1
    installed=$(sed -n 3p "$1/.stamp")
    for extra in ${EXTRAS:+${EXTRAS//,/ }}; do
        [[ ,$installed, == *,$extra,* ]] || return 1
    done
}

# Make or refresh environment $1 with interpreter $2. The stamp is written last: an installation
# that was cut short has none, and is begun again.
install() {
    local venv=$1 interpreter=$2 extra installed EXTRAS=${EXTRAS:-}
    "$interpreter" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "'$interpreter' cannot make virtual environments: install its venv module (on Debian and Ubuntu: apt install python3-venv)."
    if [[ -f $venv/.stamp && $(head -n 1 "$venv/.stamp") == "$(wanted_stamp "$venv" | head -n 1)" ]]; then
        installed=$(sed -n 3p "$venv/.stamp")
        for extra in ${installed//,/ }; do  # it keeps what it has
            [[ ,$EXTRAS, == *,$extra,* ]] || EXTRAS=${EXTRAS:+$EXTRAS,}$extra
        done
    else
        find "$venv" -mindepth 1 -maxdepth 1 ! -name .lock -exec rm -rf {} +
        "$interpreter" -m venv "$venv" || fail "'$interpreter' could not make $venv; its message is above."
    fi
    rm -f "$venv/.stamp"
    echo "Installing bertjax and what it needs into $venv: minutes the first time, at once later." >&2
    (cd "$root" && "$venv/bin/python" -m pip install -qq --disable-pip-version-check \
        --editable ".[test,plan,report${EXTRAS:+,$EXTRAS}]") >&2 ||
        fail "The installation into $venv failed; pip's message is above. The next start tries again."
    wanted_stamp "$venv" >"$venv/.stamp.new"
    mv "$venv/.stamp.new" "$venv/.stamp"
}

prepare_environment() {
    local venv=$root/.venv
    if [[ -n ${PYTHON:-} ]]; then
        local version
        version=$(python_version "$PYTHON") || exit
        venv=$root/.venv-$version
    fi
    if ! is_up_to_date "$venv"; then
        python_version "${PYTHON:-python3}" >/dev/null
        mkdir -p "$venv" || fail "$venv cannot be made: is $root writable?"
        # One installation at a time. The lock lives on the open file, which this shell shares with
        # the short-lived Python that takes it (flock(1) is not on every system).
        exec 9>>"$venv/.lock"
        "${PYTHON:-python3}" - "$venv" <<'TAKE_LOCK'
import fcntl
import sys

try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("Another start is installing into", sys.argv[1], "- waiting for it.", file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)
TAKE_LOCK
        is_up_to_date "$venv" || install "$venv" "${PYTHON:-python3}"
        exec 9>&-
    fi
    # shellcheck disable=SC2034  # used by the launchers
    python=$venv/bin/python
}
