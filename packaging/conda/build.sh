#!/usr/bin/env bash
# The build of the recipe: ONNX in a namespace of its own, laid out as scripts/bootstrap does it, then onnx-train. All other libraries
# are those of the environment in $PREFIX, or of the system: PREFIX=/usr/local SRC_DIR=$PWD packaging/conda/build.sh
set -euo pipefail
export CMAKE_GENERATOR=Ninja CMAKE_BUILD_PARALLEL_LEVEL=${CPU_COUNT:-$(nproc)}
onnx=$(echo "$SRC_DIR"/.deps/onnx-[0-9]*[0-9])
# CMAKE_ARGS is a list of words, and the last of them holds.
# shellcheck disable=SC2086
cmake -C "$SRC_DIR/cmake/onnx.cmake" -S "$onnx" -B "$SRC_DIR/.deps/onnx-build" -DCMAKE_PREFIX_PATH="$PREFIX" ${CMAKE_ARGS:-} \
  -DCMAKE_INSTALL_PREFIX="$SRC_DIR/.deps/onnx" -DCMAKE_INSTALL_LIBDIR=lib
cmake --build "$SRC_DIR/.deps/onnx-build"
cmake --install "$SRC_DIR/.deps/onnx-build"

# shellcheck disable=SC2086
cmake -S "$SRC_DIR" -B build -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$PREFIX" -DCMAKE_INSTALL_PREFIX="$PREFIX" \
  -DCMAKE_INSTALL_LIBDIR=lib -DONNX_TRAIN_TESTS=OFF -DONNX_TRAIN_WERROR=OFF -DCMAKE_DISABLE_FIND_PACKAGE_Gloo=ON \
  -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DCMAKE_DISABLE_FIND_PACKAGE_Python=ON ${CMAKE_ARGS:-}
cmake --build build --target onnx-train
cmake --install build
