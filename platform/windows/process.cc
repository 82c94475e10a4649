// What the commands that make models need. Starting processes is left to the port of training.
#include "platform/process.h"

#include <windows.h>

#include <shellapi.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "platform/windows/wide.h"

namespace onnx_train::platform {
namespace {

Child not_here() {
  errno = ENOSYS;
  return -1;
}

}  // namespace

int64_t process_id() { return GetCurrentProcessId(); }
int64_t thread_id() { return GetCurrentThreadId(); }

std::string host_name() {
  wchar_t name[256];
  DWORD size = 256;
  return GetComputerNameExW(ComputerNameDnsHostname, name, &size) ? narrow({name, size}) : "localhost";
}

void set_variable(const char* name, const char* value, bool overwrite) {
  if (overwrite || !std::getenv(name)) _putenv_s(name, value);
}

std::vector<std::string> own_command_line() {
  int count = 0;
  wchar_t** const words = CommandLineToArgvW(GetCommandLineW(), &count);
  std::vector<std::string> arguments;
  for (int i = 0; words && i < count; ++i) arguments.push_back(narrow(words[i]));
  LocalFree(words);
  return arguments;
}

void exit_quickly(int status) { std::_Exit(status); }

void run_again(const std::vector<std::string>&) { not_here(); }
void end_with_parent(bool) {}

Child start_rank(const std::vector<std::string>&, const std::vector<std::string>&) { return not_here(); }
Child start_apart(const std::vector<std::string>&, int, const std::string&) { return not_here(); }
ProcessEnd wait_for(Child) { return {1, 0}; }
int ask_for_end(Child, ProcessEnd*) { return static_cast<int>(not_here()); }
void interrupt(Child) {}
void terminate(Child) {}

std::pair<int, std::string> run_line(const std::string& line) {
  std::FILE* const pipe = _wpopen(wide("(" + line + ") 2>&1 >nul").c_str(), L"rb");
  if (!pipe) return {-1, ""};
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  return {_pclose(pipe), text};
}

}  // namespace onnx_train::platform
