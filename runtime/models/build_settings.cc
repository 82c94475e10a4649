#include "runtime/models/build_settings.h"

#include <algorithm>
#include <filesystem>

#include "kernels/device.h"
#include "onnx_passes/import/import_steps.h"
#include "onnx_passes/import/sizes.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/loss/loss_expression.h"
#include "onnx_passes/loss/loss_model.h"
#include "onnx_passes/metrics/metrics.h"
#include "onnx_passes/pipeline/kept_faults.h"
#include "onnx_passes/precision/convert_dtype.h"
#include "onnx_passes/precision/loss_scaling.h"
#include "onnx_passes/precision/mixed_precision.h"
#include "onnx_passes/training/optimizer_spec.h"
#include "onnx_passes/training/training_mode.h"
#include "runtime/models/adapt.h"
#include "runtime/models/model_folder.h"

namespace onnx_train {
namespace {

std::string joined_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

CommandOption mode_option(std::string* mode) {
  return {"--mode",
          mode,
          "frozen: batch norm uses its running statistics, dropout is off; preserve: where training_mode is 0 in the "
          "file [train: all but the batch norms of frozen layers train]",
          "MODE",
          false,
          {"train", "frozen", "preserve"}};
}

CommandOption batch_option(ImportOptions* options) {
  return {"--batch",
          {&options->batch, dynamic_or_count()},
          "give the batch dimension this size, or make it dynamic [as exported]",
          "N|dynamic",
          false,
          {},
          [] { return Words{"dynamic"}; }};
}

CommandOption set_option(ImportOptions* options) {
  return {"--set", &options->set, "make an input that only selects a constant, such as sr=16000, and fold its branches",
          "NAME=VALUE"};
}

CommandOption dim_option(ImportOptions* options) {
  return {"--dim",
          {&options->dims, [](const std::string& text) { parse_size(text); }},
          "give a symbolic dimension of the inputs this size, such as len=3, and fold what that decides",
          "NAME=N"};
}

CommandOption fix_shapes_option(ImportOptions* options) {
  return {"--fix-shapes", &options->fix_shapes, "drop declared shapes that the model's contents contradict"};
}

ImportOptions import_options(const BuildSettings& settings) {
  ImportOptions options = settings.import;
  options.adapt.seed = settings.build.seed;
  options.train = settings.build.train;
  options.without_cache = true;
  return options;
}

namespace {

// A list of texts that may hold commas.
OptionTarget each_whole(std::vector<std::string>* texts) {
  OptionTarget target(texts);
  target.whole = true;
  return target;
}

}  // namespace

std::vector<CommandOption> build_options(BuildSettings* s) {
  BuildOptions& o = s->build;
  std::vector<CommandOption> options = {
      {"--loss",
       &o.loss,
       joined_names(loss_names()) +
           ", an output that is the loss, or a weighted sum (docs/losses.md explains each); or "
           "FILE.onnx, a model whose inputs have the names of the model's outputs, or are new; each loss takes "
           "(prediction, target), and a target that is left out is the new input labels, or labels_<prediction> where "
           "targets differ in type [cross_entropy, or a training model's own]",
       "EXPR",
       false,
       {},
       loss_names},
      {"--metric",
       each_whole(&o.metrics),
       concat(
           "a metric that evaluations compute besides the loss: ", joined_names(metric_names()),
           "; of the loss's prediction and target, or as in 'top5=top_k(logits, labels, k=5)', with a name of its own "
           "(docs/metrics.md explains each); once for each"),
       "METRIC",
       false,
       {},
       metric_names},
      {"--teacher", &s->teacher,
       "a model that learns nothing and whose outputs the loss reads: its output logits is teacher.logits, as in "
       "'distill(logits, teacher.logits, temperature=4)'; its inputs have the names of the model's",
       "FILE"},
      {"--optimizer",
       &o.optimizer,
       describe_optimizers() + "; options=value where they are not PyTorch's defaults [adamw]",
       "EXPR",
       false,
       {},
       optimizer_names},
      mode_option(&s->mode),
      {"--precision",
       &s->precision,
       "gemm-bf16: products and convolutions take bfloat16 operands; bf16: activations are bfloat16, too; fp16: the "
       "same in float16; fp8: bf16 with 8-bit operands of products with weights; auto: bf16 where --device multiplies "
       "bfloat16, else float32. Weights and their updates stay float32 [float32]",
       "KIND",
       false,
       {"float32", "gemm-bf16", "bf16", "fp16", "fp8", "auto"}},
      {"--device",
       &s->device,
       "that --precision auto is for, as `onnx-train devices` lists it [cpu]",
       "NAME",
       false,
       {},
       Device::names},
      {"--loss-scale",
       {&o.loss_scale, check_loss_scale},
       "multiply the loss's gradient by N or, dynamic, by as much as stays finite; skip updates that are not finite; "
       "dynamic(init_scale=65536, growth_interval=2000) [no scaling; dynamic with --precision fp16]",
       "dynamic|N",
       false,
       {},
       [] { return Words{"dynamic"}; }},
      {"--train", &o.train,
       "weights to train: names, globs, @FILE with one a line; constants by name [all but constants]", "PATTERNS"},
      {"--freeze", &o.freeze, "weights to leave as they are, likewise", "PATTERNS"},
      {"--decay", &o.decay, "weights that decay, likewise; '*' for all, as in PyTorch [all but biases and norm scales]",
       "PATTERNS"},
      {"--group", each_whole(&o.groups),
       "options of the optimizer for some weights: 'head.*: lr=10x, weight_decay=0'; lr=10x is a factor of the "
       "learning "
       "rate, lr=1e-4 a rate at its peak; of several groups that match a weight the last wins, option by option",
       "'PATTERN: OPTIONS'"},
      {"--layer-decay",
       {&o.layer_decay, {0, true, 1}},
       "multiply the learning rate by this for each layer that comes after the weight's [1: no decay]",
       "X"},
      {"--ema",
       {&o.ema, {0, true, 0.999999}},
       "keep the average a = X a + (1 - X) w of the weights; evaluate, predict and export read it [no average]",
       "X"},
      {"--swa",
       {&o.swa, kCount},
       "or keep the mean of the weights from step STEP on (stochastic weight averaging); read likewise [no average]",
       "STEP"},
      {"--swa-every", {&o.swa_every, kCount}, "with --swa: after each N-th step [1]", "N"},
      {"--clip", {&o.clip_norm, kPositive}, "clip the gradient's global norm at this [no clipping]", "NORM"},
      {"--clip-value",
       {&o.clip_value, kPositive},
       "bound each element of the gradients by this, before --clip [no clipping]",
       "X"},
      batch_option(&s->import),
      set_option(&s->import),
      dim_option(&s->import),
      fix_shapes_option(&s->import),
      {"--accumulate", &o.accumulate, "entry points accumulate and apply instead of step"},
      {"--accumulate-mean",
       &s->accumulate_mean,
       "what accumulated batches count for: all, what counts in each, as in one large batch; batches, the same each "
       "[all]",
       "KIND",
       false,
       {"all", "batches"}},
      {"--init",
       &o.init,
       "draw the weights anew instead of taking the file's",
       "METHOD",
       false,
       {"kaiming", "xavier", "gpt2"}},
      {"--seed", &o.seed, "of --init, new heads, adapters and dropout [0]", "N"},
      {"--running-variance",
       &s->variance,
       "of batch norm: unbiased as PyTorch keeps it, biased as ONNX does [unbiased]",
       "KIND",
       false,
       {"unbiased", "biased"}},
      {"--dtype",
       &s->dtype,
       "float64 makes every float a double, to verify with [float32]",
       "TYPE",
       false,
       {"float32", "float64"}}};
  for (CommandOption& option : adapt_options(&s->import.adapt)) options.push_back(std::move(option));
  return options;
}

AutomaticPrecision automatic_precision(const BuildSettings& settings) {
  if (settings.dtype != "float32") return {"float32", concat("the model is built in ", settings.dtype)};
  const Device& device = Device::find(settings.device);
  const std::string units = device.bfloat16_units();
  if (units.empty()) return {"float32", concat(device.name(), " does not multiply bfloat16")};
  return {"bf16", concat(device.name(), " multiplies bfloat16 with ", units)};
}

BuildOptions resolve(const BuildSettings& settings) {
  BuildOptions options = settings.build;
  options.mode = parse_mode(settings.mode);
  options.precision =
      parse_precision(settings.precision == "auto" ? automatic_precision(settings).kind : settings.precision);
  options.unbiased_variance = settings.variance == "unbiased";
  options.mean_of_batches = settings.accumulate_mean == "batches";
  if (options.mean_of_batches && !options.accumulate) {
    fail_as(ErrorCode::kUsage, "--accumulate-mean batches needs --accumulate");
  }
  const AdaptOptions& adapt = settings.import.adapt;
  if (!options.init.empty() && !(adapt.lora.empty() && adapt.ia3.empty() && adapt.adapter.empty())) {
    fail_as(ErrorCode::kUsage, "--init draws all trained weights anew; adapters have initial values of their own");
  }
  if (!options.loss_model) options.loss_model = load_loss_model(options.loss, settings.dtype);
  if (!settings.teacher.empty()) {
    if (options.loss_model) {
      fail_as(ErrorCode::kUsage, "--teacher needs a --loss expression that names its outputs; ", options.loss,
              " is a model");
    }
    options.teacher = load_teacher(settings.teacher, settings.dtype);
  }
  if (options.precision == Precision::kFloat32 || settings.dtype == "float32") return options;
  fail_as(ErrorCode::kUsage, "--precision ", settings.precision, " rounds float32; leave out --dtype ", settings.dtype);
}

std::shared_ptr<const LossModel> load_loss_model(const std::string& loss, const std::string& dtype) {
  if (!is_loss_file(loss)) return nullptr;
  if (loss.find_first_of("+*(,") != std::string::npos && !std::filesystem::exists(loss)) {
    fail_as(ErrorCode::kUsage, "--loss \"", loss,
            "\": there is no such file, and a file is no term of an expression: a loss model stands alone; write the "
            "whole sum into it");
  }
  return import_loss_model(load_message(loss), loss, dtype);
}

std::shared_ptr<const LossModel> import_loss_model(ModelMessage message, const std::string& name,
                                                   const std::string& dtype) {
  try {
    return std::make_shared<const LossModel>(LossModel{name, import_forward_model(std::move(message), dtype, {})});
  } catch (const Error& error) {
    throw Error(concat("the loss model '", name, "': ", error.what()), error.code());
  }
}

std::shared_ptr<const LossModel> load_teacher(const std::string& path, const std::string& dtype) {
  if (path.empty()) return nullptr;
  Model model = load_forward_model(path, dtype);
  to_inference(*model.graph);
  return std::make_shared<const LossModel>(LossModel{path, std::move(model)});
}

Model in_precision(Model model, const std::string& dtype) {
  if (dtype == "float32") return model;
  if (dtype != "float64") fail("unknown dtype '", dtype, "'; take float32 or float64");
  onnx::ModelProto proto;
  to_proto(model, &proto, {.all_types = true});
  convert_to_double(&proto);
  return from_proto(std::move(proto));
}

namespace {

// Dumps of a pipeline that runs before the training passes go into a folder of its own. Its models are not checked:
// they get their form on the way.
PipelineOptions dumps_into(const std::string& name, PipelineOptions pipeline) {
  if (!pipeline.dump_dir.empty()) pipeline.dump_dir += "/" + name;
  pipeline.verify = false;
  return pipeline;
}

}  // namespace

Model import_forward_model(ModelMessage message, const std::string& dtype, const ImportOptions& options,
                           std::vector<Finding>* findings, const PipelineOptions& pipeline) {
  DroppedCache dropped;
  if (options.without_cache) dropped = drop_operator_caches(message.proto.mutable_graph());
  Model model =
      in_precision(import_model(std::move(message), options, findings, dumps_into("import", pipeline)), dtype);
  infer_types(model.graph.get());  // the conversion keeps types, but not the known contents of shapes
  if (options.without_cache) drop_cache(&model, dropped);
  if (options.adapt.any() || options.adapt.weights_partial)
    adapt(&model, options.adapt, dtype, dumps_into("adapt", pipeline));
  return model;
}

Model load_forward_model(const std::string& path, const std::string& dtype, const ImportOptions& options,
                         std::vector<Finding>* findings) {
  return keeping_faults({}, [&](const PipelineOptions& pipeline) {
    return import_forward_model(load_message(model_file(path)), dtype, options, findings, pipeline);
  });
}

std::vector<CommandOption> options_of_forward(BuildSettings* settings, const std::vector<std::string>& keys) {
  std::vector<CommandOption> taken = with_keys(build_options(settings), keys);
  for (CommandOption& option : taken) {
    const std::string key = key_of(option);
    const char* const otherwise = key == "loss" ? " [what fits the data]" : key == "optimizer" ? " [adamw]" : "";
    option.help = concat("of a forward MODEL, as build takes it", otherwise);
  }
  return taken;
}

std::vector<CommandOption> options_of_forward_run(BuildSettings* settings) {
  return options_of_forward(settings, {"loss", "metric", "optimizer", "group", "precision", "ema", "batch", "head",
                                       "lora", "untie", "train", "freeze", "resize-vocabulary"});
}

}  // namespace onnx_train
