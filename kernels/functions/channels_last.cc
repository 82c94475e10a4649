// Convolutions, pools and group normalization on channels-last images, [batch, sizes.., channels], selected by the
// attribute channels_last = 1. Their bodies transpose, call the operator of the same name, and transpose back. Weights
// and their gradients keep ONNX's order. The pass channels_last emits these functions. The permutations depend on the
// rank, so there is one overload per rank.
#include <algorithm>
#include <string>

#include "kernels/functions/functions.h"
#include "onnx_passes/functions/body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// Returns the permutation from batch, channels, sizes.. to batch, sizes.., channels.
std::vector<int64_t> to_channels_last(int64_t rank) {
  std::vector<int64_t> permutation = {0};
  for (int64_t axis = 2; axis < rank; ++axis) permutation.push_back(axis);
  permutation.push_back(1);
  return permutation;
}

// Returns the inverse permutation.
std::vector<int64_t> to_channels_first(int64_t rank) {
  std::vector<int64_t> permutation = {0, rank - 1};
  for (int64_t axis = 1; axis < rank - 1; ++axis) permutation.push_back(axis);
  return permutation;
}

bool is_image(const std::string& name) { return name == "x" || name == "y" || name == "dx" || name == "dy"; }

// Hands attributes on: "groups, pads: ints, mode: int = 1" as "groups: int = @groups, pads: ints = @pads, ..".
std::string handed_on(const std::string& attributes) {
  std::string text;
  for (size_t from = 0; from < attributes.size();) {
    const size_t end = std::min(attributes.find(", ", from), attributes.size());
    const std::string word = attributes.substr(from, end - from), name = word.substr(0, word.find(':'));
    const std::string typed = word == name ? name + ": int" : word.substr(0, word.find(" ="));
    text += concat(text.empty() ? "" : ", ", typed, " = @", name);
    from = end + 2;
  }
  return text;
}

// An operator on images, by ONNX's or by our operator of the same name.
struct ImageOperator {
  const char* op;
  std::string attributes;
  const char* inputs;                // images are x and dy, their shape x_shape
  std::vector<std::string> outputs;  // images are y and dx
  bool is_ours;
};

FunctionText images_last(const ImageOperator& row, const FunctionCall& call) {
  std::string outputs;
  for (const std::string& output : row.outputs) outputs += (outputs.empty() ? "" : ", ") + output;
  Body f(concat(row.op, " <channels_last: int, ", row.attributes, "> (", row.inputs, ") => (", outputs, ")"), call);
  const int64_t rank = call.inputs.at(0).rank();
  f.depends_on(concat("channels_last_rank", rank));
  Terms inputs;
  for (const std::string& name : f.input_names()) {
    Term x = f.input(name);
    if (is_image(name)) x = transpose(x, to_channels_first(rank));
    if (name == "x_shape") x = gather(x, to_channels_first(rank));
    inputs.push_back(x);
  }
  const std::string attributes = handed_on(row.attributes);
  const int count = static_cast<int>(row.outputs.size());
  Terms results = row.is_ours ? f.apply(row.op, count, inputs, attributes) : f.ops(row.op, count, inputs, attributes);
  for (size_t i = 0; i < results.size(); ++i) {
    if (is_image(row.outputs[i])) results[i] = transpose(results[i], to_channels_last(rank));
  }
  return f.text(results);
}

// Returns a row for images whose channels come last. Row `first`, if given, handles those whose channels come first.
FunctionRow channels_last(const ImageOperator& row, const FunctionRow& first = {}) {
  return {row.op, [row, first](const FunctionCall& call) {
            if (first.text && !is_set(call.attrs, "channels_last")) return first.text(call);
            return images_last(row, call);
          }};
}

constexpr const char* kConvolution = "group: int = 1, strides: ints, dilations: ints, pads: ints";
constexpr const char* kPool = "kernel_shape: ints, strides: ints, dilations: ints, pads: ints";
constexpr const char* kCeil = "kernel_shape: ints, strides: ints, dilations: ints, pads: ints, ceil_mode: int = 0";
constexpr const char* kGroups = "num_groups, epsilon: float = 1e-5";

}  // namespace

std::vector<FunctionRow> convolution_layouts() {
  const FunctionRow convolution =
      function("Conv <group: int = 1, strides: ints, dilations: ints, pads: ints> (x, w, bias) => (y)",
               [](Body& f, Term x, Term w, Term bias) {
                 return f.op("Conv", {x, w, bias}, handed_on(kConvolution));
               });
  return {
      channels_last({"Conv", kConvolution, "x, w, bias", {"y"}, false}, convolution),
      channels_last({"ConvGradInput", kConvolution, "dy, w, x_shape", {"dx"}, true}, find_function("ConvGradInput")),
      channels_last({"ConvGradWeight", kConvolution, "x, dy, w_shape", {"dw", "db"}, true},
                    find_function("ConvGradWeight")),
  };
}

std::vector<FunctionRow> channels_last_functions() {
  const std::string count = ", count_include_pad: int = 0";
  const auto gradient = [](const ImageOperator& row) { return channels_last(row, find_function(row.op)); };
  return {
      channels_last({"MaxPool", kCeil, "x", {"y"}, false}),
      gradient({"MaxPoolGrad", kCeil, "dy, x", {"dx"}, true}),
      channels_last({"AveragePool", kCeil + count, "x", {"y"}, false}),
      gradient({"AveragePoolGrad", kPool + count, "dy, x_shape", {"dx"}, true}),
      channels_last({"GroupNormalization", kGroups, "x, scale, bias", {"y"}, false}),
      gradient({"GroupNormalizationGrad", kGroups, "x, scale, dy", {"dx", "dscale", "dbias"}, true}),
  };
}

}  // namespace onnx_train
