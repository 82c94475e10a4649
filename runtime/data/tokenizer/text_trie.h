// Texts with a number each, found where another text begins with them. Values; any thread may search.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace onnx_train {

class TextTrie {
 public:
  // Of equal texts the last one counts.
  void add(std::string_view text, int64_t number) {
    uint64_t node = 0;
    for (const char c : text) node = next_.try_emplace(key(node, c), next_.size() + 1).first->second;
    numbers_[node] = number;
  }
  bool empty() const { return numbers_.empty(); }

  // f(length, number) for each text that `text` begins with, the shortest first.
  template <typename F>
  void for_each_beginning(std::string_view text, const F& f) const {
    uint64_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto next = next_.find(key(node, text[i]));
      if (next == next_.end()) return;
      node = next->second;
      if (const auto number = numbers_.find(node); number != numbers_.end()) f(i + 1, number->second);
    }
  }

 private:
  static uint64_t key(uint64_t node, char c) { return node << 8 | static_cast<unsigned char>(c); }

  std::unordered_map<uint64_t, uint64_t> next_;    // from a node, by a byte
  std::unordered_map<uint64_t, int64_t> numbers_;  // of the nodes where a text ends
};

}  // namespace onnx_train
