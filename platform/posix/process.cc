#include "platform/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "platform/linux/own_process.h"

namespace onnx_train::platform {
namespace {

constexpr int kNotStarted = 127;

// The words as execv takes them.
std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

ProcessEnd end_of(int status) {
  return WIFSIGNALED(status) ? ProcessEnd{0, WTERMSIG(status)} : ProcessEnd{WEXITSTATUS(status), 0};
}

// In the new process: nothing but system calls, since this may run between any two instructions of other threads.
[[noreturn]] void become(const char* program, char* const* arguments, int log, pid_t parent, const std::string& sorry) {
  setpgid(0, 0);  // Ctrl-C on the terminal reaches the parent alone, which passes it on once
  end_with_parent(true);
  if (getppid() != parent) _exit(kNotStarted);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execv(program, arguments);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, sorry.data(), sorry.size());
  _exit(kNotStarted);
}

}  // namespace

int64_t process_id() { return getpid(); }

std::string host_name() {
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  return host;
}

void set_variable(const char* name, const char* value, bool overwrite) { setenv(name, value, overwrite ? 1 : 0); }

void exit_quickly(int status) { std::quick_exit(status); }

void run_again(const std::vector<std::string>& command_line) { execv(kOwnProgram, pointers_to(command_line).data()); }

Child start_rank(const std::vector<std::string>& command_line, const std::vector<std::string>& variables) {
  std::vector<char*> environment = pointers_to(variables);
  environment.pop_back();
  for (char** variable = environ; *variable; ++variable) environment.push_back(*variable);
  environment.push_back(nullptr);
  pid_t pid = 0;
  errno = posix_spawn(&pid, kOwnProgram, nullptr, nullptr, pointers_to(command_line).data(), environment.data());
  return errno == 0 ? pid : -1;
}

Child start_apart(const std::vector<std::string>& command_line, int log, const std::string& sorry) {
  std::error_code error;
  std::string program = std::filesystem::read_symlink(kOwnProgram, error).string();
  if (error || !std::filesystem::exists(program, error)) program = kOwnProgram;  // the file has been replaced meanwhile
  const std::vector<char*> arguments = pointers_to(command_line);
  const pid_t parent = getpid(), child = fork();
  if (child == 0) become(program.c_str(), arguments.data(), log, parent, sorry);
  return child;
}

ProcessEnd wait_for(Child child) {
  int status = 0;
  while (waitpid(static_cast<pid_t>(child), &status, 0) < 0 && errno == EINTR) {
  }
  return end_of(status);
}

int ask_for_end(Child child, ProcessEnd* end) {
  int status = 0;
  const pid_t ended = waitpid(static_cast<pid_t>(child), &status, WNOHANG);
  if (ended < 0) return errno == EINTR ? 0 : -1;
  if (ended == 0) return 0;
  *end = end_of(status);
  return 1;
}

void interrupt(Child child) { kill(static_cast<pid_t>(child), SIGINT); }
void terminate(Child child) { kill(static_cast<pid_t>(child), SIGTERM); }

std::pair<int, std::string> run_line(const std::string& line) {
  std::FILE* const pipe = popen(("{ " + line + "; } 2>&1 >/dev/null").c_str(), "r");
  if (!pipe) return {-1, ""};
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  return {pclose(pipe), text};
}

}  // namespace onnx_train::platform
