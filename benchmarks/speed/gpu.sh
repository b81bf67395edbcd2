#!/usr/bin/env bash
# Exports, proves, verifies and measures float16 on a GPU, against CTranslate2 and PyTorch. Downloads nothing.
#
#   benchmarks/speed/gpu.sh WHEELS [OPTION...]
#
# WHEELS is a folder of wheels, downloaded on a machine with a network by
# `pip download '.[gpu,export]' setuptools grpcio-tools mypy-protobuf`, plus ctranslate2 and transformers to measure those.
# Packages of the machine's own Python are used as well. OPTIONs are passed to `python -m benchmarks.speed.gpu`. DEVICE=cpu
# runs everything without a GPU, slowly; PYTHON is the interpreter. Results are written to build/gpu/gpu.json. Time limit:
# 8 minutes in all.
set -euo pipefail

if [[ $# -lt 1 || ! -d $1 ]]; then
    echo "usage: benchmarks/speed/gpu.sh WHEELS [OPTION...]: WHEELS must be a folder of wheels, is '${1:-}'" >&2
    exit 2
fi
wheels=$(realpath "$1")
shift
cd "$(dirname "$0")/../.."
device=${DEVICE:-cuda}
python=${PYTHON:-python3}
work=build/gpu
bin=$work/venv/bin
deadline=$((SECONDS + 470))

# bounded SECONDS COMMAND...: runs COMMAND for at most SECONDS, and no later than the deadline.
bounded() {
    local limit=$1 left=$((deadline - SECONDS))
    shift
    timeout --kill-after=5 "$((left < limit ? (left > 1 ? left : 1) : limit))" "$@"
}

if [[ $device == cuda ]] && ! bounded 30 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; then
    echo "no NVIDIA GPU here: nvidia-smi finds none (DEVICE=cpu runs everything else)" >&2
    exit 3
fi

mkdir -p "$work"
"$python" -m venv --system-site-packages "$work/venv"
pip=("$bin/python" -m pip install --quiet --disable-pip-version-check --no-index --find-links "$wheels")
runtime=$([[ $device == cuda ]] && echo gpu || echo cpu)
echo "installing dragoman[$runtime,export] from $wheels"
bounded 180 "${pip[@]}" ".[$runtime,export]"
for peer in ctranslate2 transformers; do
    bounded 60 "${pip[@]}" "$peer" 2>/dev/null || echo "left out: $peer is not in $wheels" >&2
done

echo "exporting the shipped checkpoint in float16, with its proof on the CPU"
rm -rf "$work/en-fr-float16"
# A few texts only: PyTorch's float16, the reference of the proof, is slow on the CPU.
head -n 16 benchmarks/data/tatoeba.tsv >"$work/texts.tsv"
if bounded 200 "$bin/dragoman" export --precision float16 --texts "$work/texts.tsv" model/pretrained/en-fr "$work/en-fr-float16"; then
    bounded 60 "$bin/dragoman" verify --provider "$device" "$work/en-fr-float16" || echo "left out: verify failed" >&2
else
    echo "left out: the export with proof failed or timed out; the exports below have no proof" >&2
fi

bounded 400 "$bin/python" -m benchmarks.speed.gpu --provider "$device" --work "$work" --output "$work/gpu.json" "$@"
