#include "runtime/support/fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

class DataHash {
 public:
  DataHash() : state_(XXH3_createState(), XXH3_freeState) { XXH3_64bits_reset(state_.get()); }

  void add(const std::string& text) {
    add_number(text.size());
    XXH3_64bits_update(state_.get(), text.data(), text.size());
  }
  void add_number(uint64_t number) { XXH3_64bits_update(state_.get(), &number, sizeof number); }

  void add(const std::string& name, const Tensor& tensor, size_t sampled_bytes) {
    add(name);
    add(onnx_train::name(tensor.dtype()) + to_string(tensor.shape()));
    constexpr size_t kBlock = size_t{64} << 10;
    const size_t bytes = tensor.bytes(), blocks = std::max<size_t>(sampled_bytes / kBlock, 2);
    if (bytes <= blocks * kBlock) return update(tensor, 0, bytes);
    const size_t last = bytes - kBlock;
    for (size_t i = 0; i < blocks; ++i)
      update(tensor, last / (blocks - 1) * i + last % (blocks - 1) * i / (blocks - 1), kBlock);
  }

  std::string hex() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(XXH3_64bits_digest(state_.get())));
    return text;
  }

 private:
  void update(const Tensor& tensor, size_t at, size_t bytes) {
    if (bytes == 0) return;
    const size_t element = size_of(tensor.dtype());
    const size_t first = at / (2 * element) * 2, end = (at + bytes + element - 1) / element;
    const Tensor part = tensor.part(static_cast<int64_t>(first), static_cast<int64_t>(end - first));
    XXH3_64bits_update(state_.get(), static_cast<const char*>(part.data()) + (at - first * element), bytes);
  }

  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

void add_initializers(const Graph& graph, DataHash* hash) {
  for (const Value* value : graph.initializers()) {
    hash->add(value->name(), stored_contents(*value), kSampledWeightBytes);
  }
}

}  // namespace

std::string fingerprint(const std::vector<NamedTensor>& tensors, size_t sampled_bytes) {
  DataHash hash;
  for (const NamedTensor& named : tensors) hash.add(named.name, named.tensor, sampled_bytes);
  return hash.hex();
}

std::string fingerprint(const Model& model) {
  onnx::ModelProto proto;
  to_proto(model, &proto, {.contents = false});
  const auto without_contents = [](onnx::GraphProto* graph) {  // where contents are stored is not part of the identity
    graph->clear_initializer();
    graph->clear_sparse_initializer();
    return graph->SerializeAsString();
  };
  DataHash hash;
  hash.add(without_contents(proto.mutable_graph()));
  for (auto& info : *proto.mutable_training_info()) {
    hash.add(without_contents(info.mutable_algorithm()));
    hash.add(info.SerializeAsString());
  }
  for (const auto& function : proto.functions()) hash.add(function.SerializeAsString());
  for (const char* key : {"onnx_train.loss", "onnx_train.optimizer", "onnx_train.mode", "onnx_train.precision"}) {
    hash.add(model.metadata(key));
  }
  add_initializers(*model.graph, &hash);
  for (const EntryPoint& entry : model.entry_points) add_initializers(*entry.algorithm, &hash);
  return hash.hex();
}

}  // namespace onnx_train
