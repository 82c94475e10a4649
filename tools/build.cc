#include <cstdio>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/loading.h"
#include "onnx_passes/passes/mixed_precision.h"
#include "onnx_passes/passes/passes.h"
#include "tools/arguments.h"
#include "tools/models.h"
#include "tools/report/format.h"
#include "tools/report/output.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct BuildArguments {
  std::string model, output, mode = "train", precision = "float32", dtype = "float32", variance = "unbiased";
  ImportOptions import;
  BuildOptions options;
  bool timings = false;
};

std::string entry_names(const Model& model) {
  std::string names = "predict";
  for (const EntryPoint& entry : model.entry_points) names += ", " + entry.name();
  return names;
}

int run(BuildArguments* arguments) {
  BuildOptions& options = arguments->options;
  options.mode = arguments->mode == "train" ? Mode::kTrain : Mode::kFrozen;
  options.precision = parse_precision(arguments->precision);
  if (options.precision != Precision::kFloat32 && arguments->dtype != "float32")
    fail("--precision ", arguments->precision, " rounds float32; leave out --dtype ", arguments->dtype);
  options.unbiased_variance = arguments->variance == "unbiased";
  Model model = load_forward_model(arguments->model, arguments->dtype, arguments->import);
  double trained = 0;
  const auto weights = select_trainable(model, options.train, options.freeze);
  for (const Value* weight : weights) trained += static_cast<double>(num_elements(weight->type().shape()));
  const size_t count = weights.size();
  const std::vector<PassTiming> timings = build_training_model(&model, options);
  save_model(model, arguments->output);

  TextTable table("lw");
  table.add({"training model", arguments->output});
  table.add({"trained", std::to_string(count) + " tensors, " + format_count(trained) + " elements"});
  for (const char* key : {"loss", "optimizer", "mode", "precision"}) {
    const std::string value = model.metadata(std::string("onnx_train.") + key);
    if (!value.empty()) table.add({key, value});
  }
  table.add({"entry points", entry_names(model)});
  std::printf("%s", table.text(0, list_width()).c_str());
  if (!arguments->timings) return 0;
  TextTable times("lrl");
  for (const PassTiming& t : timings)
    times.add({t.name, format_number(t.milliseconds) + " ms", t.changed ? "" : "no change"});
  std::printf("\n%s", times.text(0).c_str());
  return 0;
}

}  // namespace

Subcommand build_command() {
  auto a = std::make_shared<BuildArguments>();
  BuildOptions& o = a->options;
  return {
      "build",
      "Make a training model: loss, gradients, optimizer and their state in one ONNX file",
      "  onnx-train build model.onnx -o train.onnx --loss cross_entropy --optimizer 'adamw(weight_decay=0.05)'\n"
      "  onnx-train build model.onnx -o head.onnx --train 'fc.*' --optimizer 'sgd(momentum=0.9)' --mode frozen\n"
      "  onnx-train build model.onnx -o train.onnx --loss '0.7*cross_entropy(logits, labels) + 0.3*mse(aux, target)'",
      {{"MODEL", &a->model, "the forward model", "FILE", true},
       {"-o,--output", &a->output, "the training model to write", "FILE", true},
       {"--loss", &o.loss,
        "cross_entropy, nll, bce_with_logits, mse, l1, huber, an output that is the loss, or a weighted sum; each "
        "takes "
        "(prediction, target), and a target that is left out is the new input labels, or labels_<prediction> where "
        "targets differ in type [cross_entropy]",
        "EXPR"},
       {"--optimizer", &o.optimizer,
        "sgd(momentum, nesterov, weight_decay, dampening), adam(...) or adamw(beta1, beta2, eps, weight_decay) [adamw]",
        "EXPR"},
       {"--mode",
        &a->mode,
        "frozen: batch norm uses its running statistics, dropout is off [train]",
        "MODE",
        false,
        {"train", "frozen"}},
       {"--precision",
        &a->precision,
        "gemm-bf16: products and convolutions take bfloat16 operands; bf16: activations are bfloat16, too. Weights "
        "and their updates stay float32 [float32]",
        "KIND",
        false,
        {"float32", "gemm-bf16", "bf16"}},
       {"--loss-scale",
        {&o.loss_scale, dynamic_or_positive()},
        "multiply the loss's gradient by N or, dynamic, by as much as stays finite; skip updates that are not finite "
        "[no scaling]",
        "dynamic|N"},
       {"--train", &o.train, "weights to train: names, globs, @FILE with one a line [all]", "PATTERNS"},
       {"--freeze", &o.freeze, "weights to leave as they are, likewise", "PATTERNS"},
       {"--decay", &o.decay, "weights that decay, likewise [all but biases and norm scales]", "PATTERNS"},
       {"--clip", {&o.clip_norm, kPositive}, "clip the gradient's global norm at this [no clipping]", "NORM"},
       batch_option(&a->import),
       set_option(&a->import),
       fix_shapes_option(&a->import),
       {"--accumulate", &o.accumulate, "entry points accumulate and apply instead of step"},
       {"--init",
        &o.init,
        "draw the weights anew instead of taking the file's",
        "METHOD",
        false,
        {"kaiming", "xavier", "gpt2"}},
       {"--seed", &o.seed, "of --init and dropout [0]", "N"},
       {"--running-variance",
        &a->variance,
        "of batch norm: unbiased as PyTorch keeps it, biased as ONNX does [unbiased]",
        "KIND",
        false,
        {"unbiased", "biased"}},
       {"--dtype",
        &a->dtype,
        "float64 makes every float a double, to verify with [float32]",
        "TYPE",
        false,
        {"float32", "float64"}},
       {"--dump-passes", &o.pipeline.dump_dir, "write the model after each pass into this folder", "DIR"},
       {"--verify-passes", &o.pipeline.verify, "check the model after each pass"},
       {"--timings", &a->timings, "say how long each pass took"}},
      [a] { return run(a.get()); }};
}

}  // namespace onnx_train
