// What the store of rank 0 (store_server.h) keeps, and what it answers. Nothing that is asked is trusted. The caller
// owns the object; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace onnx_train {

class StoreValues {
 public:
  // The answer to the first query of `bytes`, of which `taken` bytes are then done with; none where it has not come
  // whole. Throws Error for what is no query of StoreProtocol.
  std::optional<std::string> answer(std::string_view bytes, size_t* taken);

 private:
  void keep(const std::string& key, std::string value);

  std::map<std::string, std::string> values_;
  size_t bytes_ = 0;
};

}  // namespace onnx_train
