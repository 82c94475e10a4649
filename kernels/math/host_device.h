// The qualifier of functions that the kernels of both devices call: empty for a C++ compiler, __host__ __device__ for
// nvcc.
#pragma once

#ifdef __CUDACC__
#define ONNX_TRAIN_HD __host__ __device__
#else
#define ONNX_TRAIN_HD
#endif
