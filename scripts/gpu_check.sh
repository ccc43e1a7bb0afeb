#!/usr/bin/env bash
# What the exllamav2 engine does on this machine's NVIDIA card, as one table; takes some minutes.
#
#   scripts/gpu_check.sh [--shape 32b|14b|7b|1.5b] [--json FILE] [--folder DIR]
#   scripts/gpu_check.sh --dry-run     the same with tiny models and no card
#
# --json FILE writes the figures there, too; --folder DIR is where models are put, and stay.
#
# What is missing is installed into an environment of its own, which sees what the Python named in
# PYTHON (python3) has; flash-attn and exllamav2's extension may have to be compiled, which can take
# an hour. Exit status: 0 all is right, 1 drafts change the text, 2 nothing could be measured, 3 some
# of it could not.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

measure() { PYTHONPATH=$root:$root/tests exec "$python" "$root/scripts/gpu_check.py" "$@"; }
give_up() { echo "$*" >&2; exit 2; }
runs() { PYTHONPATH=$root "$1" -c "$2" > /dev/null 2>&1; }

# Looked at before anything is installed.
check_value() {
    case $1=$2 in
        --shape=32b | --shape=14b | --shape=7b | --shape=1.5b | --shape=tiny) ;;
        --shape=*) give_up "There is no shape $2; $0 --help says which there are." ;;
        --json=*) [ ! -d "$2" ] && [ -d "$(dirname -- "$2")" ] || give_up "No file can be written at $2." ;;
    esac
}
dry_run= value_follows=
for option; do
    if [ "$value_follows" ]; then
        check_value "$value_follows" "$option"
        value_follows=
        continue
    fi
    case $option in
        -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
        --dry-run) dry_run=1 ;;
        --shape | --json | --folder) value_follows=$option ;;
        --shape=* | --json=* | --folder=*) check_value "${option%%=*}" "${option#*=}" ;;
        *) give_up "There is no option $option; $0 --help says which there are." ;;
    esac
done
[ ! "$value_follows" ] || give_up "$option wants a value; $0 --help says which."
if [ "$dry_run" ]; then
    here=$PWD
    . "$root/scripts/environment"
    cd "$here" || exit 2
    measure "$@"
fi

base=${PYTHON:-python3}
runs "$base" 'import sys; assert sys.version_info >= (3, 11)' ||
    give_up "The check needs Python 3.11 or newer; name one in PYTHON (PYTHON=/path/to/python3 $0)."
runs "$base" 'from completion_ls.engines.exl2.checks import pieces; assert pieces()[0].found' ||
    give_up "No NVIDIA card is to be seen here: install its driver (nvidia-smi must list the card), or try --dry-run."

home=${COMPLETION_LS_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/completion-ls}/gpu-check
venv=$home/venv-$("$base" -c 'import sys; print(sys.prefix, sys.version)' | cksum | cut -d ' ' -f 1)
python=$venv/bin/python
log=$home/log
mkdir -p "$home" && : > "$log" || give_up "Nothing can be written to $home; name another folder in COMPLETION_LS_CACHE_DIR."
runs "$python" 'import sys' || "$base" -m venv --without-pip "$venv" ||
    give_up "No environment could be made in $venv; is there room, and Python's venv module?"
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$base" -c 'import sys
for path in sys.path:
    if path.endswith("-packages"):
        print(f"import site; site.addsitedir({path!r})")' > "$packages/base.pth"
runs "$python" 'import pip' || "$python" -m ensurepip >> "$log" 2>&1

# install WHAT ARGUMENTS: as pip does, but not for long where there is no network.
install() {
    echo "Installing $1" >&2
    shift
    "$python" -m pip install --retries 1 --timeout 30 "$@" >> "$log" 2>&1
}
why() {
    { grep -m 1 -E 'error: |fatal' "$log" || grep -E 'Error|ERROR' "$log" | tail -n 1; } | cut -c -300
    echo "(all of it is in $log)"
}

cuda='import torch; assert torch.version.cuda'
if ! runs "$python" "$cuda"; then
    # The newest that flash-attn has wheels for, as far as its makers provide them.
    install "torch with CUDA" 'torch==2.8.*' || install "a newer torch" --ignore-installed 'torch>=2.6'
    runs "$python" "$cuda" ||
        give_up "There is no torch with CUDA here, and none could be installed: $(why). Name a Python that has one in PYTHON."
fi
runs "$python" 'import torch; assert torch.cuda.is_available()' ||
    give_up "torch finds no usable card: its CUDA and the driver may not fit together, or CUDA_VISIBLE_DEVICES hides the card."

needs='import completion_ls.bench.own_engine, completion_ls.models.local
import PIL, regex, rich, safetensors, setuptools, transformers
assert int(transformers.__version__.split(".")[0]) >= 5, "transformers is older than 5"'
if ! runs "$python" "$needs"; then
    mapfile -t wanted < <("$python" -c 'import sys, tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
print(*(one for one in project["dependencies"] if not one.startswith("torch")), sep="\n")' "$root/pyproject.toml")
    install "what completion-ls needs" "${wanted[@]}" pillow regex setuptools
    missing=$(PYTHONPATH=$root "$python" -c "$needs" 2>&1) ||
        give_up "Something is missing (${missing##*$'\n'}) and could not be installed: $(why)."
fi
# Only to convert the model of the real pair, should that not be there yet.
runs "$python" 'import gguf' || install gguf gguf
ours='from completion_ls.engines.exl2.checks import pieces
assert next(one.found for one in pieces() if one.name == "%s")'
# shellcheck disable=SC2059
has() { runs "$python" "$(printf "$ours" "$1")"; }
has exllamav2 || install exllamav2 --no-deps exllamav2==0.3.2 ||
    give_up "exllamav2 0.3.2 is missing and could not be installed: $(why)."
if ! has flash-attn || ! runs "$python" 'import flash_attn'; then
    echo "flash-attn may have to be compiled, which can take an hour" >&2
    install "what compiles it" ninja wheel
    install flash-attn --no-build-isolation --upgrade-strategy only-if-needed 'flash-attn>=2.5.7' &&
        runs "$python" 'import flash_attn' ||
        give_up "flash-attn is missing, or does not fit this torch, and could not be installed: $(why)."
fi
if ! runs "$python" 'import torch, exllamav2_ext'; then
    command -v ninja > /dev/null || runs "$python" 'import ninja' || install ninja ninja
    echo "exllamav2 compiles its extension, for some minutes" >&2
    export TORCH_EXTENSIONS_DIR=$venv/extensions
    rm -f "$packages/exllamav2_ext.so"
    PATH=$venv/bin:$PATH "$python" -c '
import shutil, sys
import exllamav2.ext
shutil.copy(exllamav2.ext.exllamav2_ext.__file__, sys.argv[1])' "$packages/exllamav2_ext.so" >> "$log" 2>&1 &&
        runs "$python" 'import torch, exllamav2_ext' ||
        give_up "exllamav2's extension could not be compiled with $(command -v nvcc || echo 'no nvcc in PATH'): $(why)."
fi
measure "$@"
