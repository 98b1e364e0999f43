# Sourced by the scripts that build this project: installs what is missing, and tells how many jobs fit the machine.
# shellcheck shell=bash

# Whether what a Debian package brings is there, from wherever it came.
package_is_there() {
    case $1 in
    g++ | clang | cmake | python3 | clang-format) command -v "$1" >/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    *) [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ] ;;
    esac
}

# ensure_packages PACKAGE...: installs the Debian packages that are missing, as root or by sudo. Does and needs nothing
# when all are there; ends the script with a plain sentence when it can not install them.
ensure_packages() {
    local package log missing=() as_root=()
    for package in "$@"; do
        package_is_there "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return 0

    if ! command -v apt-get >/dev/null; then
        echo "Please install what these Debian packages hold, then run this again: ${missing[*]}" >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null || ! sudo true; then
            echo "Please run this as root: apt-get install --no-install-recommends ${missing[*]}" >&2
            exit 1
        fi
        as_root=(sudo)
    fi

    echo "Installing with apt-get: ${missing[*]}"
    log=$(mktemp)
    if ! {
        "${as_root[@]}" apt-get -o Acquire::Retries=3 update &&
            "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
                apt-get -o Acquire::Retries=3 install -y --no-install-recommends "${missing[@]}"
    } >"$log" 2>&1 </dev/null; then
        tail -n 30 "$log" >&2
        echo "apt-get could not install: ${missing[*]}" >&2
        exit 1
    fi
    rm -f "$log"
}

# How many compilers may run at once: one a core, each with about 1.5 GiB of the memory that is free.
build_jobs() {
    local kib limit jobs
    kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
    limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true)
    case $limit in
    '' | *[!0-9]*) ;;
    *) [ $((limit / 1024)) -lt "$kib" ] && kib=$((limit / 1024)) ;;
    esac
    jobs=$((kib / 1572864))
    [ "$jobs" -lt "$(nproc)" ] || jobs=$(nproc)
    [ "$jobs" -ge 1 ] || jobs=1
    echo "$jobs"
}
