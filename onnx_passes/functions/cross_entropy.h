// The cross entropy of logits, as mathematics: what the bodies of its functions have in common (losses.cc, and
// kernels/functions/losses.cc with the product before it). Owned by the caller, who writes one body with it, on one
// thread. Throws Error for a call without the attributes that it needs.
#pragma once

#include <string>

#include "onnx_passes/functions/body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

template <typename T>
const T& cross_entropy_attribute(const FunctionCall& call, const char* name) {
  const Attr* attr = call.find(name);
  if (!attr || !std::holds_alternative<T>(attr->value)) fail("a cross entropy needs the attribute '", name, "'");
  return std::get<T>(attr->value);
}

// What the logits say of the labels, without the axis of the classes: log p[y], and the number of classes before y,
// those of larger logits and of equal ones with smaller numbers, which is not a number where a logit is none. Both are
// 0 where a label is ignored. `label` is the index with the axis of the classes, `ignored` has no such axis; axis >= 0.
inline Terms label_scores(Body& f, const Term& logits, const Term& label, const Term& ignored, int64_t axis,
                          int64_t rank) {
  const auto counted = [&](const Term& x) { return reduce_sum(cast_like(x, logits), {axis}, /*keepdims=*/false); };
  const Term shifted = logits - reduce_max(logits, {axis}), own = gather_elements(logits, label, axis);
  const Term log_p = shifted - log(reduce_sum(exp(shifted), {axis}));
  std::vector<int64_t> along(static_cast<size_t>(rank - axis), 1);
  along[0] = -1;
  const Term classes = reshape(range(gather(shape(logits), Term(axis))), along);
  const Term first = logical_or(logical_not(logits <= own), logical_and(equal(logits, own), classes < label));
  const Term has_nan = counted(logical_not(equal(logits, logits))) > 0, nan = sqrt(f.as(-1, logits));
  return {where(ignored, 0, squeeze(gather_elements(log_p, label, axis), {axis})),
          where(ignored, 0, where(has_nan, nan, counted(first)))};
}

// Reads the inputs `labels` and `weight` of the function. The body depends on the axis of the classes, the reduction,
// and whether there are smoothing and weights of the classes.
struct CrossEntropyBody {
  Body& f;
  int64_t rank, axis;  // of the logits
  bool mean, smooth, weighted;
  Term logits, zero, one;
  Term ignored, label_column;
  Term counted;                // the weight of each position: that of its class, 0 where it is ignored
  Term nothing, divisor;       // Σ counted, or 1 where that is 0
  Term classes, keep, spread;  // for label smoothing s: C, 1 - s, s / C

  CrossEntropyBody(Body* body, const Term& x) : f(*body), logits(x) {
    rank = f.given("labels").rank() + 1;  // the labels' shape is the logits' without the classes
    axis = normalize_axis(cross_entropy_attribute<int64_t>(f.call(), "axis"), rank);
    const std::string& reduction = cross_entropy_attribute<std::string>(f.call(), "reduction");
    if (reduction != "mean" && reduction != "sum") fail("a cross entropy's reduction is mean or sum, not ", reduction);
    mean = reduction == "mean", weighted = f.has("weight");
    smooth = cross_entropy_attribute<Tensor>(f.call(), "label_smoothing").at(0) > 0;
    f.depends_on(concat("axis", axis, "of", rank, mean ? "_mean" : "_sum", smooth ? "_smooth" : "",
                        weighted ? "_weighted" : ""));

    const Term labels = f.input("labels");
    zero = f.as(0, logits), one = f.as(1, logits);
    const Term label = f.apply("ClassIndex", {labels, logits}, "axis: int = @axis, ignore_index: int = @ignore_index");
    ignored = equal(cast(labels, DType::kInt64), f.attribute("ignore_index"));
    label_column = column(label);
    counted = where(ignored, zero, weighted ? gather(f.input("weight"), label) : one);
    const Term total = sum_all(counted);
    nothing = equal(total, zero), divisor = where(nothing, one, total);
    classes = cast_like(shape(logits, axis, axis + 1), logits);
    const Term smoothing = f.as(f.attribute("label_smoothing"), logits);
    keep = 1 - smoothing, spread = smoothing / classes;
  }

  Term column(const Term& x) const { return unsqueeze(x, {axis}); }
  Term row(const Term& x) const { return squeeze(x, {axis}); }
  Term sum_all(const Term& x) const { return reduce_sum(x, {}, /*keepdims=*/false); }
  // Divided by Σ counted with the reduction "mean", 0 where that is 0.
  Term averaged(const Term& x) const { return mean ? where(nothing, zero, x / divisor) : x; }
  // The weights of the classes along their axis.
  Term class_weight() const {
    if (!weighted) return one;
    std::vector<int64_t> shape(static_cast<size_t>(rank - axis), 1);
    shape[0] = -1;
    return reshape(f.input("weight"), shape);
  }

  // ---- Results

  // With the axis of the classes, of size 1.
  Term log_sum_exp() const {
    const Term highest = reduce_max(logits, {axis});
    return highest + log_of_sum(logits - highest);
  }
  // log p = x - log Σ exp x
  // loss = (1 - s) Σᵢ w[yᵢ] (-log p[i, yᵢ]) + s / C Σᵢ Σ_c w[c] (-log p[i, c])          s: label smoothing
  // over the positions i that are not ignored; reduction "mean" divides by Σᵢ w[yᵢ]
  // (torch.nn.functional.cross_entropy); where that is 0, nothing counts, and loss and gradient are 0 (PyTorch: NaN).
  Term loss() const {
    const Term shifted = logits - reduce_max(logits, {axis}), log_sum = log_of_sum(shifted), log_p = shifted - log_sum;
    Term likelihood = where(ignored, 0, counted * row(gather_elements(log_p, label_column, axis)));
    if (smooth) {
      const Term of_all = reduce_sum(weighted ? class_weight() * log_p : log_p, {axis}, /*keepdims=*/false);
      likelihood = keep * likelihood + where(ignored, 0, spread * of_all);
    }
    return averaged(-sum_all(likelihood));
  }
  // dx[i, c] = dloss ((1 - s) w[yᵢ] (p[i, c] - [c = yᵢ]) + s / C (p[i, c] Σ_k w[k] - w[c]))
  // and 0 where i is ignored; reduction "mean" divides by Σᵢ w[yᵢ]. `log_sums` has the axis of the classes.
  Term gradient(const Term& log_sums, const Term& dloss) const {
    const Term p = exp(logits - log_sums), counts = column(counted);
    Term change = scatter_add(p * counts, label_column, -counts, axis);
    if (smooth) {
      const Term of_all = p * (weighted ? sum_all(f.input("weight")) : classes) - class_weight();
      change = keep * change + spread * of_all;
    }
    return where(column(ignored), zero, change * averaged(dloss));
  }

 private:
  Term log_of_sum(const Term& shifted) const { return log(reduce_sum(exp(shifted), {axis})); }
};

}  // namespace onnx_train
