#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>

#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/import/sizes.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/loss/loss.h"
#include "onnx_passes/training/entry_point.h"
#include "onnx_passes/training/training_mode.h"
#include "onnx_passes/training/training_versions.h"
#include "runtime/data/source.h"
#include "runtime/example_inputs.h"
#include "runtime/report_text.h"
#include "runtime/session.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct GradArguments {
  std::string model, inputs, output, mode = "train", dtype = "float32";
  ImportOptions import;
  BuildOptions options;
  RuntimeOptions runtime;
};

// The model for the sizes of the data, if a branch depends on sizes or on what else is not known yet: all its inputs
// get the shapes that they have in the file.
Model for_sizes_of_data(Model model, const GradArguments& arguments) {
  const Graph& graph = *model.graph;
  bool branches = false;
  for (const Node* node = graph.first(); node; node = node->next()) branches = branches || node->is("If");
  if (!branches) return model;
  const Dataset data = load_dataset(arguments.inputs, entry_inputs(model, "predict"));
  ImportOptions import = arguments.import;
  std::set<std::string> known;
  for (const std::string& size : import.dims) known.insert(parse_size(size).first);
  for (const Value* input : graph.inputs()) {
    const Dataset::Array* array = data.find(input->name());
    if (!array || !input->has_rank()) continue;
    Shape shape = array->row;
    if (array->per_sample) shape.insert(shape.begin(), data.num_samples());
    if (shape.size() != input->type().dims->size()) continue;
    for (size_t i = 0; i < shape.size(); ++i) {
      const std::string& symbol = (*input->type().dims)[i].symbol();
      if (!symbol.empty() && known.insert(symbol).second) import.dims.push_back(concat(symbol, "=", shape[i]));
    }
  }
  return load_forward_model(arguments.model, arguments.dtype, import);
}

// Those of `inputs` whose gradient nothing obstructs, and what obstructs the others.
std::vector<Value*> differentiable(const Value* loss, const std::vector<Value*>& inputs, std::string* obstacle) {
  std::vector<Value*> found;
  for (Value* input : inputs) {
    const std::vector<Obstacle> obstacles = find_obstacles(loss, {input});
    if (obstacles.empty()) {
      found.push_back(input);
    } else {
      *obstacle += concat(obstacle->empty() ? "" : "\n", "no gradient of the input '", input->name(),
                          "': ", obstacles[0].node->label(), ": ", obstacles[0].reason);
    }
  }
  return found;
}

// Makes the entry point "step" of `model` the loss, the outputs and the gradients of the weights and float inputs, with
// nothing updated but running statistics. Inputs before an operator without a gradient have none if there are weights:
// returns a line about each of them.
std::string add_loss_and_gradients(Model* model, const BuildOptions& options) {
  run_pipeline({training_mode(options), loss(options)}, model, options.pipeline);
  EntryPoint& step = *model->find_entry_point("step");
  std::vector<Value*> sources = select_trainable(*model, options.train, options.freeze);
  const size_t weights = sources.size();
  std::vector<Value*> inputs;
  for (Value* input : model->graph->inputs()) {
    if (is_float(input->dtype()) && !input->is_initializer()) inputs.push_back(input);
  }
  std::string obstacle;
  if (weights > 0) inputs = differentiable(step.output(roles::kLoss), inputs, &obstacle);
  sources.insert(sources.end(), inputs.begin(), inputs.end());
  if (sources.empty()) fail("the model has neither float weights nor float inputs to differentiate by");
  Graph* algorithm = step.algorithm.get();
  Builder builder(algorithm);
  for (Value* output : model->graph->outputs()) {
    add_result(&step, "output/" + output->name(), builder.var(training_value(step, output)));
  }
  const std::vector<Value*> gradients = add_gradients(algorithm, step.output(roles::kLoss), sources);
  if (std::none_of(gradients.begin(), gradients.end(), [](const Value* gradient) { return gradient; })) {
    fail("the loss depends on none of the weights and float inputs, so that there is no gradient",
         obstacle.empty() ? "" : "; ", obstacle);
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    const char* prefix = i < weights ? "grad/" : "grad_input/";
    if (gradients[i]) add_result(&step, prefix + sources[i]->name(), builder.var(gradients[i]));
  }
  return obstacle;
}

