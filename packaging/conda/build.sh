#!/usr/bin/env bash
# The build of the recipe: ONNX in a namespace of its own, then onnx-train, from what the environment has in $PREFIX.
# It runs in any environment that has the libraries: PREFIX=/usr/local SRC_DIR=$PWD packaging/conda/build.sh
set -euo pipefail
export CMAKE_GENERATOR=Ninja CMAKE_BUILD_PARALLEL_LEVEL=${CPU_COUNT:-$(nproc)}
# CMAKE_ARGS is a list of words.
# shellcheck disable=SC2086
cmake ${CMAKE_ARGS:-} -C "$SRC_DIR/cmake/onnx.cmake" -S "$SRC_DIR/onnx" -B build-onnx -DCMAKE_PREFIX_PATH="$PREFIX" \
  -DCMAKE_INSTALL_PREFIX="$PWD/onnx-installed" -DONNX_BUILD_PYTHON=OFF
cmake --build build-onnx
cmake --install build-onnx

# shellcheck disable=SC2086
cmake ${CMAKE_ARGS:-} -S "$SRC_DIR" -B build-onnx-train -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$PWD/onnx-installed;$PREFIX" \
  -DCMAKE_INSTALL_PREFIX="$PREFIX" -DCMAKE_INSTALL_LIBDIR=lib -DONNX_TRAIN_TESTS=OFF -DONNX_TRAIN_WERROR=OFF \
  -DCMAKE_DISABLE_FIND_PACKAGE_Gloo=ON -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DCMAKE_DISABLE_FIND_PACKAGE_Python=ON
cmake --build build-onnx-train --target onnx-train
cmake --install build-onnx-train
