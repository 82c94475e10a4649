#!/usr/bin/env bash
# The command from end to end on a small network and a made-up table: every subcommand, exit statuses, errors of one
# line, interruption, and resuming to the byte. Usage: command_test.sh BINARY
set -uo pipefail
command=$(realpath "$1")
fixtures=$(realpath "$(dirname "$0")/../fixtures")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# expect STATUS ARGUMENTS... runs the command; its output is in `out`, its errors in `err`.
expect() {
  local wanted=$1 status
  shift
  "$command" "$@" > out 2> err
  status=$?
  [ $status = "$wanted" ] || fail "status $status, not $wanted: $* $(cat err)"
  [ "$wanted" = 0 ] || [ "$wanted" = 130 ] || [ "$(wc -l < err)" = 1 ] || fail "more than one line of error: $*"
}

says() { grep -qF -- "$1" "$2" || fail "no '$1' in $2, which ends: $(tail -n 5 "$2")"; }
same() { cmp -s "$1" "$2" || fail "$1 and $2 differ"; }

# Points around three corners, classes 0, 1, 2.
make_table() {
  awk -v n="$1" -v seed="$2" 'BEGIN {
    srand(seed); print "x0,x1,x2,x3,labels"
    for (i = 0; i < n; i++) {
      c = i % 3
      for (j = 0; j < 4; j++) printf "%.4f,", (j == c ? 2 : 0) + rand() - 0.5
      print c
    }
  }'
}
make_table 100 1 > train.csv
make_table 40 2 > test.csv

# ---- A file of options that is not there
expect 1 fit --config missing.json
says 'missing.json is no file of options' err

# ---- The way through
expect 0 check "$fixtures/mlp.onnx"
says 'It can be trained' out
expect 0 build "$fixtures/mlp.onnx" -o train.onnx --optimizer 'adamw(lr=0.02)'
expect 0 fit train.onnx --data train.csv --eval-data test.csv --epochs 8 --batch-size 16 --seed 5 --out whole
says 'gradients and activations' out
for file in best.onnx last.onnx metrics.jsonl metrics.csv epochs.jsonl options.json; do
  [ -s "whole/$file" ] || fail "whole/$file is not there"
done
[ "$(wc -l < whole/metrics.jsonl)" = 56 ] || fail "metrics.jsonl has not one line a step"
# The table has the columns that the lines have, with the same numbers, and those of what this model lacks, which are empty.
head -n 1 whole/metrics.jsonl | grep -o '"[a-z_]*":' | tr -d '":' | paste -sd , | sed 's/$/,loss_scale,tokens,utilization/' > columns
head -n 1 whole/metrics.csv > header && same columns header
sed 's/"[a-z_]*"://g; s/[{}]//g; s/$/,,,/' whole/metrics.jsonl > lines
tail -n +2 whole/metrics.csv > rows && same lines rows
for key in '"lr": 0.02' '"threads": ' '"device": ' '"steps": 56' '"precision": "float32"' '"data": "100 samples (' '"seed"'; do
  says "$key" whole/options.json
done
expect 0 eval whole/best.onnx --data test.csv --json
awk -F'[:,}]' '{ exit !($2 > 0.95) }' out || fail "the network has not learnt: $(cat out)"
expect 0 export whole/best.onnx -o model.onnx
expect 0 predict model.onnx --inputs test.csv -o outputs.npz --batch-size 7
says 'logits float[40,3]' out
expect 0 predict whole/best.onnx --inputs test.csv -o same.npz --batch-size 7
same outputs.npz same.npz
expect 0 flatten train.onnx --entry step -o step.onnx
expect 0 show train.onnx
expect 0 show train.onnx --entry step
expect 0 show train.onnx --plan --passes --arena --batch 16
says 'Updates' out
expect 0 show train.onnx --plan --profile --data train.csv --batch 16
says ' ms' out
expect 0 show "$fixtures/mlp.onnx" --plan --profile --batch 3
expect 0 bench train.onnx --data train.csv --batch-size 16 --seconds 0.1 --profile --top 3 --trace trace.json
says 'arithmetic bound' out
says 'Gemm' out
says '"traceEvents":' trace.json
expect 0 grad "$fixtures/mlp.onnx" --inputs test.csv --loss cross_entropy -o gradients.npz --dtype float64
says 'gradients.npz: loss' out
expect 0 verify train.onnx --inputs train.csv --tolerance 1e-6
says '4 parameters agree' out