// What the result calls the outputs of the flattened entry point: their roles.
std::map<std::string, std::string> keys_of(const Graph& flat) {
  std::map<std::string, std::string> keys;
  for (const Value* output : flat.outputs()) {
    const ValueRole& role = *output->role();
    keys[output->name()] = role.of.empty() ? role.name : concat(role.name, "/", role.of);
  }
  return keys;
}

// All samples as one batch, and the state as the model holds it.
TensorMap whole_batch(const Dataset& data, const Model& model, const Graph& algorithm) {
  std::vector<int64_t> rows(static_cast<size_t>(data.num_samples()));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  TensorMap inputs;
  data.gather(rows.data(), data.num_samples(), &inputs);
  for (const std::string& state : state_of(model, "step")) {
    inputs[state] = contents_of(*algorithm.find(state));
  }
  return inputs;
}

int run(GradArguments* arguments) {
  BuildOptions& options = arguments->options;
  options.mode = parse_mode(arguments->mode);
  Model model =
      for_sizes_of_data(load_forward_model(arguments->model, arguments->dtype, arguments->import), *arguments);
  options.loss_model = load_loss_model(options.loss, arguments->dtype);
  const std::string obstacle = add_loss_and_gradients(&model, options);
  const Dataset data =
      load_dataset(arguments->inputs, entry_inputs(model, "step"), DataRole::kTrain, Preprocess(model));
  Model flat = flatten(model, "step");
  const TensorMap inputs = whole_batch(data, model, *model.find_entry_point("step")->algorithm);
  const auto keys = keys_of(*flat.graph);
  TensorMap results;
  Session session(std::move(flat), session_options(arguments->runtime));
  for (const auto& [name, tensor] : session.run("predict", inputs)) results[keys.at(name)] = tensor;
  write_arrays(arguments->output, results);
  const auto say = [](const std::string& text) { std::printf("%s\n", wrap(text, text_width(), 0, 2).c_str()); };
  if (const std::string statistics = model.metadata("onnx_train.batch_norm"); !statistics.empty()) say(statistics);
  if (!obstacle.empty()) say(obstacle);
  say(concat(arguments->output, ": loss ", format_exact(results.at("loss").at(0)), ", ", results.size(), " arrays"));
  return 0;
}

}  // namespace

Subcommand grad_command() {
  auto a = std::make_shared<GradArguments>();
  BuildOptions& o = a->options;
  return {
      "grad", "Loss and gradients for given inputs: one forward and one backward pass, nothing updated",
      "  onnx-train grad model.onnx --inputs batch.npz --loss cross_entropy -o gradients.npz\n"
      "  onnx-train grad model.onnx --inputs batch.npz --loss 'mse(y, target)' --mode frozen --train 'fc.*' -o g.npz\n"
      "\nKeys of the result: loss, output/<name>, grad/<initializer>, grad_input/<input>, next/<state>. A weight or "
      "input that the loss does not depend on has no key, nor has an input before an operator without a gradient. The "
      "samples of the file are one batch; labels and the like "
      "are keys of it.",
      with_runtime_options({{"MODEL", &a->model, "the forward model", "FILE", true},
                            {"--inputs", &a->inputs, "the batch: any data that fit takes", "PATH", true},
                            {"-o,--output",
                             {&a->output, file_with(std::vector<std::string>{".npz", ".safetensors"})},
                             "the .npz or .safetensors file to write",
                             "FILE",
                             true},
                            {"--loss", &o.loss, "see build --help [cross_entropy]", "EXPR"},
                            mode_option(&a->mode),
                            {"--train", &o.train, "weights to differentiate by: names, globs, @FILE [all]", "PATTERNS"},
                            {"--freeze", &o.freeze, "weights to leave out, likewise", "PATTERNS"},
                            {"--seed", &o.seed, "of dropout [0]", "N"},
                            set_option(&a->import),
                            dim_option(&a->import),
                            fix_shapes_option(&a->import),
                            dtype_option(&a->dtype)},
                           &a->runtime),
      [a] { return run(a.get()); }};
}

}  // namespace onnx_train
