// Losses, updates of the state, and random numbers.
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/multiply_adds.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

using enum ElementTypes;

// The sum before may be one number for all elements.
constexpr const char* kSumOverRanks =
    "x[S...] z[S...] active:int64[] after?:any -> y[S...] | x[] z[S...] active:int64[] after?:any -> y[S...]";
constexpr const char* kCrossEntropy =
    "logits[S...] labels:index[L...] weight?[_] @label_smoothing[] -> loss[] log_sum_exp?[L...] "
    "where #S = #L + 1, -#S <= @axis:1 < #S";
constexpr const char* kLabelScores =
    "logits[S...] labels:index[L...] -> log_p[L...] rank?[L...] where #S = #L + 1, -#S <= @axis:1 < #S";
constexpr const char* kClassIndex =
    "labels:index[L...] logits[S...] -> index:int64[L...] where #S = #L + 1, -#S <= @axis:1 < #S";
constexpr const char* kCrossEntropyGrad =
    "dloss[] logits[S...] labels:index[L...] log_sum_exp[L...] weight?[_] @label_smoothing[] -> dlogits[S...] "
    "where #S = #L + 1, -#S <= @axis:1 < #S";

#define LINEAR_LOSS                                                                                      \
  " labels:index[L...] bias?:float[V] weight?[V] dloss?[] @label_smoothing[] @scale[] @cap[] -> loss[] " \
  "correct?:bool[L...] log_p?[L...] rank?[L...] "
constexpr const char* kLinearCrossEntropy =
    "h:float[L..., D] w:float[V, D]" LINEAR_LOSS
    "dh?:float[L..., D] dw?[V, D] dbias?[V] where @transposed = 1 | "
    "h:float[L..., D] w:float[D, V]" LINEAR_LOSS "dh?:float[L..., D] dw?[D, V] dbias?[V] where @transposed = 0";
#undef LINEAR_LOSS

// The logits, and of what the node makes the gradients of h and w: a product each.
double multiply_adds_of_linear_cross_entropy(const Node& node) {
  const Value *h = node.input(0), *w = node.input(1);
  if (!h->has_rank() || !w->has_rank()) return 0;
  constexpr int kDh = 4, kDw = 5;
  const int products = 1 + (node.output(kDh) ? 1 : 0) + (node.output(kDw) ? 1 : 0);
  const double classes = elements_or_one(*w) / size_or_one(h->type().dims->back());
  return products * elements_or_one(*h) * classes;
}

// What every optimizer is told in a step.
#define STEP "step:int64[] learning_rate:float[] grad_scale:float[]"
constexpr const char* kSgd = "w[S...] g[S...] none! " STEP
                             " @momentum?[] @dampening?[] @weight_decay?[] -> next_w[S...] | "
                             "w[S...] g[S...] momentum_buffer[S...] " STEP
                             " @momentum?[] @dampening?[] @weight_decay?[] -> next_w[S...] next_momentum_buffer[S...]";
constexpr const char* kAdam =
    "w[S...] g[S...] exp_avg[S...] exp_avg_sq[S...] " STEP
    " @beta1?[] @beta2?[] @epsilon?[] @weight_decay?[] -> next_w[S...] next_exp_avg[S...] next_exp_avg_sq[S...]";
constexpr const char* kAdamW8bit =
    "w[S...] g[S...] state1:any[B, Q] absmax1[B, 1] state2:any[B, Q] absmax2[B, 1] " STEP
    " @beta1?[] @beta2?[] @epsilon?[] @weight_decay?[] -> next_w[S...] next_state1:any[B, Q] next_absmax1[B, 1] "
    "next_state2:any[B, Q] next_absmax2[B, 1]";
constexpr const char* kSparseAdam =
    "w[R, C, S...] g[R, C, S...] exp_avg[R, C, S...] exp_avg_sq[R, C, S...] " STEP
    " @beta1?[] @beta2?[] @epsilon?[] @weight_decay?[] -> next_w[R, C, S...] next_exp_avg[R, C, S...] "
    "next_exp_avg_sq[R, C, S...]";
