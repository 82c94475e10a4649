#include "runtime/data/files/npy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <string_view>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

struct NumpyType {
  DType dtype;
  std::string_view name;  // without the byte order
};

constexpr std::array<NumpyType, 12> kTypes = {{
    {DType::kFloat, "f4"},
    {DType::kDouble, "f8"},
    {DType::kFloat16, "f2"},
    {DType::kInt8, "i1"},
    {DType::kInt16, "i2"},
    {DType::kInt32, "i4"},
    {DType::kInt64, "i8"},
    {DType::kUint8, "u1"},
    {DType::kUint16, "u2"},
    {DType::kUint32, "u4"},
    {DType::kUint64, "u8"},
    {DType::kBool, "b1"},
}};

struct Header {
  DType dtype = DType::kUndefined;
  bool fortran_order = false;
  Shape shape;
};

DType parse_type(std::string_view descr, const std::string& where) {
  if (descr.find('O') != std::string_view::npos) {
    fail_as(ErrorCode::kArrayType, where, " holds Python objects (dtype '", descr,
            "'), which only unpickling could read; store numbers");
  }
  const char order = descr.empty() ? '?' : descr[0];
  const std::string_view type = descr.substr(descr.empty() ? 0 : 1);
  for (const NumpyType& known : kTypes) {
    if (known.name != type) continue;
    if (order == '>' && size_of(known.dtype) > 1) {
      fail_as(ErrorCode::kArrayType, where, " is big-endian (dtype '", descr, "'); store it with .astype('<", type,
              "')");
    }
    return known.dtype;
  }
  fail_as(ErrorCode::kArrayType, where, " has dtype '", descr,
          "', which is none that models take; store numbers or booleans");
}

// Reads the header's text, a Python dictionary in the one form that NumPy writes.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Header parse() {
    Header header;
    expect('{');
    while (!accept('}')) {
      const std::string key(quoted());
      expect(':');
      if (key == "descr") {
        header.dtype = parse_type(peek() == '[' ? fail_structured() : quoted(), where_);
      } else if (key == "fortran_order") {
        header.fortran_order = boolean();
      } else if (key == "shape") {
        header.shape = tuple();
      } else {
        damaged();
      }
      if (!accept(',') && peek() != '}') damaged();
    }
    if (header.dtype == DType::kUndefined) damaged();
    return header;
  }

 private:
  [[noreturn]] void damaged() const { fail_as(ErrorCode::kFile, where_, " has a damaged .npy header"); }
  [[noreturn]] std::string_view fail_structured() const {
    fail_as(ErrorCode::kArrayType, where_, " is a structured array; store one array per input");
  }

  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    if (at_ == text_.size()) damaged();
    return text_[at_];
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) damaged();
  }
  std::string_view quoted() {
    expect('\'');
    const size_t end = text_.find('\'', at_);
    if (end == std::string_view::npos) damaged();
    const std::string_view word = text_.substr(at_, end - at_);
    at_ = end + 1;
    return word;
  }
  bool boolean() {
    peek();
    for (const std::string_view word : {"True", "False"}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return word == "True";
    }
    damaged();
  }
  Shape tuple() {
    Shape shape;
    expect('(');
    while (!accept(')')) {
      shape.push_back(number());
      if (!accept(',') && peek() != ')') damaged();
    }
    return shape;
  }
  int64_t number() {
    peek();
    int64_t value = 0;
    const size_t start = at_;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
          __builtin_add_overflow(value, text_[at_] - '0', &value)) {
        damaged();
      }
    }
    if (at_ == start) damaged();
    return value;
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
};

// The elements of a Fortran-ordered array in C order: the first index runs fastest in `from`, the last one in `to`.
Tensor to_c_order(const Header& header, const char* from) {
  Tensor to(header.dtype, header.shape);
  const size_t element = size_of(header.dtype);
  Shape shape;  // without axes that move nothing, of which a header may have thousands
  std::copy_if(header.shape.begin(), header.shape.end(), std::back_inserter(shape),
               [](int64_t size) { return size != 1; });
  for (int64_t n = 0; n < to.size(); ++n) {
    int64_t rest = n, offset = 0, below = to.size();
    for (size_t axis = shape.size(); axis-- > 0;) {
      below /= shape[axis];  // elements that one step along the axis skips
      offset += rest % shape[axis] * below;
      rest /= shape[axis];
    }
    std::memcpy(to.data<char>() + static_cast<size_t>(n) * element, from + static_cast<size_t>(offset) * element,
                element);
  }
  return to;
}

}  // namespace

Tensor parse_npy(const void* data, size_t size, const std::shared_ptr<const void>& owner, const std::string& where) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (size < 10 || std::memcmp(bytes, kMagic.data(), kMagic.size()) != 0)
    fail_as(ErrorCode::kDataDamaged, where, " is not a .npy array");
  const bool long_header = bytes[6] >= 2;  // version 1 has two bytes of length, 2 and 3 have four
  const size_t start = long_header ? 12 : 10;
  if (bytes[6] < 1 || bytes[6] > 3)
    fail_as(ErrorCode::kFile, where, " is a .npy array of the unknown version ", int{bytes[6]});
  if (size < start) fail_as(ErrorCode::kDataDamaged, where, " has a damaged .npy header");
  size_t length = bytes[8] | size_t{bytes[9]} << 8;
  if (long_header) length |= size_t{bytes[10]} << 16 | size_t{bytes[11]} << 24;
  if (length > size - start) fail_as(ErrorCode::kDataDamaged, where, " is cut off within its .npy header");
  const std::string_view text(reinterpret_cast<const char*>(bytes) + start, length);
  const Header header = HeaderParser(text, where).parse();
  const auto available = size - start - length;
  size_t wanted = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(num_elements(header.shape)), size_of(header.dtype), &wanted) ||
      wanted > available) {
    fail_as(ErrorCode::kDataDamaged, where, " is cut off: ", name(header.dtype), to_string(header.shape),
            " needs more than the ", available, " bytes that are there");
  }
  const char* values = text.data() + length;
  if (header.fortran_order && header.shape.size() > 1) return to_c_order(header, values);
  return Tensor(header.dtype, header.shape, values, owner);
}

std::string npy_header(DType dtype, const Shape& shape) {
  std::string_view type;
  for (const NumpyType& known : kTypes) {
    if (known.dtype == dtype) type = known.name;
  }
  if (type.empty()) fail("NumPy has no type for ", name(dtype));
  std::string dims;
  for (int64_t size : shape) dims += concat(size, shape.size() == 1 ? "," : ", ");
  if (shape.size() > 1) dims.resize(dims.size() - 2);
  const char order = size_of(dtype) > 1 ? '<' : '|';
  std::string text = concat("{'descr': '", order, type, "', 'fortran_order': False, 'shape': (", dims, "), }");
  constexpr size_t kPrefix = 10;
  text.append(63 - (kPrefix + text.size()) % 64, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

}  // namespace onnx_train
