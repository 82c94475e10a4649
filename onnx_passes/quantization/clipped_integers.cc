#include "onnx_passes/quantization/clipped_integers.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/weight_origin.h"

namespace onnx_train {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// A bound that is one constant number; `otherwise` if the input is left out. Nothing if it is not known.
std::optional<double> bound(const Value* value, double otherwise) {
  if (!value) return otherwise;
  const Tensor known = constant_of(value);
  return known.size() == 1 ? std::optional(known.at(0)) : std::nullopt;
}

const std::string* find_record(const Value& stored, const char* key) {
  for (const auto& entry : stored.initializer()->metadata_props()) {
    if (entry.key() == key) return &entry.value();
  }
  return nullptr;
}

void set_record(onnx::TensorProto* tensor, const char* key, const std::string& text) {
  for (auto& entry : *tensor->mutable_metadata_props()) {
    if (entry.key() == key) return entry.set_value(text);
  }
  auto* entry = tensor->add_metadata_props();
  entry->set_key(key);
  entry->set_value(text);
}

// "-7 7", within `whole`.
std::optional<QuantizedRange> parse_range(const std::string& text, const QuantizedRange& whole) {
  int64_t low = 0, high = 0;
  const char *const begin = text.data(), *const end = begin + text.size();
  const auto first = std::from_chars(begin, end, low);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, high);
  if (second.ec != std::errc() || second.ptr != end) return std::nullopt;
  const QuantizedRange range{static_cast<double>(low), static_cast<double>(high)};
  const bool inside = whole.low <= range.low && range.low <= range.high && range.high <= whole.high;
  return inside ? std::optional(range) : std::nullopt;
}

// The input whose elements the node clips.
int clipped_input(const Node& node) {
  if (!node.is("Min") && !node.is("Max")) return 0;
  for (int i = 0; i < node.num_inputs(); ++i) {
    if (constant_of(node.input(i)).size() != 1) return i;
  }
  return 0;
}

}  // namespace

std::optional<QuantizedRange> clipped_range(const Use& use, const QuantizedRange& range) {
  const Node& node = *use.node;
  double low = -kUnbounded, high = kUnbounded;
  if (node.is("Clip") && use.index == 0) {
    const auto least = bound(node.input(1), low), most = bound(node.input(2), high);
    if (!least || !most) return std::nullopt;
    low = *least;
    high = *most;
  } else if (node.is("Relu")) {
    low = 0;
  } else if (node.is("Min") || node.is("Max")) {
    for (int i = 0; i < node.num_inputs(); ++i) {
      if (i == use.index) continue;
      const auto number = bound(node.input(i), kUnbounded);
      if (!number || !node.input(i)) return std::nullopt;
      if (node.is("Min")) high = std::min(high, *number);
      if (node.is("Max")) low = std::max(low, *number);
    }
  } else {
    return std::nullopt;
  }
  // Where low > high, ONNX gives high.
  const auto clip = [&](double x) { return std::min(std::max(x, low), high); };
  return QuantizedRange{clip(range.low), clip(range.high)};
}

std::optional<QuantizedRange> range_of_stored(const Value& stored) {
  const auto whole = range_of(stored.dtype());
  if (!whole || !stored.is_initializer()) return whole;
  if (const std::string* text = find_record(stored, kRange)) {
    if (const auto range = parse_range(*text, *whole)) return range;
  }
  if (!find_record(stored, kFourBits)) return whole;
  return range_of(stored.dtype() == DType::kInt8 ? kInt4 : kUint4);
}

Value* clip_stored(Value* stored, const QuantizedRange& range) {
  Tensor clipped = contents_of(*stored).clone();
  for (int64_t i = 0; i < clipped.size(); ++i) clipped.set(i, std::clamp(clipped.at(i), range.low, range.high));
  Graph& graph = stored->graph();
  const bool shared = stored->uses().size() > 1 || graph.is_output(stored);
  const std::string name = shared ? graph.unique_name(stored->name() + "/clipped") : stored->name();
  onnx::TensorProto tensor;
  to_proto(clipped, name, &tensor);
  *tensor.mutable_metadata_props() = stored->initializer()->metadata_props();
  set_record(&tensor, kRange, concat(static_cast<int64_t>(range.low), " ", static_cast<int64_t>(range.high)));
  if (shared) return graph.add_initializer(std::move(tensor));
  graph.set_initializer(stored, std::move(tensor));
  return stored;
}

void fold_clips_of_stored(Node* dequantize) {
  Graph& graph = dequantize->graph();
  std::vector<Node*> clips;
  Value* stored = dequantize->input(0);
  for (Node* node = stored->producer(); node && &node->graph() == &graph; node = stored->producer()) {
    const int index = clipped_input(*node);
    if (!is_integer(stored->dtype()) || !clipped_range({node, index}, {0, 0})) return;
    clips.push_back(node);
    stored = node->input(index);
  }
  const auto whole = range_of(stored->dtype());
  if (clips.empty() || !whole || !stored->is_initializer() || &stored->graph() != &graph || graph.is_input(stored))
    return;
  QuantizedRange range = *range_of_stored(*stored);
  for (auto node = clips.rbegin(); node != clips.rend(); ++node)
    range = *clipped_range({*node, clipped_input(**node)}, range);
  dequantize->set_input(0, clip_stored(stored, range));
  for (Node* node : clips) {
    if (node->output()->uses().empty() && !graph.is_output(node->output())) graph.remove(node);
  }
}

}  // namespace onnx_train
