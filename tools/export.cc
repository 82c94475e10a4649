#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>

#include "onnx_passes/adapt/file_names.h"
#include "onnx_passes/import/rebatch.h"
#include "onnx_passes/io/file.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/model/weight_origin.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/data/loading/source.h"
#include "runtime/data/preprocess.h"
#include "runtime/models/adapt.h"
#include "runtime/models/export_into.h"
#include "runtime/models/inference_export.h"
#include "runtime/runs/resume.h"
#include "runtime/support/report_text.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/trainer.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct ExportArguments {
  std::string model, output, eval_data;
  std::vector<std::string> rename;
  int64_t batch_size = 128;
  DataOptions reading;
  ExportSettings settings;
};

std::string shapes_of_inputs(const Graph& graph) {
  std::string text;
  for (const Value* input : graph.inputs())
    text += concat(text.empty() ? "" : ", ", input->name(), " ", to_string(input->type()));
  return text;
}

void say(const std::string& note) { std::printf("%s\n", wrap(note, text_width(), 0, 2).c_str()); }

bool is_folder(const std::string& path) {
  std::error_code error;
  return path.ends_with('/') || std::filesystem::is_directory(path, error);
}

bool has_suffix(const std::string& path, std::string_view wanted) {
  const std::string suffix = std::filesystem::path(path).extension().string();
  return std::equal(suffix.begin(), suffix.end(), wanted.begin(), wanted.end(),
                    [](unsigned char a, char b) { return std::tolower(a) == b; });
}

bool is_npz(const std::string& path) { return has_suffix(path, ".npz"); }

void say_untied(const InferenceExport& made) {
  for (const auto& [merged, base] : made.merged.untied)
    say(concat("no longer tied: the adapter is in '", merged, "', and '", base,
               "', which was the same weight, is as it ",
               "was; what loads them must keep both (of transformers: tie_word_embeddings=False)"));
}

// All weights and statistics by name.
void export_weights(const Model& inference, const std::string& path, const std::vector<std::string>& rename) {
  const auto constants = constants_of(inference);
  const auto parameters = transposed_parameters(inference);
  TensorMap weights;
  for (const Value* value : inference.graph->initializers()) {
    const bool weight = is_float(value->dtype()) && value->has_rank() && !constants.count(value->name());
    if (const auto parameter = parameters.find(value->name()); parameter != parameters.end() && weight) {
      weights[renamed(parameter->second, rename)] = transposed(contents_of(*value));
      continue;
    }
    if (weight && (value->rank() > 0 || origin_of(*value) == Origin::kParameter))
      weights[renamed(value->name(), rename)] = contents_of(*value);
    if (!weight) continue;
    // A program that reads the file may look for the name of another module that shares the weight.
    for (const std::string& name : names_of_readers(*value)) weights[renamed(name, rename)] = contents_of(*value);
  }
  write_arrays(path, weights);
  std::printf("%s: %zu tensors\n", path.c_str(), weights.size());
  if (!parameters.empty()) {
    const auto pair = [](const auto& names) { return concat("'", names.first, "' is ", names.second); };
    say(concat("transposed, by the names of the module that their nodes tell: ",
               first_few(parameters, size_t{3}, pair)));
  }
}

int export_adapter(const Model& training, const std::string& path, const std::vector<std::string>& rename) {
  const std::vector<std::string> names = save_adapters(training, path, rename);
  const bool is_file = is_onnxruntime_adapter(path);
  std::printf("%s: %zu tensors of the adapter, in %s's format\n", path.c_str(), names.size(),
              is_file ? "ONNX Runtime" : "PEFT");
  if (is_file)
    say("they are inputs of the model that export --adapter-inputs -o BASE.onnx writes, for all adapters of its "
        "layers");
  return 0;
}

// The model that the run began with, before it was trained; "" where it is not known.
std::string start_of_run(const std::string& checkpoint) {
  const std::string start = recorded_text(split_path(checkpoint).first, "MODEL").value_or("");
  std::error_code error;
  const bool is_other = std::filesystem::exists(start, error) && !std::filesystem::equivalent(start, checkpoint, error);
  return is_other ? start : "";
}

// The weights in the place of those of a file, or of the models of a folder.
int export_into(const Model& training, const ExportArguments& arguments) {
  ExportSettings settings = arguments.settings;
  if (settings.base.empty()) settings.base = start_of_run(arguments.model);
  const WrittenInto written = write_into(training, settings, arguments.model, arguments.output);
  for (const std::string& line : lines_of(written, arguments.output)) say(line);
  return 0;
}

