// Functions compiled for several generations of processors; the program picks one when it starts. For inner loops over
// one row, where wider vectors pay: the loop goes into a function of its own (OpenMP's parallel regions are functions
// of their own, too, and would lose the attribute).
#pragma once

#if defined(__x86_64__)
#define ONNX_TRAIN_MULTIVERSION [[gnu::target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")]]
#else
#define ONNX_TRAIN_MULTIVERSION
#endif
