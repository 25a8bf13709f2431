#!/bin/sh
# Usage: tools/setup.sh FOLDER [PYTHON] -- PIP-ARGUMENTS…
# Makes or updates the virtual environment FOLDER; called by the Makefile.
set -eu

folder=$1
wanted=$2
shift 3

suitable() {
    command -v "$1" >/dev/null 2>&1 &&
        "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

if [ -n "$wanted" ]; then
    suitable "$wanted" || {
        echo "PYTHON=$wanted is not a Python 3.11, 3.12 or 3.13" >&2
        exit 1
    }
    python=$wanted
else
    python=
    for candidate in python3 python3.13 python3.12 python3.11; do
        if suitable "$candidate"; then
            python=$candidate
            break
        fi
    done
    [ -n "$python" ] || {
        echo "No Python 3.11, 3.12 or 3.13 found. Install one, or say where it is: make PYTHON=/path/to/python3.12 …" >&2
        exit 1
    }
fi

# What torch and numba have no wheels for is said here; pip would only say that it found no version.
case " $* " in
*" -e "*) "$python" "$(dirname "$0")/wheels.py" || exit 1 ;;
esac

# A folder that an interrupted run left half-made, or whose Python is gone, is made anew.
if ! "$folder/bin/python" -m pip --version >/dev/null 2>&1 ||
    { [ -n "$wanted" ] && [ "$("$folder/bin/python" -V)" != "$("$wanted" -V)" ]; }; then
    echo "Making $folder with $("$python" -V)"
    rm -rf "$folder"
    "$python" -m venv "$folder" || {
        rm -rf "$folder"
        echo "$python cannot make a virtual environment. On Debian or Ubuntu: apt install python3-venv" >&2
        exit 1
    }
fi

echo "Installing into $folder (the first time takes some minutes, and 3 GB of disk or 8 GB with CUDA)"
"$folder/bin/python" -m pip install -qq --disable-pip-version-check -c constraints.txt "$@" || {
    echo "The installation did not finish; what pip says above is why. Run the same command again to go on." >&2
    exit 1
}