// What is evaluated before and after the weights are rounded.
Metrics metrics_of(Model training, const ExportArguments& arguments) {
  Session session(std::move(training));
  DataNotes notes;
  const Dataset data = load_dataset(arguments.eval_data, session.model(), Entry::kEvaluate,
                                    ReadOptions{arguments.reading, {}, {}, {}}, &notes);
  const auto evaluated = evaluate(&session, data, arguments.batch_size);
  return evaluated.metrics;
}

// Adapters that change nothing, since they are in the weights.
void silence_adapters(Model* model) {
  for (const AdapterPart& part : adapter_parts(*model)) {
    Value* value = model->graph->find(part.tensor);
    if (part.part == parts::kMagnitude)
      fail_as(ErrorCode::kUsage, "--eval-data beside --merge compares no DoRA; evaluate what is exported, with eval");
    if (!value || !value->is_initializer() || part.part == parts::kA || part.part == parts::kBias) continue;
    const double nothing = part.part == parts::kB ? 0 : 1;
    model->graph->set_initializer(value, Tensor::full(value->dtype(), value->type().shape(), nothing));
  }
}

// Evaluates the model that is in the file, and with `rounded` in the place of its weights.
void compare(const ExportArguments& arguments, const std::map<std::string, Tensor>& rounded) {
  const auto before = metrics_of(load_training_model(arguments.model), arguments);
  Model changed = load_training_model(arguments.model);
  if (arguments.settings.merge) silence_adapters(&changed);
  for (const auto& [name, contents] : rounded) {
    Value* weight = changed.graph->find(name);
    if (!weight || !weight->is_initializer())
      fail_as(ErrorCode::kUsage, "--eval-data compares no model whose weight '", name,
              "' is integers; evaluate what is exported, with eval");
    changed.graph->set_initializer(weight, contents);
  }
  const auto after = metrics_of(std::move(changed), arguments);
  TextTable table("lrr");
  table.add({"on " + arguments.eval_data, "as trained", "as stored"});
  for (const auto& [name, value] : before) table.add({name, format_number(value), format_number(after.at(name))});
  std::printf("%s", table.text(0, text_width()).c_str());
}

