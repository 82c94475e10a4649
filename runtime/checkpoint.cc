#include "runtime/checkpoint.h"

#include <xxhash.h>
#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/external_data.h"
#include "onnx_passes/ir/loading.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes/passes.h"

namespace onnx_train {
namespace {

constexpr const char* kPosition = "onnx_train.checkpoint";
constexpr const char* kChecksum = "onnx_train.checksum";

class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) { XXH3_128bits_reset(state_.get()); }

  void add(const std::string& bytes) { add(bytes.data(), bytes.size()); }
  void add(const void* bytes, uint64_t size) {
    XXH3_128bits_update(state_.get(), &size, sizeof size);  // so that "ab", "c" is not "a", "bc"
    XXH3_128bits_update(state_.get(), bytes, size);
  }
  std::string hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    char text[33];
    std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                  static_cast<unsigned long long>(hash.low64));
    return text;
  }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

void add_tensors(const onnx::GraphProto& graph, const TensorContents& contents, Hash* hash) {
  for (const onnx::TensorProto& tensor : graph.initializer()) {
    hash->add(tensor.name());
    if (contents && lacks_contents(tensor)) {
      const Tensor value = contents(tensor.name());
      hash->add(value.data(), value.bytes());
    } else {
      hash->add(tensor.has_raw_data() ? tensor.raw_data() : tensor.SerializeAsString());
    }
  }
}

std::string checksum(const onnx::ModelProto& proto, const std::string& position,
                     const TensorContents& contents = nullptr) {
  Hash hash;
  hash.add(position);
  add_tensors(proto.graph(), contents, &hash);
  for (const auto& info : proto.training_info()) add_tensors(info.algorithm(), contents, &hash);
  return hash.hex();
}

std::string metadata(const onnx::ModelProto& proto, const std::string& key) {
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() == key) return entry.value();
  }
  return "";
}

void set_metadata(onnx::ModelProto* proto, const std::string& key, const std::string& value) {
  for (auto& entry : *proto->mutable_metadata_props()) {
    if (entry.key() == key) return entry.set_value(value);
  }
  auto* entry = proto->add_metadata_props();
  entry->set_key(key);
  entry->set_value(value);
}

std::string to_json(const TrainingPosition& position) {
  nlohmann::ordered_json json = {{"epoch", position.epoch},
                                 {"step", position.step},
                                 {"sample", position.sample},
                                 {"loss_sum", position.loss_sum},
                                 {"loss_samples", position.loss_samples},
                                 {"stale", position.stale},
                                 {"settings", position.settings}};
  if (position.best) json["best"] = *position.best;
  return json.dump();
}

}  // namespace

void save_checkpoint(const Session& session, const TrainingPosition& position, const std::string& path) {
  onnx::ModelProto proto;
  to_proto(session.model(), &proto, {.contents = false});
  const TensorContents contents = [&](const std::string& name) { return session.contents(name); };
  const std::string json = to_json(position);
  set_metadata(&proto, kPosition, json);
  set_metadata(&proto, kChecksum, checksum(proto, json, contents));
  save_proto(proto, path, contents);
}

Model load_training_model(const std::string& path) {
  onnx::ModelProto proto = load_proto(path);
  if (proto.training_info().empty()) {
    fail(path, " is no training model; make one with: onnx-train build ", path, " -o train.onnx");
  }
  const std::string expected = metadata(proto, kChecksum);
  if (!expected.empty() && expected != checksum(proto, metadata(proto, kPosition))) {
    fail(path, " is damaged: its checksum is not that of its tensors");
  }
  Model model = from_proto(std::move(proto));
  assign_roles(&model);
  return model;
}

std::optional<TrainingPosition> checkpoint_position(const Model& model) {
  const std::string text = model.metadata(kPosition);
  if (text.empty()) return {};
  try {
    const auto json = nlohmann::json::parse(text);
    TrainingPosition position;
    json.at("epoch").get_to(position.epoch);
    json.at("step").get_to(position.step);
    json.at("sample").get_to(position.sample);
    json.at("loss_sum").get_to(position.loss_sum);
    json.at("loss_samples").get_to(position.loss_samples);
    json.at("stale").get_to(position.stale);
    json.at("settings").get_to(position.settings);
    if (json.contains("best")) position.best = json.at("best").get<double>();
    return position;
  } catch (const nlohmann::json::exception& e) {
    fail("the model's metadata ", kPosition, " is damaged: ", e.what());
  }
}

}  // namespace onnx_train
