#include "runtime/training/checkpoint.h"

#include <xxhash.h>
#include <nlohmann/json.hpp>

#include <unordered_set>

#include "onnx_passes/import/import.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/message_tensors.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/training/training_mode.h"

namespace onnx_train {
namespace {

constexpr const char* kPosition = "onnx_train.checkpoint";
constexpr const char* kChecksum = "onnx_train.checksum";

class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) { XXH3_128bits_reset(state_.get()); }

  void add(const std::string& bytes) {
    add_size(bytes.size());
    add_bytes(bytes.data(), bytes.size());
  }
  // The length precedes the bytes, so that "ab", "c" differs from "a", "bc".
  void add_size(uint64_t size) { XXH3_128bits_update(state_.get(), &size, sizeof size); }
  void add_bytes(const void* bytes, size_t size) { XXH3_128bits_update(state_.get(), bytes, size); }
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

// The checksum of a model: the position, then the name and data of each initializer in the order of the file. Contents
// stored outside the message are added while they are written.
class Checksum {
 public:
  Checksum(const onnx::ModelProto& proto, const std::string& position) {
    list(proto.graph());
    for (const auto& info : proto.training_info()) list(info.algorithm());
    hash_.add(position);
  }

  // Adds the next bytes of element `index` of the contents.
  void add(size_t index, const void* data, size_t bytes) {
    if (!listed_.count(index)) return;  // belongs to a subgraph or an initialization
    if (index != open_) {
      add_small_ones();
      hash_.add(tensors_[next_]->name());
      hash_.add_size(declared_bytes(*tensors_[next_++]));
      open_ = index;
    }
    hash_.add_bytes(data, bytes);
  }
  void add_all(const std::vector<Tensor>& contents) {
    for (const onnx::TensorProto* tensor : tensors_) {
      const auto index = reference_of(*tensor);
      if (!index) continue;
      for_each_block(contents.at(*index), [&](const void* data, size_t bytes) { add(*index, data, bytes); });
    }
  }
  std::string finish() {
    add_small_ones();
    return hash_.hex();
  }

 private:
  void list(const onnx::GraphProto& graph) {
    for (const onnx::TensorProto& tensor : graph.initializer()) {
      tensors_.push_back(&tensor);
      if (const auto index = reference_of(tensor)) listed_.insert(*index);
    }
  }

  // Adds everything up to the next tensor with external contents.
  void add_small_ones() {
    for (; next_ < tensors_.size() && !reference_of(*tensors_[next_]); ++next_) {
      const onnx::TensorProto& tensor = *tensors_[next_];
      hash_.add(tensor.name());
      hash_.add(tensor.has_raw_data() ? tensor.raw_data() : tensor.SerializeAsString());
    }
  }

  Hash hash_;
  std::vector<const onnx::TensorProto*> tensors_;
  std::unordered_set<size_t> listed_;
  size_t next_ = 0;
  std::optional<size_t> open_;
};

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

void clear_metadata(onnx::ModelProto* proto, const std::string& key) {
  auto* entries = proto->mutable_metadata_props();
  for (int i = entries->size() - 1; i >= 0; --i) {
    if (entries->Get(i).key() == key) entries->DeleteSubrange(i, 1);
  }
}

std::string to_json(const TrainingPosition& position) {
  nlohmann::ordered_json json = {{"epoch", position.epoch},   {"step", position.step},
                                 {"sample", position.sample}, {"loss", nlohmann::ordered_json::array()},
                                 {"stale", position.stale},   {"settings", position.settings}};
  for (const Mean& part : position.loss.parts) json["loss"].push_back({{"sum", part.sum}, {"count", part.count}});
  if (position.best) json["best"] = *position.best;
  if (position.mark != position.best) json["mark"] = *position.mark;
  if (const ScheduleState& s = position.schedule; s != ScheduleState()) {
    json["schedule"] = {{"scale", s.scale}, {"stale", s.stale}, {"cooldown", s.cooldown}};
    if (s.best) json["schedule"]["best"] = *s.best;
  }
  return json.dump();
}

}  // namespace

ModelMessage checkpoint_message(const Model& model, const StateContents& state, const TrainingPosition& position) {
  ModelMessage message = to_message(model);
  const auto fill = [&](onnx::GraphProto* graph) {
    for (onnx::TensorProto& tensor : *graph->mutable_initializer()) {
      const bool is_state = tensor.data_location() == onnx::TensorProto::EXTERNAL && !reference_of(tensor);
      if (is_state) put_beside(state(tensor.name()), &message, &tensor);
    }
  };
  fill(message.proto.mutable_graph());
  for (auto& info : *message.proto.mutable_training_info()) fill(info.mutable_algorithm());
  set_metadata(&message.proto, kPosition, to_json(position));
  clear_metadata(&message.proto, kChecksum);
  return message;
}

void write_checkpoint(const ModelMessage& message, const std::string& path) {
  Checksum checksum(message.proto, metadata(message.proto, kPosition));
  SaveOptions options;
  options.on_contents = [&](size_t index, const void* data, size_t bytes) { checksum.add(index, data, bytes); };
  options.ending = [&] {  // the checksum is known last; protobuf fields may come in any order
    onnx::ModelProto ending;
    set_metadata(&ending, kChecksum, checksum.finish());
    return ending.SerializeAsString();
  };
  save_message(message, path, options);
}

void save_checkpoint(const Session& session, const TrainingPosition& position, const std::string& path) {
  const StateContents state = [&](const std::string& name) { return session.contents(name); };
  write_checkpoint(checkpoint_message(session.model(), state, position), path);
}

Model load_training_model(const std::string& path) { return training_model(load_message(path), path); }

Model load_any_model(const std::string& path) {
  ModelMessage message = load_message(path);
  if (!message.proto.training_info().empty()) return load_training_model(path);
  Model model = import_model(std::move(message));
  to_inference(*model.graph);
  return model;
}

Model training_model(ModelMessage message, const std::string& name) {
  if (message.proto.training_info().empty()) {
    fail_as(ErrorCode::kNoTrainingModel, name, " is no training model; make one with: onnx-train build ", name,
            " -o train.onnx");
  }
  const std::string expected = metadata(message.proto, kChecksum);
  if (!expected.empty()) {
    Checksum checksum(message.proto, metadata(message.proto, kPosition));
    checksum.add_all(message.contents);
    if (checksum.finish() != expected)
      fail_as(ErrorCode::kCheckpointDamaged, name, " is damaged: its checksum is not that of its tensors");
  }
  Model model = from_message(std::move(message));
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
    if (json.contains("loss_samples")) {  // of an earlier version
      position.loss.parts = {{json.at("loss_sum").get<double>(), json.at("loss_samples").get<double>()}};
    } else {
      for (const auto& part : json.at("loss"))
        position.loss.parts.push_back({part.at("sum").get<double>(), part.at("count").get<double>()});
    }
    json.at("stale").get_to(position.stale);
    json.at("settings").get_to(position.settings);
    if (json.contains("best")) position.best = json.at("best").get<double>();
    position.mark = json.contains("mark") ? json.at("mark").get<double>() : position.best;
    if (json.contains("schedule")) {
      const auto& schedule = json.at("schedule");
      schedule.at("scale").get_to(position.schedule.scale);
      schedule.at("stale").get_to(position.schedule.stale);
      schedule.at("cooldown").get_to(position.schedule.cooldown);
      if (schedule.contains("best")) position.schedule.best = schedule.at("best").get<double>();
    }
    return position;
  } catch (const nlohmann::json::exception& e) {
    fail("the model's metadata ", kPosition, " is damaged: ", e.what());
  }
}

}  // namespace onnx_train
