// The onnx-train command for fuzz.py: what a process does before main, which is long under sanitizers, is done once.
// Reads requests from the standard input and answers each on the standard output with the status as waitpid gives it.
//
// A request is fields that each end with a zero byte: the limit of processor time in seconds, of memory and of a file
// in bytes (0: no limit), the paths of the files for the command's two outputs, the number of arguments, and those.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "tools/command.h"

namespace {

std::string next_field() {
  std::string text;
  if (!std::getline(std::cin, text, '\0')) std::exit(0);
  return text;
}

long next_number() { return std::stol(next_field()); }

void limit(int resource, rlim_t soft, rlim_t hard) {
  const rlimit value = {soft, hard};
  if (setrlimit(resource, &value)) _exit(126);
}

void open_as(int descriptor, const std::string& path) {
  const int file = open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR, 0666);
  if (file < 0 || dup2(file, descriptor) < 0) _exit(126);
  close(file);
}

// A sanitizer reserves more addresses than any limit of them; its own limit of resident memory is a thread, which a
// fork does not keep.
void watch_memory(long bytes) {
  std::thread([bytes] {
    const long page = sysconf(_SC_PAGESIZE);
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
      long size = 0, resident = 0;
      if (FILE* file = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(file, "%ld %ld", &size, &resident) != 2) resident = 0;
        std::fclose(file);
      }
      if (resident * page > bytes) {
        const char text[] = "hard rss limit exhausted\n";
        if (write(2, text, sizeof text - 1) < 0) _exit(126);
        _exit(1);
      }
    }
  }).detach();
}

int run(std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  return onnx_train::command(static_cast<int>(arguments.size()), pointers.data());
}

}  // namespace

int main() {
  // ONNX's tables of operators are made once. What it prints is not an answer.
  const int answers = dup(1);
  open_as(1, "/dev/null");
  run({"onnx-train", "ops", "Abs"});
  dup2(answers, 1);
  for (;;) {
    const long seconds = next_number(), memory = next_number(), file_bytes = next_number();
    const std::string out = next_field(), errors = next_field();
    std::vector<std::string> arguments(static_cast<size_t>(next_number()));
    for (std::string& argument : arguments) argument = next_field();
    const pid_t child = fork();
    if (child == 0) {
      open_as(0, "/dev/null");
      open_as(1, out);
      open_as(2, errors);
      limit(RLIMIT_CPU, static_cast<rlim_t>(seconds), static_cast<rlim_t>(seconds) + 1);
      limit(RLIMIT_CORE, 0, 0);
      if (file_bytes) limit(RLIMIT_FSIZE, static_cast<rlim_t>(file_bytes), static_cast<rlim_t>(file_bytes));
      alarm(static_cast<unsigned>(20 * seconds));  // for one that waits
      if (memory) watch_memory(memory);
      std::exit(run(arguments));
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) < 0) return 1;
    std::cout << status << std::endl;
  }
}
