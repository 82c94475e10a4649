#include "platform/linux/own_process.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "platform/process.h"

namespace onnx_train::platform {

int64_t thread_id() { return gettid(); }

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

void end_with_parent(bool ends) { prctl(PR_SET_PDEATHSIG, ends ? SIGTERM : 0); }

}  // namespace onnx_train::platform
