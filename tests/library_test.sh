#!/usr/bin/env bash
# Installs the library, builds programs outside the tree with it and runs them. Usage: library_test.sh BUILD
set -uo pipefail
source=$(realpath "$(dirname "$0")/..")
build=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  echo "FAILED: $*"
  exit 1
}

cmake --install "$build" --prefix "$work/usr" > install.log || fail "install: $(tail -3 install.log)"
library=$(echo usr/lib*/libonnx_train.so)
[ -e "$library" ] || library=$(echo usr/lib*/*/libonnx_train.so)

exported=$(nm -D --defined-only "$library" | awk '$2 != "A" {print $3}' | sed 's/@.*//' | sort)
declared=$(grep -o '\bonnx_train_[a-z_]*(' "$source/include/onnx_train/onnx_train.h" | tr -d '(' | sort -u)
[ "$exported" = "$declared" ] || fail "exported, but not declared, or the reverse: $(diff <(echo "$exported") <(echo "$declared"))"
objdump -p "$library" | grep -q 'SONAME.*libonnx_train.so.0' || fail "no SONAME"

cmake -G Ninja -S "$source/examples/cpp" -B examples -DCMAKE_PREFIX_PATH="$work/usr" > configure.log &&
  cmake --build examples > build.log || fail "the examples do not build: $(tail -20 configure.log build.log)"
./examples/train "$source/tests/fixtures/mlp.onnx" trained.onnx || fail "the example does not train"
usr/bin/onnx-train check trained.onnx > /dev/null || fail "the trained model is not one"

pc=$(dirname "$(find usr -name onnx_train.pc)")
flags=$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs onnx_train) || fail "pkg-config"
# shellcheck disable=SC2086
gcc -std=c99 -Wall -Wextra -Wpedantic -Werror "$source/tests/library_test.c" -o c_test $flags -Wl,-rpath,"$work/$(dirname "$library")" ||
  fail "a C program does not build"
./c_test "$source/tests/fixtures/mlp.onnx" || fail "the C program"
echo "library_test: all passed; $(echo "$exported" | wc -l) symbols exported"
