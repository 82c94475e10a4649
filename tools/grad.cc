#include <cstdio>
#include <memory>
#include <numeric>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/training/training_mode.h"
#include "runtime/data/loading/source.h"
#include "runtime/models/derivatives.h"
#include "runtime/models/example_inputs.h"
#include "runtime/models/sizes_of_data.h"
#include "runtime/session/session.h"
#include "runtime/support/report_text.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct GradArguments {
  GradArguments() { options.loss.clear(); }

  std::string model, inputs, output, mode = "train", dtype = "float32";
  ImportOptions import;
  BuildOptions options;
  SessionSettings runtime;
  std::string vjp, jvp, hvp;
  bool jacobian = false, per_sample = false;
};

// A derivative, and the model that it is of.
struct OpenedDerivative {
  std::shared_ptr<const Model> forward;
  std::unique_ptr<DerivativeSession> session;

  OpenedDerivative(std::shared_ptr<const Model> model, Derivative kind, const GradArguments& a)
      : forward(std::move(model)),
        session(std::make_unique<DerivativeSession>(*forward, kind, a.options, options_of_session(a.runtime))) {}
};

bool has_branches(const Graph& graph) {
  for (const Node* node = graph.first(); node; node = node->next()) {
    if (node->is("If")) return true;
  }
  return false;
}

// Where a branch depends on sizes, the model is that for the sizes of the data; also where a rule needs sizes, which
// `note` then says.
OpenedDerivative open_derivative(const GradArguments& a, Derivative kind, std::string* note) {
  const auto load = [&](const std::vector<std::string>& dims) {
    ImportOptions import = a.import;
    import.dims = dims;
    return std::make_shared<const Model>(load_forward_model(a.model, a.dtype, import));
  };
  const std::shared_ptr<const Model> forward = load(a.import.dims);
  const auto sizes = [&] {
    const Dataset data = load_dataset(a.inputs, entry_inputs(*forward, Entry::kPredict));
    return sizes_of_data(*forward, data, a.import.dims, /*is_one_batch=*/!a.per_sample);
  };
  if (has_branches(*forward->graph)) {
    std::vector<std::string> dims = sizes();
    dims.insert(dims.end(), a.import.dims.begin(), a.import.dims.end());
    return {load(dims), kind, a};
  }
  return with_sizes_of_data(a.import.dims, sizes, note, [&](const std::vector<std::string>& dims) {
    return OpenedDerivative(dims == a.import.dims ? forward : load(dims), kind, a);
  });
}

// What is asked for: by the option, and the file of its vectors.
struct Wanted {
  Derivative kind = Derivative::kGradient;
  std::string vectors;
};

Wanted wanted_of(const GradArguments& a) {
  int asked = (a.jacobian ? 1 : 0) + (a.per_sample ? 1 : 0);
  Wanted wanted;
  if (a.jacobian) wanted.kind = Derivative::kVjp;
  for (const auto& [kind, file] :
       {std::pair(Derivative::kVjp, &a.vjp), {Derivative::kJvp, &a.jvp}, {Derivative::kHvp, &a.hvp}}) {
    if (file->empty()) continue;
    wanted = {kind, *file};
    ++asked;
  }
  const bool has_loss = wanted.kind == Derivative::kGradient || wanted.kind == Derivative::kHvp;
  if (!has_loss && !a.options.loss.empty())
    throw UsageError("--vjp, --jvp and --jacobian are of the outputs, not of a loss: leave out --loss");
  if (asked > 1) throw UsageError("--vjp, --jvp, --hvp, --jacobian and --per-sample are one derivative each: give one");
  return wanted;
}

// All samples as one batch.
TensorMap whole_batch(const Dataset& data) {
  std::vector<int64_t> rows(static_cast<size_t>(data.num_samples()));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  TensorMap batch;
  data.gather(rows.data(), data.num_samples(), &batch);
  return batch;
}

