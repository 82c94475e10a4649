#include "runtime/distribution/store_values.h"

#include <cstdlib>
#include <cstring>

#include "onnx_passes/ir/error.h"
#include "runtime/distribution/store.h"

namespace onnx_train {
namespace {

constexpr size_t kMostKept = size_t{1} << 26;  // bytes, of all keys and values

// There are not enough bytes yet.
struct Incomplete {};

// Reads a query out of the bytes that have come. Throws Incomplete, and Error for a text that is too long.
class QueryReader {
 public:
  explicit QueryReader(std::string_view bytes) : left_(bytes) {}

  template <typename T>
  T number() {
    const std::string_view bytes = take(sizeof(T));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string text() {
    const auto size = number<uint64_t>();
    if (size > StoreProtocol::kLongest) fail("a text of ", size, " bytes");
    return std::string(take(size));
  }
  size_t left() const { return left_.size(); }

 private:
  std::string_view take(size_t bytes) {
    if (left_.size() < bytes) throw Incomplete();
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }

  std::string_view left_;
};

template <typename T>
std::string bytes_of(T number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

}  // namespace

std::optional<std::string> StoreValues::answer(std::string_view bytes, size_t* taken) {
  QueryReader reader(bytes);
  std::string answer;
  try {
    switch (const auto query = reader.number<uint8_t>()) {
      case StoreProtocol::kValidate:
        if (reader.number<uint32_t>() != StoreProtocol::kMagic) fail("another protocol");
        break;
      case StoreProtocol::kSet: {
        const std::string key = reader.text();
        keep(key, reader.text());
        break;
      }
      case StoreProtocol::kGet: {
        const auto found = values_.find(reader.text());
        const std::string value = found == values_.end() ? "" : found->second;
        answer = bytes_of(uint64_t{value.size()}) + value;
        break;
      }
      case StoreProtocol::kAdd: {
        const std::string key = reader.text();
        const auto added = reader.number<int64_t>();
        const auto before = values_.find(key);
        const int64_t sum = static_cast<int64_t>(
            static_cast<uint64_t>(added) +
            static_cast<uint64_t>(before == values_.end() ? 0 : std::atoll(before->second.c_str())));
        keep(key, std::to_string(sum));
        answer = bytes_of(int64_t{sum});
        break;
      }
      case StoreProtocol::kCheck: {
        bool has_all = true;
        for (auto count = reader.number<uint64_t>(); count > 0; --count)
          has_all = values_.contains(reader.text()) && has_all;
        answer = bytes_of(has_all ? StoreProtocol::kReady : StoreProtocol::kNotReady);
        break;
      }
      default: fail("query ", int{query});
    }
  } catch (const Incomplete&) {
    return std::nullopt;
  }
  *taken = bytes.size() - reader.left();
  return answer;
}

void StoreValues::keep(const std::string& key, std::string value) {
  bytes_ += key.size() + value.size();
  if (bytes_ > kMostKept) fail("too many values");
  values_[key] = std::move(value);
}

}  // namespace onnx_train