# ---- Lines fit the terminal
cp "$fixtures/mlp.onnx" mlp.onnx
for width in 40 80 120; do
  export COLUMNS=$width
  while read -r line; do
    # shellcheck disable=SC2086
    expect 0 $line
    widest=$(LC_ALL=C.UTF-8 wc -L < out)
    [ "$widest" -le $width ] || fail "a line of $widest columns, not $width: $line"
  done << COMMANDS
check mlp.onnx
build mlp.onnx -o narrow.onnx --timings
show train.onnx --plan --arena --batch 16
show train.onnx --plan --memory 100MB
bench train.onnx --data train.csv --batch-size 16 --seconds 0.1 --profile
grad mlp.onnx --inputs test.csv -o gradients.npz
verify train.onnx --inputs train.csv --tolerance 1e-6
fit train.onnx --data train.csv --eval-data test.csv --epochs 2 --out narrow$width
fit train.onnx --data train.csv --eval-data test.csv --epochs 3 --out narrow$width --resume
eval train.onnx --data test.csv
sweep train.onnx --data train.csv --eval-data test.csv --epochs 1 --vary lr=0.01,0.02 --out sweep$width
devices --operators
ops com.microsoft.Fused*
--help
fit --help
sweep --help
predict --help
grad --help
COMMANDS
done
unset COLUMNS
expect 0 show train.onnx --plan --batch 16
head -n 1 out > header && says 'bytes  kernel' header  # one line a node where stdout is no terminal

# ---- Scales belong to the model
expect 0 fit train.onnx --data train.csv --eval-data test.csv --epochs 2 --scale 1/2 --out scaled
says 'x: scale(1/2)' out
expect 0 eval scaled/best.onnx --data test.csv --json
cp out stored
[ -s err ] && fail "a note without --scale: $(cat err)"
expect 0 eval scaled/best.onnx --data test.csv --json --scale x=0.5 && same out stored
expect 0 eval scaled/best.onnx --data test.csv --json --scale 1
says 'trained with: x: scale(1/2)' err
cmp -s out stored && fail "--scale changes nothing"
expect 0 export scaled/best.onnx -o scaled.onnx
says 'left out of the graph: x: scale(1/2)' out
expect 0 predict scaled/best.onnx --inputs test.csv -o stored.npz
expect 0 predict scaled.onnx --inputs test.csv -o exported.npz && same stored.npz exported.npz
expect 0 fit train.onnx --data train.csv --eval-data test.csv --epochs 3 --out scaled --resume
expect 1 fit train.onnx --data train.csv --eval-data test.csv --epochs 4 --scale 1 --out scaled --resume
says 'scale was x=1/2 and is 1' err

# ---- Without evaluation data nothing is called the best evaluation
expect 0 fit train.onnx --data train.csv --epochs 1 --out blind
says 'lowest training loss' out
grep -q 'evaluation with' out && fail "an evaluation without data: $(cat out)"

