// What ranks tell each other, whatever carries it, and how their failures read. Each rank sends each other one a
// sequence of headers; what a header announces follows it. Plain values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace onnx_train {

struct RankHeader {
  static constexpr uint32_t kExchange = 0x0a11da7a, kMessage = 0x0a11da7b;
  static constexpr uint32_t kLeaves = 0x0a11b1e0, kForwards = 0x0a11f04d, kEnds = 0x0a11e4d5;  // a rank's last words

  uint32_t kind, place;  // `place`: text_hash of the name
  uint64_t bytes;        // that follow

  bool is_last() const { return kind == kLeaves || kind == kForwards || kind == kEnds; }
};
constexpr uint64_t kLongestReason = 1 << 16;

// What follows a header of kind kMessage: the name, a zero byte and the data.
struct RankMessage {
  std::vector<std::byte> contents;

  std::string_view name() const { return reinterpret_cast<const char*>(contents.data()); }
  std::span<const std::byte> data() const { return std::span(contents).subspan(name().size() + 1); }
  bool has_name() const;
};

// The header of an exchange.
RankHeader header_of(const std::string& what, uint64_t bytes);
// A message with its header before it.
std::vector<std::byte> message_of(const std::string& name, std::span<const std::byte> data);

// The messages of errors. `what` names the exchange of `rank`; "" where it waits for a message.
std::string at_another_place(size_t other, int rank, const std::string& what);
std::string of_another_size(int from, size_t sent, const std::string& name, int rank, size_t wanted);
std::string without_a_name(size_t from);
std::string is_gone(size_t rank, const std::string& host);
// What this rank takes from the last words of another one, which may forward those of a third; never "".
std::string heard(size_t rank, bool forwards, const std::string& reason);

}  // namespace onnx_train
