#include "runtime/runs/run_folder.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "kernels/device.h"
#include "kernels/host.h"
#include "onnx_passes/io/file.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_train/version.h"
#include "runtime/training/checkpoint_shards.h"
#include "runtime/training/controls.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kChecked = "checked data";

struct ToJson {
  const Range& range;

  template <typename T>
  ordered_json operator()(const T* value) const {
    return *value;
  }
  // A default outside of what can be given stands for none: no limit, no such step.
  bool holds(double value) const { return range.above ? value > range.least : value >= range.least; }
  ordered_json operator()(const int64_t* value) const {
    return holds(static_cast<double>(*value)) ? ordered_json(*value) : ordered_json();
  }
  ordered_json operator()(const double* value) const { return holds(*value) ? ordered_json(*value) : ordered_json(); }
  template <typename T>
  ordered_json operator()(const std::optional<T>* value) const {
    return *value ? ordered_json(**value) : ordered_json();
  }
  ordered_json operator()(const std::string* value) const {
    return value->empty() ? ordered_json() : ordered_json(*value);
  }
};

// What model, data and machine add to the options.
ordered_json derived_options(const Session& session, const Trainer& trainer, const std::vector<std::string>& checked,
                             const MemoryRows& memory, const Found& found) {
  const TrainerOptions& options = trainer.options();
  ordered_json json = {{"version", ONNX_TRAIN_VERSION},
                       {"device", session.device().name()},
                       {"threads", num_threads()},
                       {"order seed", options.seed},
                       {"steps in an epoch", trainer.steps_per_epoch()}};
  if (trainer.total_steps() > 0) json["steps"] = trainer.total_steps();
  for (const char* what : {"loss", "optimizer", "mode", "precision"}) {
    const std::string value = session.model().metadata(std::string("onnx_train.") + what);
    json[what] = value.empty() && std::string(what) == "precision" ? "float32" : value;
  }
  if (const auto clip = built_control(session.model(), roles::kClipNorm); clip && !options.clip_norm)
    json["clip"] = *clip;
  json["run"] = trainer.position().settings;
  json[kChecked] = checked;
  for (const auto& [what, bytes] : memory) json["memory"][what] = static_cast<int64_t>(bytes);
  if (found.batch)
    json["batch-size"] = {{"planned", static_cast<int64_t>(found.batch->planned)},
                          {"limit", static_cast<int64_t>(found.batch->limit)}};
  if (found.rate) {
    json["lr"] = {{"found", found.rate->rate}, {"rule", found.rate->rule}};
    for (const RatePoint& point : found.rate->points) json["lr"]["test"].push_back({point.rate, point.loss});
  }
  return json;
}

}  // namespace

void prepare_folder(const std::string& folder) {
  // Files are written under a hidden name and then renamed.
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_as(ErrorCode::kCannotWrite, "cannot make the folder ", folder, ": ", error.message());
  constexpr const char* kFiles[] = {"last.onnx",    "best.onnx",   "metrics.jsonl", "metrics.csv",    "epochs.jsonl",
                                    "options.json", "report.html", "train.onnx",    "evaluation.json"};
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const auto is_part_of = [&](const char* file) { return name.starts_with(concat(".", file, ".")); };
    if (std::any_of(std::begin(kFiles), std::end(kFiles), is_part_of)) leftovers.push_back(it->path());
  }
  for (const fs::path& path : leftovers) fs::remove(path, error);
  remove_unused_shards(folder);
}

void write_options(const std::string& folder, const std::vector<CommandOption>& options, const Session& session,
                   const Trainer& trainer, const std::vector<std::string>& checked, const MemoryRows& memory,
                   const Found& found) {
  ordered_json json = ordered_json::object();
  for (const CommandOption& option : options) {
    json[key_of(option)] =
        std::visit([&](const auto* value) { return ToJson{option.target.range}(value); }, option.target.to);
  }
  json["derived"] = derived_options(session, trainer, checked, memory, found);
  // A path may hold bytes that are no UTF-8.
  write_file(folder + "/options.json", json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

nlohmann::json options_of_run(const std::string& folder) {
  const std::string path = folder + "/options.json";
  if (!path_exists(path)) return nlohmann::json::object();
  auto json = nlohmann::json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : nlohmann::json::object();
}

std::vector<std::string> checked_data(const std::string& folder) {
  const nlohmann::json json = options_of_run(folder);
  std::vector<std::string> checked;
  if (!json.contains("derived") || !json["derived"].is_object()) return checked;
  for (const auto& identity : json["derived"].value(kChecked, nlohmann::json::array())) {
    if (identity.is_string()) checked.push_back(identity);
  }
  return checked;
}

}  // namespace onnx_train
