#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "platform/process.h"
#include "tools/command.h"

int main(int argc, char** argv) {
  const int status = onnx_train::command(argc, argv);
// These report on the way out.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(ONNX_TRAIN_COVERAGE)
  return status;
#else
  // The system takes the memory back at once. Destroying the schemas of ONNX and the descriptors of protobuf one by one
  // would take 7% of the time of `check`.
  std::cout.flush();
  std::fflush(nullptr);
  onnx_train::platform::exit_quickly(status);
#endif
}
