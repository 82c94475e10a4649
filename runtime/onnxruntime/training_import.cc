#include "runtime/onnxruntime/training_import.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "onnx_passes/io/file.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/entry_point.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/training/optimizer_spec.h"
#include "runtime/models/build_notes.h"
#include "runtime/models/build_settings.h"
#include "runtime/onnxruntime/forward_model.h"
#include "runtime/onnxruntime/optimizer_model.h"
#include "runtime/onnxruntime/training_checkpoint.h"

namespace onnx_train {
namespace {

constexpr const char* kCheckpoint = "checkpoint";
constexpr const char* kTrainingModel = "training_model.onnx";
constexpr const char* kEvalModel = "eval_model.onnx";
constexpr const char* kOptimizerModel = "optimizer_model.onnx";
constexpr const char* kPropertyKey = "onnxruntime.property.";
constexpr float kRateOfOrt = 0.001f;  // that an Optimizer of ONNX Runtime starts with

// The files of a run. A path is "" where there is none.
struct OrtFiles {
  std::string checkpoint, training, eval, optimizer;
};

OrtFiles files_of(const OrtImportSettings& settings) {
  const bool is_checkpoint = is_ort_checkpoint(settings.path);
  const std::string folder = is_checkpoint ? split_path(settings.path).first : settings.path;
  if (!path_exists(folder)) fail_as(ErrorCode::kFile, folder, ": there is no such folder");
  if (!folder_exists(folder))
    fail_as(ErrorCode::kFile, folder, " is no folder, and no checkpoint of ONNX Runtime's training");
  const auto file = [&](const char* name) -> std::string {
    const std::string path = (std::filesystem::path(folder) / (settings.prefix + name)).generic_string();
    return path_exists(path) ? path : "";
  };
  OrtFiles files{settings.checkpoint, file(kTrainingModel), file(kEvalModel), file(kOptimizerModel)};
  if (files.checkpoint.empty()) files.checkpoint = is_checkpoint ? settings.path : file(kCheckpoint);
  if (files.training.empty() && files.eval.empty())
    fail_as(ErrorCode::kFile, folder, " has neither ", settings.prefix, kEvalModel, " nor ", settings.prefix,
            kTrainingModel, ", which generate_artifacts writes; --prefix says what their names begin with");
  if (files.checkpoint.empty())
    fail_as(ErrorCode::kFile, folder, " has no ", settings.prefix, kCheckpoint, "; --checkpoint names another file");
  return files;
}

// The name of this weight alone as a pattern of --train.
std::string as_pattern(const std::string& name) {
  std::string pattern;
  for (const char c : name)
    pattern +=
        c == '*' || c == '?' || c == '[' || (c == '@' && pattern.empty()) ? concat("[", c, "]") : std::string(1, c);
  return pattern;
}

// f() with the file's name before its errors.
template <typename F>
auto about(const std::string& file, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    if (std::string(error.what()).starts_with(file)) throw;
    throw Error(concat(file, ": ", error.what()), error.code());
  }
}

ForwardModel forward_of(const OrtFiles& files, const OrtCheckpoint& checkpoint) {
  std::optional<ModelMessage> training;
  if (!files.training.empty()) {
    training = load_message(files.training);
    for (const std::string& name : trained_names(training->proto.graph())) {
      if (!checkpoint.trained.contains(name))
        fail_as(ErrorCode::kFile, files.checkpoint, " has no trained parameter '", name, "', which ", files.training,
                " has; both come from one run");
    }
  }
  const ModelMessage* modes = training ? &*training : nullptr;
  if (files.eval.empty())
    return about(files.training, [&] { return recover_forward(without_gradients(*training), modes, checkpoint); });
  return about(files.eval, [&] { return recover_forward(load_message(files.eval), modes, checkpoint); });
}

OrtOptimizerGroup group_of(const OrtCheckpoint& checkpoint, const std::string& file) {
  if (checkpoint.groups.empty()) return {};
  if (checkpoint.groups.size() > 1)
    fail_as(ErrorCode::kFile, file, " has ", checkpoint.groups.size(), " optimizer groups; one is read");
  return checkpoint.groups[0];
}

// Calls f(graph, state) for each state.
template <typename F>
void for_each_state(Model* model, const F& f) {
  const auto visit = [&](Graph* graph) {
    for (Value* value : graph->initializers()) {
      if (value->role()) f(graph, value);
    }
  };
  visit(model->graph.get());
  for (EntryPoint& entry : model->entry_points) visit(entry.algorithm.get());
}

// Sets the steps done, and the moments. Returns how many weights have them.
size_t set_states(const OrtOptimizerGroup& group, const std::string& file, Model* model) {
  const std::map<std::string, std::string> slots = {{"exp_avg", "momentum0"}, {"exp_avg_sq", "momentum1"}};
  size_t weights = 0;
  for_each_state(model, [&](Graph* graph, Value* state) {
    if (state->has_role(roles::kStep)) graph->set_initializer(state, Tensor::scalar<int64_t>(group.step));
    const auto slot = slots.find(state->role()->name);
    if (slot == slots.end()) return;
    const auto of_weight = group.states.find(state->role()->of);
    if (of_weight == group.states.end()) return;
    const auto moment = of_weight->second.find(slot->second);
    if (moment == of_weight->second.end()) return;
    if (moment->second.shape() != state->type().shape() || !is_float(moment->second.dtype()))
      fail_as(ErrorCode::kFile, file, ": ", slot->second, " of '", of_weight->first, "' is ",
              name(moment->second.dtype()), to_string(moment->second.shape()), "; the weight's shape is ",
              to_string(state->type().shape()));
    graph->set_initializer(state, moment->second.cast(state->dtype()));
    weights += slot->second == "momentum0" ? 1 : 0;
  });
  return weights;
}

std::string count_of(size_t number, const char* what) { return concat(number, " ", what, number == 1 ? "" : "s"); }

std::string names_text(const TensorMap& tensors) {
  constexpr size_t kShown = 4;
  return first_few(tensors, kShown, [](const auto& tensor) { return concat("'", tensor.first, "'"); });
}

}  // namespace

