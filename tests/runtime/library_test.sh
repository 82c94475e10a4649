#!/usr/bin/env bash
# Installs the library, builds programs outside the tree with it and runs them. Usage: library_test.sh BUILD
set -uo pipefail
source=$(realpath "$(dirname "$0")/../..")
build=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  echo "FAILED: $*"
  exit 1
}

cmake --install "$build" --prefix "$work/usr" > install.log || fail "install: $(tail -3 install.log)"
grep -q 'B .-.-epochs' usr/share/man/man1/onnx-train-fit.1 || fail "cmake --install has written no man page of fit"
library=$(echo usr/lib*/libonnx_train.so)
[ -e "$library" ] || library=$(echo usr/lib*/*/libonnx_train.so)

# Programs see the C interface; all other symbols have the version ONNX_TRAIN_INTERNAL, which is not stable.
symbols=$(nm -D --defined-only "$library" | awk '$2 != "A" {print $3}')
exported=$(grep -v '@@ONNX_TRAIN_INTERNAL_' <<< "$symbols" | sed 's/@.*//' | sort)
others=$(grep '@@ONNX_TRAIN_INTERNAL_' <<< "$symbols" | sed 's/@.*//' | c++filt | grep -vE '^(vtable for |typeinfo (name )?for )?onnx_train::' | head -3)
[ -z "$others" ] || fail "exported, but not ours: $others"
declared=$(grep -o '\bonnx_train_[a-z_]*(' "$source/include/onnx_train/onnx_train.h" | tr -d '(' | sort -u)
[ "$exported" = "$declared" ] || fail "exported, but not declared, or the reverse: $(diff <(echo "$exported") <(echo "$declared"))"
# The committed list is the interface that programs rely on: names are added to it, never removed.
diff "$source/tests/runtime/symbols.txt" <(echo "$exported") > symbols.diff || fail "tests/runtime/symbols.txt is not what is exported: $(cat symbols.diff)"
grep -q 'SONAME.*libonnx_train.so.0' <<< "$(objdump -p "$library")" || fail "no SONAME"

cmake -G Ninja -S "$source/examples/cpp" -B examples -DCMAKE_PREFIX_PATH="$work/usr" > configure.log &&
  cmake --build examples > build.log || fail "the examples do not build: $(tail -n 20 configure.log build.log)"
./examples/train "$source/tests/fixtures/mlp.onnx" trained.onnx || fail "the example does not train"
usr/bin/onnx-train check trained.onnx > /dev/null || fail "the trained model is not one"
./examples/loop "$source/tests/fixtures/mlp.onnx" run > loop.log || fail "the loop over the program's batches"
[ "$(grep -c 'accuracy .* after epoch' loop.log)" = 5 ] && [ -s run/last.onnx ] && [ -s run/best.onnx ] || fail "the loop says: $(cat loop.log)"
usr/bin/onnx-train check run/best.onnx > /dev/null || fail "best.onnx is no model"
./examples/swap "$source/tests/fixtures/mlp.onnx" || fail "weights that are exchanged while serving"
./examples/federated "$source/tests/fixtures/mlp.onnx" || fail "federated averaging"
./examples/c_loop "$source/tests/fixtures/mlp.onnx" c_trained.onnx || fail "the loop in C"
usr/bin/onnx-train check c_trained.onnx > /dev/null || fail "the model of the loop in C"

pc=$(dirname "$(find usr -name onnx_train.pc)")
flags=$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs onnx_train) || fail "pkg-config"
# shellcheck disable=SC2086
gcc -std=c99 -Wall -Wextra -Wpedantic -Werror "$source/tests/runtime/library_test.c" -o c_test $flags -Wl,-rpath,"$work/$(dirname "$library")" ||
  fail "a C program does not build"
./c_test "$source/tests/fixtures/mlp.onnx" cpu || fail "the C program"
# The program of docs/library.md trains on files.
sed -n '/^```c$/,/^```$/p' "$source/docs/library.md" | grep -v '^```' > files.c
cp "$source/tests/fixtures/mlp.onnx" model.onnx
for file in train test; do
  awk -v file=$file 'BEGIN { srand(file == "test"); print "a,b,labels,c,d"
    for (i = 0; i < 200; ++i) { a = rand() - 0.5; b = rand() - 0.5; print a "," b "," (a < b) "," rand() "," rand() } }' > $file.csv
done
# shellcheck disable=SC2086
gcc -std=c99 -Wall -Wextra -Wpedantic -Werror files.c -o files $flags -Wl,-rpath,"$work/$(dirname "$library")" ||
  fail "the program of docs/library.md does not build"
./files > files.log || fail "the program of docs/library.md"
grep -q '^accuracy 0\.9' files.log || fail "the program of docs/library.md prints $(cat files.log)"
env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=VERBOSE ./c_test "$source/tests/fixtures/mlp.onnx" cpu > openmp 2>&1
grep -q "GOMP_SPINCOUNT = '10000'" openmp || fail "the spinning of the C program's threads is not bounded"

# Everything of the C interface is in the C++ one, which compiles without a warning.
for name in $exported; do
  grep -q "$name\b" "$source/include/onnx_train/onnx_train.hpp" || [ "$name" = onnx_train_version ] || fail "onnx_train.hpp has no $name"
done
# shellcheck disable=SC2086
g++ -std=c++17 -Wall -Wextra -Wpedantic -Wshadow -Werror "$source/tests/runtime/library_test.cc" -o cc_test $flags -Wl,-rpath,"$work/$(dirname "$library")" ||
  fail "a C++ program does not build"
./cc_test "$source/tests/fixtures/mlp.onnx" || fail "the C++ program"

# A device comes from a module in the folder of the library.
./c_test "$source/tests/fixtures/mlp.onnx" async_host > err && fail "a device without a module was found"
grep -q "there is no device 'async_host' in this installation; there are: cpu" err || fail "which says: $(cat err)"
cp "$build/libonnx_train_async_host.so" "$(dirname "$library")"
./c_test "$source/tests/fixtures/mlp.onnx" async_host || fail "the C program on a device of a module"
rm -r whole parts  # the runs on the CPU
./cc_test "$source/tests/fixtures/mlp.onnx" async_host || fail "the C++ program on a device of a module"
usr/bin/onnx-train devices > devices || fail "devices"
# The module for CUDA is there if it was built.
[ "$(cut -d' ' -f1 devices | grep -v '^cuda$')" = $'cpu\nasync_host' ] || fail "devices lists $(cat devices)"
# Where a library that it needs is missing, or the driver, one line says so, and the CPU is there as before.
if [ -e "$(dirname "$library")/libonnx_train_cuda.so" ] && ! grep -q '^cuda .*threads\|^cuda .*MiB' devices; then
  usr/bin/onnx-train build trained.onnx -o train.onnx --loss cross_entropy > /dev/null || fail "build"
  usr/bin/onnx-train fit train.onnx --device cuda --data none.npz --steps 1 --out on_cuda 2> err && fail "a device that is not there"
  [ "$(wc -l < err)" = 1 ] && grep -q "device 'cuda'" err || fail "which says: $(cat err)"
  ./c_test "$source/tests/fixtures/mlp.onnx" cpu || fail "the C program beside the module for CUDA"
fi
echo 'no module' > "$(dirname "$library")/libonnx_train_broken.so"
grep -q "broken *not available: device 'broken': " <<< "$(usr/bin/onnx-train devices)" || fail "a broken module is not listed as one"
echo "library_test: all passed; $(echo "$exported" | wc -l) symbols exported"
