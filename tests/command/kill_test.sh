#!/usr/bin/env bash
# Kills a training at random moments (SIGKILL) and resumes it: a checkpoint that loads is always there, and in the end
# all files are those of a training that nothing disturbed. Usage: kill_test.sh BINARY [KILLS [DEVICE]]
set -uo pipefail
command=$(realpath "$1")
kills=${2:-8}
device=${3:-cpu}
model=$(realpath "$(dirname "$0")/../fixtures/mlp.onnx")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  echo "FAILED: $*"
  exit 1
}

awk 'BEGIN {
  srand(1); print "x0,x1,x2,x3,labels"
  for (i = 0; i < 200; i++) printf "%.4f,%.4f,%.4f,%.4f,%d\n", rand(), rand(), rand(), rand(), i % 3
}' > data.csv
"$command" build "$model" -o train.onnx > log || fail "build"
fit() {
  exec "$command" fit train.onnx --data data.csv --eval-data data.csv --steps 200 --batch-size 8 --schedule cosine \
    --warmup 10 --checkpoint-every 1 --device "$device" "$@"
}
started=$(date +%s%N)
(fit --out whole) > log || fail "the undisturbed training"
milliseconds=$((($(date +%s%N) - started) / 1000000))

for kill in $(seq "$kills"); do
  (fit --out parts --resume) > log 2>&1 &
  process=$!
  # The first kill waits for a checkpoint, so that something is resumed however long a start takes on a busy machine.
  while [ "$kill" = 1 ] && [ ! -e parts/last.onnx ] && kill -0 $process 2> /dev/null; do sleep 0.01; done
  # Somewhere in about the time that a quarter of the training takes, so that many kills hit something.
  sleep "$(awk -v seed="$kill$RANDOM" -v ms=$milliseconds 'BEGIN { srand(seed); print rand() * ms / 4000 }')"
  kill -KILL $process 2> /dev/null
  wait $process 2> /dev/null
  [ ! -e parts/last.onnx ] || "$command" eval parts/last.onnx --data data.csv > log 2>&1 || fail "kill $kill: $(cat log)"
done
(fit --out parts --resume) > log || fail "resume"
grep -q resumed log || fail "nothing was resumed"
for file in last.onnx best.onnx epochs.jsonl; do
  cmp -s "whole/$file" "parts/$file" || fail "$file differs after $kills kills"
done
# All but the milliseconds.
cut -d, -f1-5 whole/metrics.csv > whole.csv
cut -d, -f1-5 parts/metrics.csv > parts.csv
cmp -s whole.csv parts.csv || fail "metrics.csv differs after $kills kills"
[ "$(ls -A parts | wc -l)" = 7 ] || fail "something is left over: $(ls -A parts)"
echo "$kills kills on $device, no difference"