OrtImport import_ort_training(const OrtImportSettings& settings) {
  if (!settings.optimizer.empty()) parse_optimizer(settings.optimizer);
  const OrtFiles files = files_of(settings);
  const OrtCheckpoint checkpoint = read_ort_checkpoint(files.checkpoint);
  if (checkpoint.is_nominal)
    fail_as(ErrorCode::kFile, files.checkpoint, " is a nominal checkpoint, which has names without values; ",
            "--checkpoint names the whole one");
  if (checkpoint.trained.empty()) fail_as(ErrorCode::kFile, files.checkpoint, " has no trained parameters");
  const OrtOptimizerGroup group = group_of(checkpoint, files.checkpoint);
  const bool has_rate = group.learning_rate > 0;
  const std::string rate = float_text(has_rate ? group.learning_rate : kRateOfOrt);

  ForwardModel forward = forward_of(files, checkpoint);
  BuildSettings build;
  build.build.loss = forward.loss;
  build.build.metrics = settings.metrics;
  build.build.accumulate = settings.accumulate;
  if (settings.accumulate) build.accumulate_mean = "batches";  // as theirs, a call is one more gradient
  build.build.decay = {"*"};                                   // theirs decays all that it is given
  build.variance = "biased";                                   // the running one of batch norms
  build.mode = files.training.empty() ? "train" : "preserve";
  for (const auto& [name, value] : checkpoint.trained) build.build.train.push_back(as_pattern(name));
  RecoveredOptimizer optimizer{settings.optimizer};
  if (settings.optimizer.empty()) {
    if (files.optimizer.empty())
      fail_as(ErrorCode::kFile, "there is no ", settings.prefix, kOptimizerModel,
              " beside the other models; --optimizer says what takes its place");
    optimizer =
        about(files.optimizer, [&] { return recover_optimizer(load_message(files.optimizer).proto.graph(), rate); });
  }
  build.build.optimizer = optimizer.expression;
  build.build.clip_norm = optimizer.clip_norm;

  std::vector<Finding> findings;
  OrtImport result{about(files.eval.empty() ? files.training : files.eval,
                         [&] {
                           return import_forward_model(std::move(forward.message), build.dtype, import_options(build),
                                                       &findings);
                         }),
                   {}};
  build_with_notes(&result.model, resolve(build), std::move(findings));
  const size_t with_moments = settings.optimizer.empty() ? set_states(group, files.checkpoint, &result.model) : 0;
  result.model.set_metadata("onnxruntime.checkpoint", split_path(files.checkpoint).second);
  for (const auto& [key, value] : checkpoint.properties) result.model.set_metadata(kPropertyKey + key, value);

  const auto add = [&](const char* what, const std::string& text) { result.notes.emplace_back(what, text); };
  add("made from", files.eval.empty() ? files.training : files.eval);
  add("checkpoint", files.checkpoint);
  add("trained", concat(count_of(checkpoint.trained.size(), "tensor"), ": ", names_text(checkpoint.trained)));
  if (!checkpoint.frozen.empty())
    add("frozen", concat(count_of(checkpoint.frozen.size(), "tensor"), ": ", names_text(checkpoint.frozen)));
  add("loss", result.model.metadata("onnx_train.loss"));
  if (!forward.is_recovered) add("", "none of onnxblock's: its nodes and targets stay in the forward model");
  add("optimizer", result.model.metadata("onnx_train.optimizer"));
  if (optimizer.clip_norm > 0)
    add("clipped", concat("at the norm ", float_text(static_cast<float>(optimizer.clip_norm))));
  if (settings.optimizer.empty())
    add("learning rate",
        has_rate ? concat(rate, ", the initial one of the run") : concat(rate, ", as ONNX Runtime begins"));
  add("steps done", settings.optimizer.empty() ? std::to_string(group.step) : "0, with another optimizer");
  add("moments", with_moments > 0 ? concat("of ", count_of(with_moments, "weight")) : "none: they begin with zeros");
  for (const auto& [key, value] : checkpoint.properties) add("property", concat(key, " = ", value));
  return result;
}

bool is_ort_training(const std::string& path) {
  if (is_ort_checkpoint(path)) return true;
  std::error_code error;
  const std::filesystem::path folder(path);
  return std::filesystem::is_directory(folder, error) && std::filesystem::exists(folder / kCheckpoint, error) &&
         (std::filesystem::exists(folder / kEvalModel, error) ||
          std::filesystem::exists(folder / kTrainingModel, error));
}

}  // namespace onnx_train
