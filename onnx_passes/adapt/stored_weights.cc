#include "onnx_passes/adapt/stored_weights.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <unordered_map>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/quantization/qdq.h"
#include "onnx_passes/quantization/tensors.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

constexpr std::pair<const char*, DType> kStorageTypes[] = {
    {"float16", DType::kFloat16}, {"bfloat16", DType::kBFloat16}, {"int8", DType::kInt8}, {"int4", kInt4}};

// The integers and scales of a weight, and what they say.
struct Blocks {
  Tensor q, scale, rounded;
};

Blocks in_blocks(const Tensor& w, const Granularity& of, DType dtype) {
  const double high = dtype == kInt4 ? 7 : 127;
  Blocks made;
  made.scale = block_scales(w, of, high);
  made.q = quantize(w, made.scale, {}, of, dtype);
  made.rounded = dequantize(made.q, made.scale, {}, of);
  return made;
}

// The weight's place is taken by a value of its name, which `make` computes from the initializer `stored`.
template <typename F>
void put_behind(Graph* graph, Value* weight, const Tensor& stored, const std::string& suffix, const F& make) {
  const std::string name = weight->name();
  graph->rename(weight, graph->unique_name(name + "/float"));
  Value* kept = graph->add_initializer(graph->unique_name(name + suffix), stored);
  Builder b(graph, graph->first());
  b.set_name(name);
  const Var w = make(b, b.var(kept));
  graph->replace(weight, w.value());
  if (w.value()->name() != name) graph->rename(w.value(), name);
}

void mark_four_bits(Value* value) {
  onnx::TensorProto tensor = *value->initializer();
  auto* entry = tensor.add_metadata_props();
  entry->set_key(kFourBits);
  entry->set_value("1");
  value->graph().set_initializer(value, make_initializer(std::move(tensor), stored_contents(*value)));
}

// The axis of the inputs of the layer that reads a weight: where its blocks are.
std::vector<std::pair<Value*, int64_t>> weights_to_store(const Model& model) {
  std::unordered_map<const Value*, int64_t> axes;
  for (const LinearLayer& layer : LinearLayers(model).all()) axes.emplace(layer.weight, layer.out_first ? 1 : 0);
  for (const Node* node = model.graph->first(); node; node = node->next()) {
    const Value* table = node->is("Gather") ? node->input(0) : nullptr;
    const bool embeds = table && table->is_initializer() && is_float(table->dtype()) && table->type().is_static() &&
                        table->rank() == 2 && node->attr("axis", 0) == 0;
    if (embeds) axes.emplace(table, 1);
  }
  std::vector<std::pair<Value*, int64_t>> stored;
  for (Value* value : model.graph->initializers()) {
    if (const auto axis = axes.find(value); axis != axes.end()) stored.emplace_back(value, axis->second);
  }
  return stored;
}

// Two elements a byte, the first in the low half.
Tensor packed(const Tensor& q) {
  if (q.packed()) return *q.packed();
  Tensor bytes(DType::kUint8, {(q.size() + 1) / 2});
  auto* to = bytes.data<uint8_t>();
  for (int64_t i = 0; i < q.size(); ++i)
    to[i / 2] = static_cast<uint8_t>(to[i / 2] | (static_cast<int>(q.at(i)) & 15) << (i % 2 == 0 ? 0 : 4));
  return bytes;
}

class BaseQuantization {
 public:
  BaseQuantization(Model* model, const StorageSpec& spec, bool new_adapters)
      : model_(*model), graph_(*model->graph), spec_(spec), new_adapters_(new_adapters) {}

  void run() {
    std::set<std::string> adapted;
    for (const AdapterPart& part : adapter_parts(model_)) {
      if (part.part == parts::kA) adapted.insert(part.weight);
    }
    if (adapted.empty()) fail("[Adapter] --quantize-base stores the weights beside adapters of low rank: add --lora");
    int64_t before = 0, after = 0;
    std::set<Value*> done;
    int convolutions = 0;
    for (const LinearLayer& layer : LinearLayers(model_).all()) {
      if (!adapted.count(layer.weight->name()) || done.count(layer.weight)) continue;
      if (layer.is_convolution()) {
        ++convolutions;
        continue;
      }
      done.insert(layer.weight);
      before += static_cast<int64_t>(contents_of(*layer.weight).bytes());
      after += store(layer);
    }
    graph_.remove_unused_initializers();
    add_adapted_note(&model_,
                     concat(spec_.dtype == kInt4 ? "int4" : "int8", ", blocks of ", spec_.block, ": ", done.size(),
                            " frozen weights, ", before, " bytes in ", after,
                            convolutions > 0 ? concat("; ", convolutions, " of convolutions stay floats") : ""));
  }

