// The onnx-train command: parses arguments, calls a subcommand, turns errors into one line. Returns the exit status:
// 0 success, 1 an error that was reported, 2 bad usage, 130 interrupted.
#pragma once

namespace onnx_train {

int command(int argc, char** argv);

}  // namespace onnx_train