int run(GradArguments* arguments) {
  BuildOptions& options = arguments->options;
  const Wanted wanted = wanted_of(*arguments);
  options.mode = parse_mode(arguments->mode);
  if (options.loss.empty()) options.loss = BuildOptions().loss;
  options.loss_model = load_loss_model(options.loss, arguments->dtype);
  std::string sizes;
  const OpenedDerivative opened = open_derivative(*arguments, wanted.kind, &sizes);
  DerivativeSession& derivative = *opened.session;
  DataNotes notes;
  const Dataset data =
      load_dataset(arguments->inputs, derivative.inputs(), DataRole::kTrain, derivative.preprocess(), {}, &notes);
  TensorMap results;
  if (arguments->per_sample) {
    results = per_sample_gradients(&derivative, data);
  } else {
    TensorMap batch = whole_batch(data);
    if (arguments->jacobian) {
      DerivativeSession outputs(*opened.forward, Derivative::kOutputs, options, options_of_session(arguments->runtime));
      results = jacobians(&derivative, &outputs, batch);
    } else {
      if (!wanted.vectors.empty()) batch.merge(derivative.vectors(read_arrays(wanted.vectors), batch));
      results = derivative.run(batch);
    }
  }
  write_arrays(arguments->output, results);
  const auto say = [](const std::string& text) { std::printf("%s\n", wrap(text, text_width(), 0, 2).c_str()); };
  if (!sizes.empty()) say(sizes);
  for (const std::string& note : derivative.notes()) say(note);
  for (const std::string& note : notes) say("note: " + note);
  const auto loss = results.find("loss");
  const bool has_loss = loss != results.end() && loss->second.size() == 1;
  say(concat(arguments->output, ": ", has_loss ? concat("loss ", format_exact(loss->second.at(0)), ", ") : "",
             results.size(), " arrays"));
  return 0;
}

}  // namespace

Subcommand grad_command() {
  auto a = std::make_shared<GradArguments>();
  BuildOptions& o = a->options;
  return {
      "grad", "Loss and gradients for given inputs, or other derivatives: nothing is updated",
      "  onnx-train grad model.onnx --inputs batch.npz --loss cross_entropy -o gradients.npz\n"
      "  onnx-train grad model.onnx --inputs batch.npz --loss 'mse(logits, target)' --mode frozen --train 'fc.*' -o "
      "g.npz\n"
      "  onnx-train grad model.onnx --inputs batch.npz --hvp vectors.npz --mode frozen --dtype float64 -o "
      "products.npz\n"
      "\nKeys of the result: loss, output/<name>, grad/<initializer>, grad_input/<input>, next/<state>; "
      "vjp/<initializer "
      "or input>, jvp/<output>, hvp/<initializer or input>, jacobian/<output>/<initializer or input>. A weight or "
      "input that the loss does not depend on has no key, nor has an input before an operator without a gradient. The "
      "samples of the file are one batch; labels and the like "
      "are keys of it.",
      with_session_options(
          {{"MODEL", &a->model, "the forward model", "FILE", true},
           {"--inputs", &a->inputs, "the batch: any data that fit takes", "PATH", true},
           {"-o,--output",
            {&a->output, file_with(std::vector<std::string>{".npz", ".safetensors"})},
            "the .npz or .safetensors file to write",
            "FILE",
            true},
           {"--loss", &o.loss, "see build --help [cross_entropy]", "EXPR"},
           {"--vjp", &a->vjp,
            "instead: products of vectors with the Jacobian, no loss; the .npz or .safetensors file "
            "has one for each float output, by its name",
            "FILE"},
           {"--jvp", &a->jvp,
            "instead: derivatives of the outputs along directions, no loss; the file has arrays by the "
            "names of weights and inputs, others are zero",
            "FILE"},
           {"--hvp", &a->hvp, "instead: products of the loss's Hessian with vectors, likewise", "FILE"},
           {"--jacobian", &a->jacobian,
            "instead: derivatives of each element of the outputs, no loss; a pass for each"},
           {"--per-sample", &a->per_sample, "loss and gradients of each sample alone, as rows; a pass for each"},
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