 private:
  // Returns the bytes that it takes.
  int64_t store(const LinearLayer& layer) {
    Value* weight = layer.weight;
    const int64_t axis = layer.out_first ? 1 : 0;
    const Tensor w = contents_of(*weight);
    const int64_t along = w.shape()[static_cast<size_t>(axis)];
    if (along % spec_.block != 0)
      fail("[Adapter] --quantize-base: the weight '", weight->name(), "' has ", along,
           " inputs, no multiple of block=", spec_.block, "; give a block that divides it");
    const bool four = spec_.dtype == kInt4;
    if (four && w.shape().back() % 2 != 0)
      fail("[Adapter] --quantize-base: the weight '", weight->name(), "' has rows of ", w.shape().back(),
           " elements, an odd number; take int8");
    const Blocks made = in_blocks(w, {axis, spec_.block}, spec_.dtype);
    const Tensor stored = four ? Tensor::unpacked(DType::kInt8, w.shape(), packed(made.q)) : made.q;
    const std::string name = weight->name();
    if (new_adapters_) set_magnitude(layer, made.rounded);
    Value* scale = graph_.add_initializer(graph_.unique_name(name + "_scale"), made.scale);
    model_.set_metadata(std::string(kConstantRecord) + scale->name(), "scales of a weight that is stored as integers");
    put_behind(&graph_, weight, stored, "_quantized", [&](Builder& b, Var q) {
      if (four) mark_four_bits(q.value());
      return b.op("DequantizeLinear", {q, b.var(scale)}, {{"axis", axis}, {"block_size", spec_.block}});
    });
    return static_cast<int64_t>(stored.stored().bytes() + made.scale.bytes());
  }

  void set_magnitude(const LinearLayer& layer, const Tensor& rounded) {
    for (const AdapterPart& part : adapter_parts(model_)) {
      if (part.part != parts::kMagnitude || part.weight != layer.weight->name()) continue;
      Value* magnitude = graph_.find(part.tensor);
      replace_initializer(&graph_, magnitude, changed_initializer(*magnitude, magnitude_of(layer, rounded)));
    }
  }

  Model& model_;
  Graph& graph_;
  const StorageSpec spec_;
  const bool new_adapters_;
};

}  // namespace

StorageSpec parse_storage(const std::vector<std::string>& pieces, const std::string& option,
                          const std::vector<std::string>& types) {
  StorageSpec spec;
  if (option == "--quantize-base") spec.block = 64;
  for (const std::string& piece : pieces) {
    const size_t equals = piece.find('=');
    const std::string key = piece.substr(0, equals),
                      value = equals == std::string::npos ? "" : piece.substr(equals + 1);
    if (std::find(types.begin(), types.end(), piece) != types.end()) {
      for (const auto& [name, dtype] : kStorageTypes) {
        if (piece == name) spec.dtype = dtype;
      }
    } else if (key == "block") {
      const char* const end = value.data() + value.size();
      const auto parsed = std::from_chars(value.data(), end, spec.block);
      if (parsed.ec != std::errc() || parsed.ptr != end || spec.block < 16 || spec.block > 4096 ||
          (spec.block & (spec.block - 1)) != 0)
        fail(option, ": block is '", value, "'; take a power of two from 16 to 4096");
    } else {
      std::vector<std::string> known = types;
      known.push_back("block");
      std::string all;
      for (const std::string& type : types) all += type + ", ";
      fail(option, " has no option '", piece, "'; it has ", all, "block=", did_you_mean(key, known));
    }
  }
  if (spec.dtype == DType::kFloat) fail(option, " begins with the type: ", types[0], " or ", types.back());
  return spec;
}