# ---- Files are what their names say, or are left as they are
for line in "export train.onnx -o out.pt" "build mlp.onnx -o out.pt" \
  "flatten train.onnx -o out.csv" "predict train.onnx --inputs test.csv -o out.npy" \
  "grad mlp.onnx --inputs test.csv -o out.onnx" "bench train.onnx --data train.csv --trace out.csv" \
  "fit train.onnx --data train.csv --epochs 1 --out out.onnx"; do
  output=${line##* }
  echo before > "$output"
  expect 2 $line
  [ "$(cat "$output")" = before ] || fail "$output was written: $line"
done
echo before > out.csv
expect 0 predict train.onnx --inputs test.csv -o out.csv
[ "$(head -1 out.csv)" = file,class,probability,index ] || fail "out.csv begins with $(head -1 out.csv)"
expect 0 export train.onnx -o OUT.ONNX
expect 0 export train.onnx -o OUT.SAFETENSORS
grep -q fc1.weight OUT.SAFETENSORS || fail "the weights are not in OUT.SAFETENSORS"

# ---- Parts equal the whole
expect 0 fit train.onnx --data train.csv --eval-data test.csv --epochs 3 --batch-size 16 --seed 5 --out parts
expect 0 fit train.onnx --data train.csv --eval-data test.csv --epochs 8 --batch-size 16 --seed 5 --out parts --resume
for file in best.onnx last.onnx epochs.jsonl; do same "parts/$file" "whole/$file"; done

# What is not given stays as it was; what may change is said; anything else is refused and changes no file.
cp -r whole resumed
expect 0 fit train.onnx --data train.csv --eval-data test.csv --epochs 9 --out resumed --resume --lr 0.01 --clip 1
says 'resumed from last.onnx at step 56' out
says 'changed: lr was 0.02 and is 0.01' out
says 'changed: clip was none and is 1' out
says 'batches of 16, shuffled by seed 5' out
rm -r resumed && cp -r whole resumed
expect 0 build "$fixtures/mlp.onnx" -o drawn.onnx --optimizer 'adamw(lr=0.02)' --init xavier
sed '2s/^./9/' train.csv > other.csv
resume() { expect 1 fit "$@" --epochs 9 --out resumed --resume; says "$refusal" err; }
refusal='model was' resume drawn.onnx --data train.csv --eval-data test.csv
refusal='data was 100 samples' resume train.onnx --data other.csv --eval-data test.csv
refusal='eval-data was 40 samples' resume train.onnx --data train.csv --eval-data train.csv
diff -r whole resumed > /dev/null || fail "a refused resume changed a file"
expect 0 fit whole/best.onnx --data train.csv --epochs 8 --out resumed --resume  # the evaluation data are the run's
says 'finished at step 56' out

# ---- Bad data is found before the first step, and named by file, array and sample; or by the step that reads it
sed '19s/,[0-9]*$/,3/' train.csv > bad.csv
expect 1 fit train.onnx --data bad.csv --epochs 1 --out bad
says "bad.csv: 'labels' holds 3 in sample 17" err
[ ! -e bad ] || fail "bad data made a folder"
expect 1 fit train.onnx --data bad.csv --epochs 1 --out bad --no-data-check
says "'labels' holds 3 in sample 17" err
expect 1 eval whole/best.onnx --data bad.csv
says "'labels' holds 3 in sample 17" err

# ---- Steps alone end with an evaluation
expect 0 fit train.onnx --data train.csv --eval-data test.csv --steps 5 --eval-every 2 --batch-size 16 --out steps
[ "$(grep -c eval_loss steps/epochs.jsonl)" = 3 ] || fail "not three evaluations: $(cat steps/epochs.jsonl)"

"$command" fit train.onnx --data train.csv --time-limit 60s --batch-size 16 --out stopped > out 2> err &
process=$!
for _ in $(seq 6000); do [ -s stopped/metrics.jsonl ] && break || sleep 0.05; done  # the first step is done
kill -INT $process
wait $process
[ $? = 130 ] || fail "an interrupted fit exits with another status than 130"
says 'interrupted at step' out
expect 0 eval stopped/last.onnx --data test.csv

# ---- Bad usage is 2, anything else 1, one line each
expect 2
expect 2 unknown
expect 2 fit train.onnx
expect 2 fit train.onnx --data train.csv --out new
says 'a training needs an end' err
expect 2 fit train.onnx --data train.csv --epochs 1 --out whole
says '--resume' err
expect 2 build "$fixtures/mlp.onnx" -o x.onnx --mode eval
expect 2 show train.onnx --profile
expect 2 show train.onnx --passes
expect 2 show train.onnx --plan --passes --json
expect 1 show train.onnx --plan --dim nosuch=3
says "no input has a dimension 'nosuch'; those of no fixed size are batch" err
expect 2 show train.onnx --plan --data train.csv
expect 2 bench train.onnx --data train.csv --json --each-step
expect 1 bench train.onnx --data train.csv --seconds 0.1 --trace no/such/folder.json
expect 1 bench train.onnx --data train.csv --batch-size 101
says "the batch size is 101, but train.csv has 100 samples" err
expect 1 check missing.onnx
"$command" fit "$fixtures/mlp.onnx" --data train.csv --epochs 1 --out forward > out 2> err && [ -s forward/train.onnx ] ||
  fail "fit of a forward model: $(cat err)"
expect 2 fit train.onnx --data train.csv --epochs 1 --out new --loss mse
says 'is built already' err
expect 1 fit train.onnx --data missing.npz --epochs 1 --out new
expect 1 build "$fixtures/mlp.onnx" -o x.onnx --loss 'mse(nothing, labels)'
expect 1 fit train.onnx --data train.csv --epochs 9 --batch-size 8 --seed 5 --out whole --resume
says 'batch-size was 16 and is 8' err
sed 's/,labels/,goal/' train.csv > unlabelled.csv
expect 1 fit train.onnx --data unlabelled.csv --epochs 1 --out new
says "has no 'labels'" err
head -c 3000 train.onnx > cut.onnx
expect 1 fit cut.onnx --data train.csv --epochs 1 --out new
expect 1 fit train.onnx --data train.csv --epochs 2 --lr 1e30 --out diverged
says 'the loss is' err
expect 1 build "$fixtures/mlp.onnx" -o x.onnx --train @/dev/zero
says '/dev/zero' err
for kind in "mkfifo pipe" "ln -s /dev/full pipe"; do
  $kind
  expect 1 export train.onnx -o pipe
  says 'no regular file' err
  rm pipe
done
for text in "explain OT1001" "show train.onnx"; do  # less than a buffer of output, and more
  "$command" $text > /dev/full 2> err
  [ $? = 1 ] || fail "$text > /dev/full is no error"
  says 'cannot write to standard output: No space left on device' err
done
expect 2 fit train.onnx --data train.csv --epochs 1 --out new --threads 4294967297
says '--threads' err
expect 2 bench train.onnx --data train.csv --seconds nan
for option in --epochs --batch-size --accumulate --warmup; do  # as many as can be counted
  "$command" fit train.onnx --data train.csv --steps 2 --lr 0.01 --out huge --overwrite $option 9223372036854775807 > out 2> err
  [ $? -le 1 ] && [ "$(wc -l < err)" -le 1 ] || fail "fit $option 9223372036854775807: $(cat err)"
done
for option in --steps --batch-size; do  # more than can be counted
  for number in 9223372036854775808 -9223372036854775809; do
    expect 2 fit train.onnx --data train.csv --epochs 1 --out new $option=$number
    says "$number is out of range" err
  done
done
echo precious > kept.onnx  # a file system that is full
(ulimit -f 1; expect 1 build "$fixtures/mlp.onnx" -o kept.onnx; [ $failures = 0 ]) || fail "no error on a full disk"
[ "$(cat kept.onnx)" = precious ] || fail "a file changed although it could not be written"
ONNX_TRAIN_ISA=sse9 expect 1 bench train.onnx --data train.csv --seconds 0.1
says "ONNX_TRAIN_ISA is 'sse9': it takes one of scalar" err
for subcommand in check build fit eval predict sample export flatten show opt grad verify bench; do
  expect 0 $subcommand --help
  says 'Examples:' out
done

[ $failures = 0 ] && echo "all passed"
exit $failures
