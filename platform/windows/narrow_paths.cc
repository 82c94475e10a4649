// std::filesystem::path of mingw-w64's library makes UTF-16 of narrow characters by mbrtowc, which takes every byte for
// a character in the locale "C", and makes narrow ones of UTF-16 as UTF-8. There is no locale of UTF-8 in the C library
// that it is for. So the linker calls the function of this file in the place of mbrtowc (CMakeLists.txt, --wrap).
#include <windows.h>

#include <cerrno>
#include <cwchar>

namespace {

// The bytes of the character that begins with this one; 0 if none does.
size_t utf8_length(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

}  // namespace

// A character of four bytes is two units of UTF-16: the first call takes three bytes and keeps the second unit, the
// next one takes the last byte.
extern "C" size_t __wrap_mbrtowc(wchar_t* to, const char* from, size_t size, mbstate_t* state);
extern "C" size_t __wrap_mbrtowc(wchar_t* to, const char* from, size_t size, mbstate_t* state) {
  static thread_local mbstate_t own = 0;
  if (!state) state = &own;
  if (!from) return *state = 0;
  if (size == 0) return static_cast<size_t>(-2);
  wchar_t units[2] = {static_cast<wchar_t>(*state)};
  *state = 0;
  size_t taken = 1;
  if (units[0] == 0) {
    const size_t length = utf8_length(static_cast<unsigned char>(*from));
    if (length > size) return static_cast<size_t>(-2);
    const int count = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, from, static_cast<int>(length), units, 2);
    if (length == 0 || count == 0) {
      errno = EILSEQ;
      return static_cast<size_t>(-1);
    }
    *state = count == 2 ? units[1] : 0;
    taken = count == 2 ? length - 1 : length;
  }
  if (to) *to = units[0];
  return units[0] == 0 ? 0 : taken;
}
