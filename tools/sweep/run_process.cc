#include "tools/sweep/run_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include "onnx_passes/ir/error.h"
#include "tools/interrupt.h"

namespace onnx_train {
namespace {

constexpr int kNotStarted = 127;

// In the new process: nothing but system calls, since this may run between any two instructions of other threads.
[[noreturn]] void become(const char* program, char* const* arguments, int log, pid_t parent) {
  setpgid(0, 0);  // Ctrl-C on the terminal reaches the sweep alone, which passes it on once
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kNotStarted);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execv(program, arguments);
  constexpr char kMessage[] = "onnx-train: this program cannot be started again\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  _exit(kNotStarted);
}

}  // namespace

RunLog::RunLog(const std::string& folder) : path_(folder + "/log.txt") {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail_as(ErrorCode::kFile, "cannot make the folder ", folder, ": ", error.message());
  descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail_as(ErrorCode::kFile, "cannot write ", path_, ": ", std::strerror(errno));
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  // A file system without locks gives another error: then this process takes the run as its own.
  locked_ = fcntl(descriptor_, F_OFD_SETLK, &lock) == 0 || (errno != EAGAIN && errno != EACCES);
}

RunLog::~RunLog() { close(descriptor_); }

std::string RunLog::last_line() const {
  constexpr off_t kEnd = 4096;
  struct stat info {};
  if (fstat(descriptor_, &info) != 0) return "";
  std::string text(static_cast<size_t>(std::min(info.st_size, kEnd)), '\0');
  const ssize_t got = pread(descriptor_, text.data(), text.size(), info.st_size - static_cast<off_t>(text.size()));
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  const size_t end = text.find_last_not_of(" \n");
  if (end == std::string::npos) return "";
  text.resize(end + 1);
  return text.substr(text.rfind('\n') + 1);
}

RunEnd run_process(const std::vector<std::string>& arguments, const RunLog& log, const std::function<void()>& look) {
  const std::atomic<bool>& interrupted = catch_interrupts();
  constexpr const char* kSelf = "/proc/self/exe";
  std::error_code error;
  std::string program = std::filesystem::read_symlink(kSelf, error).string();
  if (error || !std::filesystem::exists(program, error)) program = kSelf;  // the file has been replaced meanwhile
  std::vector<std::string> texts = {"onnx-train"};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  const pid_t parent = getpid(), child = fork();
  if (child == 0) become(program.c_str(), pointers.data(), log.descriptor(), parent);
  if (child < 0) fail("cannot start a process: ", std::strerror(errno));
  int status = 0;
  for (bool passed_on = false;;) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    if (ended < 0 && errno != EINTR) fail("cannot wait for a run: ", std::strerror(errno));
    if (interrupted && !passed_on) {
      kill(child, SIGINT);
      passed_on = true;
    }
    look();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return WIFSIGNALED(status) ? RunEnd{0, WTERMSIG(status)} : RunEnd{WEXITSTATUS(status), 0};
}

}  // namespace onnx_train
