// Attributes of a node to be made. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// An attribute: {"axis", -1}, {"perm", {1, 0}}.
struct Attr {
  std::string name;
  std::variant<int64_t, float, std::string, std::vector<int64_t>, Tensor> value;
  Attr(std::string n, int v) : name(std::move(n)), value(static_cast<int64_t>(v)) {}
  Attr(std::string n, int64_t v) : name(std::move(n)), value(v) {}
  Attr(std::string n, float v) : name(std::move(n)), value(v) {}
  Attr(std::string n, const char* v) : name(std::move(n)), value(std::string(v)) {}
  Attr(std::string n, std::string v) : name(std::move(n)), value(std::move(v)) {}
  Attr(std::string n, std::vector<int64_t> v) : name(std::move(n)), value(std::move(v)) {}
  Attr(std::string n, Tensor v) : name(std::move(n)), value(std::move(v)) {}
};
using Attrs = std::vector<Attr>;

}  // namespace onnx_train
