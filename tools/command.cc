#include "tools/command.h"

#include <cstdio>

namespace onnx_train {

int command(int, char**) {
  std::fprintf(stderr, "onnx-train: no subcommands yet\n");
  return 2;
}

}  // namespace onnx_train
