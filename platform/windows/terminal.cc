#include "platform/terminal.h"

#include <fcntl.h>
#include <io.h>
#include <windows.h>

#include <cstdio>
#include <cstdlib>

namespace onnx_train::platform {

void prepare_standard_streams() {
  _fmode = _O_BINARY;  // of files that are opened from here on
  for (std::FILE* const stream : {stdin, stdout, stderr}) _setmode(_fileno(stream), _O_BINARY);
  SetConsoleOutputCP(CP_UTF8);
}

bool write_all(int descriptor, const char* data, size_t size) {
  for (size_t done = 0; done < size;) {
    const int written = _write(descriptor, data + done, static_cast<unsigned>(size - done));
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

int wait_for_input(std::chrono::milliseconds) { return 1; }  // reading waits itself

std::ptrdiff_t read_input(char* to, size_t size) { return _read(kStandardInput, to, static_cast<unsigned>(size)); }

// A device that is no console, such as NUL, is no terminal.
bool is_terminal(int descriptor) {
  DWORD mode = 0;
  return GetConsoleMode(reinterpret_cast<HANDLE>(_get_osfhandle(descriptor)), &mode) != 0;
}

std::optional<TerminalSize> terminal_size() {
  CONSOLE_SCREEN_BUFFER_INFO about;
  if (!GetConsoleScreenBufferInfo(GetStdHandle(STD_OUTPUT_HANDLE), &about)) return std::nullopt;
  return TerminalSize{static_cast<size_t>(about.srWindow.Right - about.srWindow.Left + 1),
                      static_cast<size_t>(about.srWindow.Bottom - about.srWindow.Top + 1)};
}

// A view of the whole screen is not ported.
bool has_foreground() { return false; }
bool remember_keys() { return false; }
void take_keys() {}
void give_keys_back() {}

}  // namespace onnx_train::platform
