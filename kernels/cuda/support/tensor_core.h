// Products of a warp on tensor cores, of float32 numbers that are rounded to TF32: the one header with inline PTX.
// Under nvcc the functions are instructions, for compute capability 8.0 and later; on the host the header that
// GPU_ON_HOST names defines functions that exchange the same fragments between fibers.
//
// Lane 4g + t of a warp, with g = 0..7 and t = 0..3, holds these elements of the matrices (PTX ISA, m16n8k8, .tf32):
//
//   a [16, 8]: (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)
//   b [8, 8]:  (t, g), (t + 4, g)
//   d [16, 8]: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
#pragma once

#include "kernels/cuda/support/gpu.h"

#ifndef GPU_ON_HOST

namespace gpu {

// Returns x rounded to 10 bits after the point; ties round away from zero, and NaN stays NaN.
__device__ inline float to_tf32(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}

// d += a b, with sums in float32. All lanes of the warp call it; a and b hold results of to_tf32.
__device__ inline void multiply_add_16x8x8(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

// Loads four matrices of 8 x 4 elements from shared memory. Lane 8j + i passes the address of row i of matrix j,
// aligned to 16 bytes, and lane 4g + t gets element (g, t) of each. All lanes of the warp call it.
__device__ inline void load_matrices(float (&elements)[4], const float* row) {
  unsigned bits[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
#pragma unroll
  for (int i = 0; i < 4; ++i) elements[i] = __uint_as_float(bits[i]);
}

}  // namespace gpu

#endif
