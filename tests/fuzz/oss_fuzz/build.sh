#!/bin/bash -eu
# Builds the fuzz targets as OSS-Fuzz asks for them: with its clang, flags and engine, into $OUT. Beside the targets are
# their limits, their seeds, and the libraries that the machine which runs them lacks.
cd "$SRC/onnx-train"
export PATH=$PWD/.deps/venv/bin:$PATH

# What computes is GCC's, without sanitizers.
env -u CFLAGS -u CXXFLAGS CC=gcc CXX=g++ cmake --preset command > /dev/null
cmake --build build --target onnx-train

# The libraries of the system, and ONNX's, are of GCC's standard library.
flags="$CXXFLAGS -stdlib=libstdc++"
cmake --preset fuzz -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO= \
  -DONNX_TRAIN_SANITIZE= -DONNX_TRAIN_FUZZ_ENGINE="$LIB_FUZZING_ENGINE" -DCMAKE_BUILD_RPATH='$ORIGIN/lib' > /dev/null
cmake --build build-fuzz

mkdir -p "$OUT/lib"
for program in build-fuzz/tests/fuzz/fuzz_*; do
  [ -x "$program" ] || continue
  name=$(basename "$program")
  cp "$program" "$program.options" "$OUT/"
  zip -q -j "$OUT/${name}_seed_corpus.zip" "tests/fuzz/corpus/${name#fuzz_}"/*
done
ldd build-fuzz/tests/fuzz/fuzz_model | awk '$3 ~ /^\// && $3 !~ /\/(libc|libm|libpthread|libdl|librt)\.so/ { print $3 }' |
  xargs -I{} cp -L {} "$OUT/lib/"
