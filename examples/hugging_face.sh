#!/usr/bin/env bash
# From a Hugging Face translation checkpoint to its first answer: export, proof, server, call.
#
#   examples/hugging_face.sh CHECKPOINT BUNDLE TARGET_LANGUAGE TEXT
#
# CHECKPOINT is a folder such as opus-mt-en-de, with config.json, weights and tokenizer files; nothing is downloaded.
# `make install` first, or set DRAGOMAN to the command of another installation.
set -euo pipefail
checkpoint=$1 bundle=$2 target=$3 text=$4
dragoman=${DRAGOMAN:-.venv/bin/dragoman}

"$dragoman" export "$checkpoint" "$bundle"
"$dragoman" verify "$bundle"

log=$(mktemp)
"$dragoman" serve "$bundle" --port 0 --metrics-port 0 >"$log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" || true; rm -f "$log"' EXIT

address=
for _ in {1..600}; do
    address=$(sed -n 's/.*gRPC on \([^ ,]*\),.*/\1/p' "$log")
    [ -z "$address" ] || break
    kill -0 "$server"
    sleep 0.1
done
[ -n "$address" ] || { echo "the server was not ready within 60 s" >&2; exit 1; }

"$dragoman" info --address "$address"
"$dragoman" translate --address "$address" --to "$target" "$text"
