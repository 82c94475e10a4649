#include "platform/library.h"

#include <windows.h>

#include "platform/windows/wide.h"

namespace onnx_train::platform {

const char* const kLibrarySuffix = ".dll";

std::string file_of(const void* address) {
  HMODULE module = nullptr;
  constexpr DWORD kHow = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
  if (!GetModuleHandleExW(kHow, static_cast<const wchar_t*>(address), &module)) return "";
  std::wstring path(32768, L'\0');
  path.resize(GetModuleFileNameW(module, path.data(), static_cast<DWORD>(path.size())));
  return narrow(path);
}

void* open_library(const std::string& path) { return LoadLibraryW(wide(path).c_str()); }

std::string library_error() {
  wchar_t* text = nullptr;
  constexpr DWORD kHow = FORMAT_MESSAGE_ALLOCATE_BUFFER | FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS;
  const DWORD size = FormatMessageW(kHow, nullptr, GetLastError(), 0, reinterpret_cast<wchar_t*>(&text), 0, nullptr);
  std::string message = narrow({text, size});
  LocalFree(text);
  while (!message.empty() && static_cast<unsigned char>(message.back()) <= ' ') message.pop_back();
  return message;
}

void* find_symbol(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

}  // namespace onnx_train::platform