int run(const ExportArguments& arguments) {
  const ExportSettings& settings = arguments.settings;
  if (!arguments.eval_data.empty() && !stores_other_type(settings))
    fail_as(ErrorCode::kUsage, "--eval-data compares what --dtype stores with what was trained; it needs --dtype");
  const bool is_weights = is_safetensors(arguments.output) || is_npz(arguments.output);
  const bool is_adapter = is_onnxruntime_adapter(arguments.output);
  const bool is_model = !is_weights && !is_adapter && !is_folder(arguments.output);
  if (!settings.into.empty()) {
    if (is_weights || is_adapter || !arguments.eval_data.empty() || !arguments.rename.empty())
      fail_as(ErrorCode::kUsage,
              "--into writes a model like the one that it names: leave out --eval-data and --rename, ",
              "and give -o a .onnx file or a folder");
    return export_into(load_training_model(arguments.model), arguments);
  }
  if (!is_model && (settings.cache || !settings.tta.empty() || stores_other_type(settings) || settings.original_types ||
                    settings.adapter_inputs))
    fail_as(ErrorCode::kUsage, "--cache, --tta, --dtype, --original-types and --adapter-inputs change the model, and ",
            arguments.output, " holds float32 weights alone: take a .onnx file");
  if ((is_model || is_adapter) && !arguments.rename.empty())
    fail_as(ErrorCode::kUsage, "--rename changes the names of weights and adapters in files of their own, not of ",
            arguments.output);
  const Model training = load_training_model(arguments.model);
  if (is_adapter || is_folder(arguments.output)) {
    if (settings.merge)
      fail_as(ErrorCode::kUsage, "--merge folds the adapter into the weights; -o ", arguments.output,
              " writes it alone");
    return export_adapter(training, arguments.output, arguments.rename);
  }
  if (is_weights) {
    const InferenceExport floats = strip_and_merge(training, settings, arguments.model);
    export_weights(floats.model, arguments.output, arguments.rename);
    say_untied(floats);
    return 0;
  }
  const InferenceExport made = export_inference(training, settings, arguments.model);
  const Model& inference = made.model;
  if (!arguments.eval_data.empty() && !made.merged.untied.empty())
    fail_as(ErrorCode::kUsage, "--eval-data compares no model whose weight '", made.merged.untied[0].first,
            "' is no longer tied; evaluate what is exported, with eval");
  if (!arguments.eval_data.empty()) compare(arguments, made.rounded);
  save_model(inference, arguments.output);
  std::printf("%s: %zu nodes, %zu initializers\n", arguments.output.c_str(), inference.graph->num_nodes(),
              inference.graph->initializers().size());
  if (made.integers.weights > 0)
    say(concat("weights that are integers now: ", made.integers.weights, ", as the model was trained"));
  if (const auto& floats = made.integers.floats; !floats.empty())
    say(concat("they stay floats: ", first_few(floats, size_t{4}, [](const std::string& text) { return text; })));
  if (!made.rounded.empty())
    say(concat(made.rounded.size(), " weights are stored as ", name(made.storage.dtype), ": ",
               std::filesystem::file_size(arguments.output), " bytes in the file"));
  if (made.restored > 0)
    say(concat("weights that were integers, and are floats with the adapters in them: ", made.restored));
  if (made.merged.layers > 0) say(concat("folded into the weights: the adapters of ", made.merged.layers, " layers"));
  if (made.cached > 0)
    say(concat("a cache of ", made.cached,
               " keys and values: inputs past_key_values.*, empty before the first token, and ",
               "outputs present.*, which are the next inputs; masks are of all tokens, earlier and new"));
  say_untied(made);
  if (!made.inputs.empty()) say(inputs_note(made.inputs));
  if (has_adapters(inference)) say("its adapters are layers of their own; --merge folds them into the weights");
  const Preprocess preprocess(inference);
  if (!preprocess.empty()) {
    say(concat("left out of the graph: ", preprocess.text(),
               "; `onnx-train predict` does it, as the file's metadata say (", kPreprocess,
               "); other programs must do it to their inputs"));
  }
  const std::string batch = training.metadata(kExportedBatch);
  if (!batch.empty()) {
    say(concat("the inputs are ", shapes_of_inputs(*inference.graph),
               ": the training model was built with --batch, and the file it was made from had a batch of ", batch));
  }
  return 0;
}

}  // namespace

Subcommand export_command() {
  auto arguments = std::make_shared<ExportArguments>();
  const auto exported = [](const std::string& text) {
    if (!is_folder(text)) file_with(std::vector<std::string>{".onnx", ".safetensors", ".npz", ".onnx_adapter"})(text);
  };
  return {
      "export",
      "Write the inference model alone: no training_info, no state but the weights; or weights, or an adapter",
      "  onnx-train export run/best.onnx -o model.onnx\n"
      "  onnx-train export run/best.onnx -o weights.safetensors\n"
      "  onnx-train export run/best.onnx -o model.onnx --merge\n"
      "  onnx-train export run/best.onnx -o model.onnx --dtype int4,block=32 --eval-data test.npz\n"
      "  onnx-train export run/best.onnx -o adapter/\n"
      "  onnx-train export run/best.onnx --merge --into decoder.onnx -o trained.onnx\n"
      "  onnx-train export run/best.onnx --merge --into decoder/ -o trained/",
      joined(
          joined(
              joined({{"MODEL", &arguments->model, "a training model or a checkpoint", "FILE", true},
                      {"-o,--output",
                       {&arguments->output, exported},
                       "the .onnx file to write; .safetensors or .npz: the weights by name; the adapter alone: DIR/ as "
                       "PEFT "
                       "has it, .onnx_adapter as ONNX Runtime has it",
                       "FILE",
                       true}},
                     export_options(&arguments->settings)),
              {{"--rename",
                {&arguments->rename, check_renaming},
                "names of weights or adapters in their file: 'm.*=*' takes away the 'm.' of a module that was wrapped",
                "FROM=TO"},
               {"--eval-data", &arguments->eval_data,
                "with --dtype: print loss and metrics beside those of the model as trained", "PATH"},
               {"--batch-size", {&arguments->batch_size, kCount}, "samples of --eval-data at a time [128]", "N"}}),
          data_options(&arguments->reading)),
      [arguments] { return run(*arguments); }};
}

}  // namespace onnx_train