std::map<std::string, Tensor> store_weights(Model* inference, const StorageSpec& spec) {
  Graph* graph = inference->graph.get();
  std::map<std::string, Tensor> rounded;
  const auto constants = constants_of(*inference);
  if (is_float(spec.dtype)) {
    for (Value* value : std::vector<Value*>(graph->initializers())) {
      const bool weight = value->dtype() == DType::kFloat && value->has_rank() && value->rank() > 1 &&
                          !constants.count(value->name()) && !graph->is_output(value);
      if (!weight) continue;
      const std::string name = value->name();
      const Tensor narrow = contents_of(*value).cast(spec.dtype);
      rounded[name] = narrow.cast(DType::kFloat);
      put_behind(graph, value, narrow, "_" + onnx_train::name(spec.dtype), [](Builder& b, Var w) {
        return b.op("Cast", {w}, {{"to", static_cast<int>(DType::kFloat)}});
      });
    }
  } else {
    for (const auto& [weight, axis] : weights_to_store(*inference)) {
      if (weight->dtype() != DType::kFloat || constants.count(weight->name()) || graph->is_output(weight)) continue;
      const std::string name = weight->name();
      const Blocks made = in_blocks(contents_of(*weight), {axis, spec.block}, spec.dtype);
      rounded[name] = made.rounded;
      Value* scale = graph->add_initializer(graph->unique_name(name + "_scale"), made.scale);
      put_behind(graph, weight, made.q, "_quantized", [&, along = axis](Builder& b, Var q) {
        if (spec.dtype == kInt4) mark_four_bits(q.value());
        return b.op("DequantizeLinear", {q, b.var(scale)}, {{"axis", along}, {"block_size", spec.block}});
      });
    }
  }
  if (rounded.empty()) fail("--dtype: the model has no weights that could be stored so");
  graph->remove_unused_initializers();
  return rounded;
}

Pass quantize_base(const StorageSpec& spec, bool new_adapters) {
  return {"quantize_base", [spec, new_adapters](Model& model) {
            BaseQuantization(&model, spec, new_adapters).run();
            return true;
          }};
}

int dequantize_weights(Model* inference) {
  Graph& graph = *inference->graph;
  int count = 0;
  for (Node* node : graph.nodes()) {
    if (!node->is("DequantizeLinear") || !node->input(0)->is_initializer()) continue;
    const auto of = granularity_of(*node);
    const Tensor scale = constant_of(node->input(1)), zero = constant_of(node->input(2));
    if (!of || scale.empty()) continue;
    const Tensor w = dequantize(contents_of(*node->input(0)), scale, zero, *of);
    if (w.empty()) continue;
    Value* read = node->output();
    const std::string name = read->name();
    graph.rename(read, graph.unique_name(name + "/dequantized"));
    graph.replace(read, graph.add_initializer(name, w));
    graph.remove(node);
    ++count;
  }
  graph.remove_unused_initializers();
  return count;
}

void pack_four_bits(Model* inference) {
  Graph& graph = *inference->graph;
  for (Value* value : std::vector<Value*>(graph.initializers())) {
    if (!had_four_bits(value) || value->uses().empty() || graph.is_output(value)) continue;
    const bool alone = std::all_of(value->uses().begin(), value->uses().end(), [](const Use& use) {
      return use.node->is("DequantizeLinear") && use.index == 0 && !use.node->input(2);
    });
    if (!alone || (value->dtype() != DType::kInt8 && value->dtype() != DType::kUint8)) continue;
    const Tensor q = contents_of(*value);
    onnx::TensorProto tensor;
    tensor.set_name(value->name());
    tensor.set_data_type(static_cast<int>(value->dtype() == DType::kInt8 ? kInt4 : kUint4));
    for (const int64_t size : q.shape()) tensor.add_dims(size);
    const Tensor bytes = packed(q);
    tensor.set_raw_data(bytes.data(), bytes.bytes());
    const TensorType type{static_cast<DType>(tensor.data_type()), value->type().dims};
    graph.set_initializer(value, std::move(tensor));
    value->set_type(type);
  }
}

}  // namespace onnx_train
