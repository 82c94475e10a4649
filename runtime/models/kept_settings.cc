#include "runtime/models/kept_settings.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/loss/loss_model.h"
#include "onnx_passes/loss/probabilities.h"
#include "onnx_passes/metrics/metrics.h"
#include "runtime/models/adapt.h"
#include "runtime/models/model_folder.h"

namespace onnx_train {
namespace {

std::string metadata_of(const onnx::ModelProto& model, const std::string& key) {
  for (const auto& entry : model.metadata_props()) {
    if (entry.key() == key) return entry.value();
  }
  return "";
}

std::vector<std::string> metrics_of(const onnx::ModelProto& model) {
  std::vector<std::string> metrics;
  const auto json = nlohmann::json::parse(metadata_of(model, kMetrics), nullptr, /*allow_exceptions=*/false);
  for (const auto& metric : json.is_array() ? json : nlohmann::json::array()) {
    if (metric.is_string()) metrics.push_back(metric);
  }
  return metrics;
}

std::string list_of_metrics(const std::vector<std::string>& metrics) {
  constexpr size_t kMaxShown = 3;
  return first_few(metrics, kMaxShown, [](const std::string& metric) { return metric; });
}

void expect_buildable(const std::string& loss, const onnx::ModelProto& model, const BuildSettings& settings) {
  if (is_loss_file(loss)) {
    if (std::error_code error; std::filesystem::is_regular_file(loss, error)) return;
    fail_as(ErrorCode::kUsage, "the training model was built with the loss model ", loss,
            ", which is not there; give it, or another loss: --loss");
  }
  const std::string teacher = metadata_of(model, "onnx_train.teacher");
  if (teacher.empty() || !settings.teacher.empty()) return;
  fail_as(ErrorCode::kUsage, "the training model was built with the loss ", loss, " and the teacher ", teacher,
          "; give the teacher again, or another loss: --teacher, --loss");
}

}  // namespace

std::string loss_of(const onnx::ModelProto& model) {
  return model.training_info().empty() ? "" : metadata_of(model, "onnx_train.loss");
}

std::vector<std::string> keep_settings(const onnx::ModelProto& model, BuildSettings* settings) {
  BuildOptions& options = settings->build;
  const AdaptOptions& adapt = settings->import.adapt;
  const std::string loss = loss_of(model);
  const bool given = !options.loss.empty() || options.loss_model;
  std::vector<std::string> metrics = metrics_of(model), lines;
  if (!given && !loss.empty() && adapt.cut.empty() && adapt.join.empty()) {
    expect_buildable(loss, model, *settings);
    options.loss = loss;
    lines.push_back("the loss is that of the training model; --loss gives another");
    if (options.metrics.empty() && !metrics.empty()) {
      options.metrics = std::move(metrics);
      lines.push_back("so are the metrics; --metric gives others");
    }
    return lines;
  }
  if (!loss.empty() && options.metrics.empty() && !metrics.empty())
    lines.push_back(concat("metrics of the training model are left out with another loss: ", list_of_metrics(metrics)));
  return lines;
}

Model import_to_build(ModelMessage message, BuildSettings* settings, std::vector<std::string>* kept,
                      std::vector<Finding>* findings) {
  *kept = keep_settings(message.proto, settings);
  Model model = import_forward_model(std::move(message), settings->dtype, import_options(*settings), findings,
                                     settings->build.pipeline);
  if (!settings->build.loss.empty() || settings->build.loss_model) return model;
  DefaultLoss chosen = default_loss(*model.graph);
  settings->build.loss = std::move(chosen.loss);
  if (chosen.finding) findings->push_back(*std::move(chosen.finding));
  return model;
}

Model load_to_build(const std::string& path, BuildSettings* settings, std::vector<std::string>* kept,
                    std::vector<Finding>* findings) {
  return import_to_build(load_message(model_file(path)), settings, kept, findings);
}

}  // namespace onnx_train
