// The qualifier of functions that both devices' kernels call: nothing for a C++ compiler, both sides for nvcc.
#pragma once

#ifdef __CUDACC__
#define ONNX_TRAIN_HD __host__ __device__
#else
#define ONNX_TRAIN_HD
#endif
