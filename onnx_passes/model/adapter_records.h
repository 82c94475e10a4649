// Which tensors of a model are parts of adapters or of a new head: records in the model's metadata, which training
// models and exported models keep. `onnx_train.adapter` holds the method (adapter_spec.h),
// `onnx_train.adapter.<tensor>` the part and the weight it belongs to, `onnx_train.head.<tensor>` the output. Functions
// on a model that one caller owns.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

inline constexpr const char* kAdapter = "onnx_train.adapter";
inline constexpr std::string_view kAdapterRecord = "onnx_train.adapter.";
inline constexpr std::string_view kHeadRecord = "onnx_train.head.";
inline constexpr std::string_view kGrownRecord =
    "onnx_train.grown.";  // of --resize-vocabulary: "602 rows in place of 600"

// The parts, as PEFT names them.
namespace parts {
inline constexpr const char* kA = "lora_A";
inline constexpr const char* kB = "lora_B";
inline constexpr const char* kMagnitude = "lora_magnitude_vector";
inline constexpr const char* kScale = "ia3_l";        // of a layer's output
inline constexpr const char* kInputScale = "ia3_ff";  // of its input; PEFT names it ia3_l, too
inline constexpr const char* kBias = "bias";          // of BitFit
}  // namespace parts

struct AdapterPart {
  std::string tensor, part, weight;  // the weight of the layer; of a bias: itself
};

// "layers.0.q" of "layers.0.q.lora_A.weight": the module of the layer beside which the part is.
std::string module_of_part(const AdapterPart& part);

void record_part(Model* model, const AdapterPart& part);
// In the order in which they were recorded.
std::vector<AdapterPart> adapter_parts(const Model& model);
bool has_adapters(const Model& model);

// The tensors that are trained without being asked for where a model has adapters: their parts, and new heads. Empty
// for a model without adapters.
std::unordered_set<std::string> trained_with_adapters(const Model& model);

// Whether the key is one of the above, and the tensor it names is in the graph.
bool is_adapter_record(const std::string& key, const Graph& graph);
// Removes the records of adapters.
void forget_adapters(Model* model);

// "layers.0.q" of "layers.0.q.weight": the name that PEFT gives to the layer.
std::string module_of(const std::string& weight);

}  // namespace onnx_train
