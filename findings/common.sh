# What every script here begins with: a temporary folder, which goes at the end, and two functions.
set -eu
unset PYTHONPATH PYTHONHOME
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore TOKENIZERS_PARALLELISM=false
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HF_HOME=$folder/cache
cd "$folder"

# install PACKAGE==VERSION ...: make a virtual environment with these packages and what they need.
install() {
    python3 -m venv venv
    venv/bin/pip install --quiet --no-compile --disable-pip-version-check "$@"
}

# run: run the Python program on standard input; it fails where what was found is no longer so.
run() {
    venv/bin/python -
}
