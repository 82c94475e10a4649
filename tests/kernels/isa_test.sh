#!/usr/bin/env bash
# The tests whose results depend on the CPU's kernels, with the instruction sets of one level (kernels/cpu/support/cpu_features.h), on a
# machine that has a higher one. Exit status 77: the reason why nothing ran is printed. The highest level is the other
# tests' own. Usage: isa_test.sh UNIT_TESTS LEVEL
set -euo pipefail
unit_tests=$1 level=$2
levels=(scalar avx2 avx512 avx512_bf16 amx)
# OpenBLAS's name for a core of the level: it chooses when it is loaded.
declare -A cores=([scalar]=Nehalem [avx2]=Haswell [avx512]=SkylakeX [avx512_bf16]=SkylakeX)

# It fails where the machine lacks the level; the error names its highest one.
highest=$(ONNX_TRAIN_ISA=amx "$unit_tests" --gtest_filter='CpuFeatures.IsaIs*' 2>&1 |
  sed -n 's/.*its highest level is \([a-z0-9_]*\).*/\1/p' | head -1) || true
highest=${highest:-amx}
for other in "${levels[@]}"; do
  [ "$other" = "$highest" ] && echo "skipped: the highest level of this machine is $highest, not above $level" && exit 77
  [ "$other" = "$level" ] && break
done

suites=(CpuFeatures '*OpCases' NodeTests Conv '*Convolutions' ChannelsLast FuseBatchNormalization '*Products' Gemm
  'Bfloat16*' 'Files/Golden' MixedPrecision NarrowStorage RoundedRecurrence Fused FusedOperators 'Elementwise*' Lines Movement
  Normalization Resize SparseUpdates Dropout Philox '*Optimizers' BlockAttention LinearCrossEntropy)
filter=$(printf '%s.*:' "${suites[@]}")
echo "$level, below this machine's $highest:"
ONNX_TRAIN_ISA=$level OPENBLAS_CORETYPE=${cores[$level]} "$unit_tests" --gtest_brief=1 --gtest_filter="$filter-Amx*:Cuda*:*HaveGradients:*_BlockAttention*"
