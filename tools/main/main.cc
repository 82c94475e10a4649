#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "tools/command.h"

int main(int argc, char** argv) {
  // Large blocks go back to the system when they are freed: a loaded file's tensors, once they are state. Left alone,
  // malloc learns from the first ones to keep them.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  // Small blocks that are freed join their neighbours at once. Left alone, malloc keeps them apart, and walks all of
  // them again at each larger allocation: a tenth of the time of a graph of 100,000 nodes.
  mallopt(M_MXFAST, 0);
  const int status = onnx_train::command(argc, argv);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // which report on the way out
  return status;
#else
  // The system takes the memory back at once. Destroying the schemas of ONNX and the descriptors of protobuf one by one
  // would take 7% of the time of `check`.
  std::cout.flush();
  std::fflush(nullptr);
  std::quick_exit(status);
#endif
}
