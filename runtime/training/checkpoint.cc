#include "runtime/training/checkpoint.h"

#include <nlohmann/json.hpp>

#include "onnx_passes/import/import.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/training/training_mode.h"
#include "runtime/models/model_folder.h"
#include "runtime/training/checkpoint_checksum.h"

namespace onnx_train {
namespace {

constexpr const char* kPosition = "onnx_train.checkpoint";
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
  if (!position.place.empty()) json["place"] = position.place;
  if (position.best) json["best"] = *position.best;
  if (position.mark != position.best) json["mark"] = *position.mark;
  if (const ScheduleState& s = position.schedule; s != ScheduleState()) {
    json["schedule"] = {{"scale", s.scale}, {"stale", s.stale}, {"cooldown", s.cooldown}};
    if (s.best) json["schedule"]["best"] = *s.best;
  }
  return json.dump();
}

}  // namespace

bool is_checkpoint(const onnx::ModelProto& model) { return !metadata(model, kPosition).empty(); }

bool is_state_of_session(const onnx::TensorProto& tensor) {
  return tensor.data_location() == onnx::TensorProto::EXTERNAL && !reference_of(tensor);
}

void set_position(const TrainingPosition& position, ModelMessage* message) {
  set_metadata(&message->proto, kPosition, to_json(position));
  clear_metadata(&message->proto, kChecksum);
  clear_metadata(&message->proto, kChecksums);
}

ModelMessage checkpoint_message(const Model& model, const StateContents& state, const TrainingPosition& position) {
  ModelMessage message = to_message(model);
  for (onnx::TensorProto* tensor : stored_tensors(&message.proto)) {
    if (is_state_of_session(*tensor)) put_beside(state(tensor->name()), &message.contents, tensor);
  }
  set_position(position, &message);
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

void write_sharded_checkpoint(ModelMessage message, const std::vector<std::string>& checksums,
                              const std::vector<std::string>& paths) {
  set_metadata(&message.proto, kChecksums, checksums_text(message, metadata(message.proto, kPosition), checksums));
  for (const std::string& path : paths) {
    if (path == paths.front() || !share_file(paths.front(), path)) save_message(message, path);
  }
}

void save_checkpoint(const Session& session, const TrainingPosition& position, const std::string& path) {
  const StateContents state = [&](const std::string& name) { return session.contents(name); };
  write_checkpoint(checkpoint_message(session.model(), state, position), path);
}

Model load_training_model(const std::string& path, const TopologyOptions& ranks) {
  return training_model(load_message(path), path, ranks);
}

Model load_any_model(const std::string& path) {
  const std::string file = model_file(path);
  ModelMessage message = load_message(file);
  if (!message.proto.training_info().empty()) return load_training_model(file);
  Model model = import_model(std::move(message));
  to_inference(*model.graph);
  return model;
}

Model training_model(ModelMessage message, const std::string& name, const TopologyOptions& ranks) {
  if (message.proto.training_info().empty()) {
    fail_as(ErrorCode::kNoTrainingModel, name, " is no training model; make one with: onnx-train build ", name,
            " -o train.onnx");
  }
  const std::string position = metadata(message.proto, kPosition);
  if (const std::string expected = metadata(message.proto, kChecksum); !expected.empty()) {
    Checksum checksum(message.proto, position);
    checksum.add_all(message.contents);
    if (checksum.finish() != expected)
      fail_as(ErrorCode::kCheckpointDamaged, name, " is damaged: its checksum is not that of its tensors");
  }
  std::optional<TensorChecks> checks;
  if (const std::string expected = metadata(message.proto, kChecksums); !expected.empty())
    checks.emplace(message, position, expected, name);
  // They are of the file: what is saved of the model later has other tensors.
  clear_metadata(&message.proto, kChecksum);
  clear_metadata(&message.proto, kChecksums);
  Model model = from_message(std::move(message));
  assign_roles(&model);
  if (checks) {
    const Topology topology(model, ranks);
    checks->compare([&](const std::string& tensor) { return topology.has_state(tensor); });
  }
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
    position.place = json.value("place", "");
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
