// Losses that tell each pair of a batch from all others: a[i] belongs to b[i].
#include "onnx_passes/loss/term_builder.h"

namespace onnx_train {
namespace {

using enum OptionKind;

// 0, 1, ..., n - 1 for the size n of the first axis of x.
Var numbers_of(Var x) {
  Builder& b = x.builder();
  return b.op("Range", {b.scalar(DType::kInt64, 0), squeeze(dim(x, 0), {0}), b.scalar(DType::kInt64, 1)});
}

Var embedding(TermBuilder& t, Var x) { return t.flag("normalize") ? normalized(x, 1e-12) : x; }

LossResult info_nce(TermBuilder& t) {
  const Var x = t.x(), a = embedding(t, x), b = embedding(t, t.argument(1, x));
  const Var products = matmul(a, transpose_last(b)), similarity = products / t.scalar("temperature", x);
  const Var own = numbers_of(x);
  Var losses = -picked(log_softmax(similarity, 1), own, 1);
  if (t.flag("symmetric")) losses = (losses - picked(log_softmax(similarity, 0), own, 0)) * 0.5;
  return t.reduced(x, {losses, "pairs", {0}});
}

LossResult nt_xent(TermBuilder& t) {
  constexpr double kHidden = -1e30;  // the logarithm of no probability
  const Var x = t.x(), z = embedding(t, concat({x, t.argument(1, x)}, 0));
  const Var products = matmul(z, transpose_last(z)), similarity = products / t.scalar("temperature", x);
  const Var each = numbers_of(z), own = numbers_of(x), samples = squeeze(dim(x, 0), {0});
  const Var row = unsqueeze(each, {0}), itself = equal(row, unsqueeze(each, {1}));
  const Var log_p = log_softmax(where(itself, t.b().scalar(x.dtype(), kHidden), similarity), 1);
  const Var views = -picked(log_p, concat({own + samples, own}, 0), 1);  // [2 samples]
  const Var pair_shape = concat({t.b().ints({2}), dim(x, 0)}, 0);
  return t.reduced(x, {reduce_mean(reshape(views, pair_shape), {0}, /*keepdims=*/false), "pairs", {0}});
}

}  // namespace

std::vector<LossRow> contrastive_losses() {
  using enum ArgumentKind;
  using enum ArgumentShape;
  const std::vector<LossArgument> pair = {{"a", kPrediction, kOwn}, {"b", kPrediction, kSame}};
  const LossOption normalize = {"normalize", kNumber, 1, kTrueOrFalse, "vectors are divided by their norms"};
  return {
      {"info_nce",
       pair,
       {{"temperature", kNumberOrValue, 0.07, kAboveZero,
         "a number, or the name of a scalar of the model, such as a weight"},
        {"symmetric", kNumber, 1, kTrueOrFalse, "the mean of both directions; false: a among all b alone"},
        normalize},
       info_nce,
       "-(log p[i, i] + log q[i, i])/2, where p and q are softmax over the rows and the columns of cos(a[i], b[j]) / "
       "temperature, for embeddings [samples, features]",
       "pairs; the others of the batch are the negatives, so the loss depends on the batch size",
       "Radford et al., CLIP, 2021; with `symmetric=false` van den Oord et al., 2018",
       2,
       2},
      {"nt_xent",
       pair,
       {{"temperature", kNumberOrValue, 0.5, kAboveZero,
         "a number, or the name of a scalar of the model, such as a weight"},
        normalize},
       nt_xent,
       "-log p[i, j] of both views i of a sample, where j is the other view and p is softmax of cos(z[i], z[k]) / "
       "temperature over all k ≠ i of both views z = (a, b)",
       "pairs; the others of the batch are the negatives, so the loss depends on the batch size",
       "Chen et al., SimCLR, 2020",
       2,
       2},
  };
}

}  // namespace onnx_train
