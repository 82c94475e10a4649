#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/adapter_records.h"
#include "onnx_passes/adapt/test_time_augmentation.h"
#include "onnx_passes/import/constants.h"
#include "onnx_passes/import/rebatch.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/widen.h"
#include "onnx_passes/quantization/stored_weights.h"
#include "onnx_passes/quantization/write_qdq.h"
#include "onnx_passes/weights/weight_origin.h"
#include "runtime/adapt.h"
#include "runtime/data/preprocess.h"
#include "runtime/data/safetensors.h"
#include "runtime/data/source.h"
#include "runtime/report_text.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/trainer.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct ExportArguments {
  std::string model, output, eval_data, tta;
  std::vector<std::string> dtype;
  int64_t batch_size = 128;
  bool original_types = false, merge = false;
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

bool is_npz(const std::string& path) {
  const std::string suffix = std::filesystem::path(path).extension();
  return suffix.size() == 4 &&
         std::equal(suffix.begin(), suffix.end(), ".npz", [](unsigned char a, char b) { return std::tolower(a) == b; });
}

// All weights and statistics by name.
int export_weights(const Model& inference, const std::string& path) {
  const auto constants = constants_of(inference);
  TensorMap weights;
  for (const Value* value : inference.graph->initializers()) {
    const bool weight = is_float(value->dtype()) && value->has_rank() && !constants.count(value->name());
    if (weight && (value->rank() > 0 || origin_of(*value) == Origin::kParameter))
      weights[value->name()] = contents_of(*value);
  }
  write_arrays(path, weights);
  std::printf("%s: %zu tensors\n", path.c_str(), weights.size());
  return 0;
}

int export_adapter(const Model& training, const std::string& folder) {
  const std::vector<std::string> names = save_adapters(training, folder);
  std::printf("%s: %zu tensors of the adapter, in PEFT's format\n", folder.c_str(), names.size());
  return 0;
}

bool is_quantized(const Graph& graph) {
  const Node* node = graph.first();
  while (node && !node->is("QuantizeLinear")) node = node->next();
  return node != nullptr;
}

// What is evaluated before and after the weights are rounded.
Metrics metrics_of(Model training, const ExportArguments& arguments) {
  Session session(std::move(training));
  DataNotes notes;
  const Dataset data = load_dataset(arguments.eval_data, session.model(), "evaluate", ReadOptions{}, &notes);
  const auto evaluated = evaluate(&session, data, arguments.batch_size);
  return evaluated.metrics;
}

// Evaluates the model that is in the file, and with `rounded` in the place of its weights.
void compare(const ExportArguments& arguments, const std::map<std::string, Tensor>& rounded) {
  const auto before = metrics_of(load_training_model(arguments.model), arguments);
  Model changed = load_training_model(arguments.model);
  for (const auto& [name, contents] : rounded) {
    Value* weight = changed.graph->find(name);
    if (weight && weight->is_initializer()) changed.graph->set_initializer(weight, contents);
  }
  const auto after = metrics_of(std::move(changed), arguments);
  TextTable table("lrr");
  table.add({"on " + arguments.eval_data, "as trained", "as stored"});
  for (const auto& [name, value] : before) table.add({name, format_number(value), format_number(after.at(name))});
  std::printf("%s", table.text(0, text_width()).c_str());
}

