// Normalizations of com.microsoft: of sums, of embeddings, by the root mean square.
#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// What output i of LayerNormalization is called here: y, mean, 1 / standard deviation.
Results layer_norm(const Foreign& f, Var x, Var gamma, Var beta, float epsilon, int outputs) {
  std::vector<Var> inputs = {x, gamma};
  if (beta) inputs.push_back(beta);
  return f.b().ops("LayerNormalization", outputs, inputs, {{"axis", -1}, {"epsilon", epsilon}});
}

// The standard operator, which ONNX Runtime writes into models of earlier opsets, too.
Results own_layer_norm(Foreign& f) {
  std::vector<Var> inputs = {f.x(0), f.x(1)};
  if (f.has(2)) inputs.push_back(f.x(2));
  return f.b().ops("LayerNormalization", f.wants(1) || f.wants(2) ? 3 : 1, inputs,
                   f.attributes({"axis", "epsilon", "stash_type"}));
}

// y = gamma x r, r = 1 / √(mean x² + epsilon) along the axes from `axis` on
Results rms_norm(Var x, Var gamma, int64_t axis, float epsilon) {
  std::vector<int64_t> axes;
  for (int64_t a = axis < 0 ? axis : axis - x.rank(); a < 0; ++a) axes.push_back(a);
  const Var r = reciprocal(sqrt(reduce_mean(x * x, axes) + static_cast<double>(epsilon)));
  return {x * r * gamma, r};
}

// output, mean, inv_std_var, input_skip_bias_sum
Results skip_layer_norm(Foreign& f) {
  const Var sum = plus(f.x(0) + f.x(1), f.maybe(4));
  Results made =
      layer_norm(f, sum, f.x(2), f.maybe(3), f.node().attr("epsilon", 1e-12f), f.wants(1) || f.wants(2) ? 3 : 1);
  made.resize(3);
  made.push_back(sum);
  return made;
}

Results skip_rms_norm(Foreign& f) {
  const Var sum = plus(f.x(0) + f.x(1), f.maybe(3));
  const Results made = rms_norm(sum, f.x(2), -1, f.node().attr("epsilon", 1e-12f));
  return f.to({made[0], Var(), made[1], sum});
}

Results simplified_layer_norm(Foreign& f) {
  const int64_t rank = f.rank(0), axis = f.node().attr("axis", -1);
  if (axis < -rank || axis >= rank)
    f.refuse(concat("its axis ", axis, " is none of its input; export the model again"));
  return rms_norm(f.x(0), f.x(1), axis, f.node().attr("epsilon", 1e-5f));
}

// The embeddings of words, positions and segments, added and normalized; the number of words that the mask keeps; the
// sum. Positions are those of the words unless they are given.
Results embed_layer_norm(Foreign& f) {
  Builder& b = f.b();
  const Var ids = f.x(0);
  Var positions = f.maybe(8);
  if (!positions) {
    const Var length = squeeze(dim(ids, 1), {0});
    positions = b.op("Range", {b.scalar(DType::kInt64, 0), length, b.scalar(DType::kInt64, 1)});
  }
  const Var words = gather(f.x(2), ids, 0);
  Var sum = words + gather(f.x(3), positions, 0);
  if (f.has(1) && f.has(4)) sum = sum + gather(f.x(4), f.x(1), 0);
  const Var y = layer_norm(f, sum, f.x(5), f.x(6), f.node().attr("epsilon", 1e-12f), 1)[0];
  Var kept;
  if (f.wants(1)) {
    kept = f.has(7) ? cast(reduce_sum(cast(f.x(7), DType::kInt32), {1}, /*keepdims=*/false), DType::kInt32)
                    : full(dim(ids, 0), DType::kInt32, 0);
  }
  return f.to({y, kept, sum});
}

}  // namespace

std::vector<ForeignRow> normalization_foreign() {
  return {
      {"LayerNormalization", own_layer_norm},
      {"SkipLayerNormalization", skip_layer_norm},
      {"SkipSimplifiedLayerNormalization", skip_rms_norm},
      // ONNX Runtime has it in ONNX's own domain.
      {"SimplifiedLayerNormalization", simplified_layer_norm},
      {"SimplifiedLayerNormalization", simplified_layer_norm, ""},
      {"EmbedLayerNormalization", embed_layer_norm},
  };
}

}  // namespace onnx_train