constexpr const char* kSparseAdamRows =
    "w[R, C, S...] rows[P, C, S...] places:int64[P] exp_avg[R, C, S...] exp_avg_sq[R, C, S...] " STEP
    " @beta1?[] @beta2?[] @epsilon?[] -> next_w[R, C, S...] next_exp_avg[R, C, S...] next_exp_avg_sq[R, C, S...]";
#undef STEP

constexpr const char* kDropout = "x[S...] key:uint64[2] ratio:float[] -> y[S...] mask?:bool[S...]";
constexpr const char* kDraw = "key:uint64[2] shape:int64[#S] -> y[S...]";

}  // namespace

std::vector<Operator> training_operators() {
  return {
      {"ClassIndex", kClassIndex, kDomain},
      Operator{"LabelScores", kLabelScores, kDomain, kOneFloat}.narrow({0}, {}),
      Operator{"SoftmaxCrossEntropy", kCrossEntropy, kDomain, kOneFloat}.narrow({0}, {}),
      Operator{"SoftmaxCrossEntropyGrad", kCrossEntropyGrad, kDomain, kOneFloat}.narrow({1}, {0}),
      // The pass that makes it finds h and w in their stored types.
      Operator{"LinearCrossEntropy", kLinearCrossEntropy, kDomain, kOneFloat}.counting(
          multiply_adds_of_linear_cross_entropy),
      Operator{"AllReduce", kSumOverRanks, kDomain, kOneFloat}.meeting_after(3),
      Operator{"Reduce", kSumOverRanks, kDomain, kOneFloat}.meeting_after(3),
      Operator{"Broadcast", "x:any[S...] after?:any -> y:any[S...]", kDomain}.meeting_after(1),
      Operator{"Await", "y:any[S...] z?:any after?:any -> r:any[S...]", kDomain}.meeting_after(2),
      Operator{"AllGather", "x:any[S...] after?:any -> y:any[@ranks, S...]", kDomain}.meeting_after(1),
      Operator{"Send", "x:any[S...] after?:any -> sent:bool[] held?:any[S...]", kDomain}.meeting_after(1),
      Operator{"Receive", "x:any[] shape:int64[#S] after?:any -> y:any[S...]", kDomain}.meeting_after(2),
      {"StopGradient", "x[S...] -> y[S...]", kDomain, kOneFloat},
      {"Sgd", kSgd, kDomain, kOneFloat},
      {"Adam", kAdam, kDomain, kOneFloat},
      {"AdamW", kAdam, kDomain, kOneFloat},
      Operator{"SparseSgd",
               "w[R, S...] rows[P, S...] places:int64[P] learning_rate:float[] grad_scale:float[] -> next_w[R, S...]",
               kDomain, kOneFloat}
          .moving(Traffic::kGiven),
      {"AdamW8bit", kAdamW8bit, kDomain, kOneFloat},
      {"SparseAdam", kSparseAdam, kDomain, kOneFloat},
      Operator{"SparseAdamRows", kSparseAdamRows, kDomain, kOneFloat}.moving(Traffic::kGiven),
      {"Updates", "x*:any -> y*:any", kDomain},  // the kernel reads the calls in its body
      {"Casts", "x*:any -> y*:any", kDomain},    // so do these
      {"Gathers", "x*:any -> y*:any", kDomain},
      {"Fused", "x*:any -> y*:any", kDomain},
      Operator{"Dropout", kDropout, kDomain, kOneFloat}.narrow({0}, {0}).in_precision(PrecisionRole::kActivation),
      {"RandomUniform", kDraw, kDomain, kOneFloat},
      {"RandomNormal", kDraw, kDomain, kOneFloat},
  };
}

}  // namespace onnx_train