int run(const ExportArguments& arguments) {
  if (!arguments.eval_data.empty() && (arguments.dtype.empty() || arguments.merge))
    fail_as(ErrorCode::kUsage,
            "--eval-data compares what --dtype stores with what was trained; it needs --dtype, without --merge");
  const bool graph = !is_folder(arguments.output) && !is_safetensors(arguments.output) && !is_npz(arguments.output);
  if (!arguments.tta.empty() && !graph)
    fail_as(ErrorCode::kUsage, "--tta writes nodes, and ", arguments.output, " holds weights alone: take a .onnx file");
  const Model training = load_training_model(arguments.model);
  if (is_folder(arguments.output)) {
    if (arguments.merge)
      fail_as(ErrorCode::kUsage, "--merge folds the adapter into the weights; -o DIR/ writes it alone");
    return export_adapter(training, arguments.output);
  }
  Model inference = strip_training(training);
  if (arguments.merge && !has_adapters(inference)) fail(arguments.model, " has no adapters: leave out --merge");
  const int restored = arguments.merge ? dequantize_weights(&inference) : 0;
  const int merged = arguments.merge ? merge_adapters(&inference) : 0;
  if (is_safetensors(arguments.output) || is_npz(arguments.output)) return export_weights(inference, arguments.output);
  if (arguments.original_types) {
    const OriginalTypes types = original_types(training);
    if (types.empty())
      fail(arguments.model, " was made from a model without 16-bit floats: leave out --original-types");
    if (has_adapters(inference)) fail("--original-types narrows weights, and adapters are float32: add --merge");
    restore_types(&inference, types);
  }
  std::map<std::string, Tensor> rounded;
  StorageSpec storage;
  if (!arguments.dtype.empty()) {
    storage = parse_storage(arguments.dtype, "--dtype", {"float16", "bfloat16", "int8", "int4"});
    if (is_quantized(*inference.graph))
      fail(arguments.model, " was trained for integers, and is exported with them: leave out --dtype");
    if (has_adapters(inference)) fail("--dtype stores weights, and adapters are layers of their own: add --merge");
    rounded = store_weights(&inference, storage);
    if (!arguments.eval_data.empty()) compare(arguments, rounded);
  }
  average_over_views(&inference, parse_views(arguments.tta), "predict");
  const int integers = store_quantized(&inference);
  pack_four_bits(&inference);
  save_model(inference, arguments.output);
  std::printf("%s: %zu nodes, %zu initializers\n", arguments.output.c_str(), inference.graph->num_nodes(),
              inference.graph->initializers().size());
  if (integers > 0) say(concat("weights that are integers now: ", integers, ", as the model was trained"));
  if (!rounded.empty())
    say(concat(rounded.size(), " weights are stored as ", name(storage.dtype), ": ",
               std::filesystem::file_size(arguments.output), " bytes in the file"));
  if (restored > 0) say(concat("weights that were integers, and are floats with the adapters in them: ", restored));
  if (merged > 0) say(concat("folded into the weights: the adapters of ", merged, " layers"));
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
    if (!is_folder(text)) file_with(std::vector<std::string>{".onnx", ".safetensors", ".npz"})(text);
  };
  return {
      "export",
      "Write the inference model alone: no training_info, no state but the weights; or weights, or an adapter",
      "  onnx-train export run/best.onnx -o model.onnx\n"
      "  onnx-train export run/best.onnx -o weights.safetensors\n"
      "  onnx-train export run/best.onnx -o model.onnx --merge\n"
      "  onnx-train export run/best.onnx -o model.onnx --dtype int4,block=32 --eval-data test.npz\n"
      "  onnx-train export run/best.onnx -o adapter/",
      {{"MODEL", &arguments->model, "a training model or a checkpoint", "FILE", true},
       {"-o,--output",
        {&arguments->output, exported},
        "the .onnx file to write; .safetensors or .npz: the weights by name; DIR/: the adapter alone, as PEFT has it",
        "FILE",
        true},
       {"--merge", &arguments->merge, "fold adapters into the weights beside them: the graph is the original one"},
       {"--dtype", &arguments->dtype,
        "store the weights as float16, bfloat16, int8 or int4; integers have a scale for each block=32 of them "
        "[float32]",
        "TYPE"},
       {"--eval-data", &arguments->eval_data,
        "with --dtype: print loss and metrics beside those of the model as trained", "PATH"},
       {"--batch-size", {&arguments->batch_size, kCount}, "samples of --eval-data at a time [128]", "N"},
       {"--tta",
        {&arguments->tta, check_views},
        "average the outputs over views of the pictures, as nodes of the graph: flip, vflip, shift(1), or several",
        "VIEWS"},
       {"--original-types", &arguments->original_types,
        "weights, inputs and outputs that were float16 or bfloat16 before training are so again"}},
      [arguments] { return run(*arguments); }};
}

}  // namespace onnx_train
