// Connectionist temporal classification (Graves et al., 2006): the probability of all ways to write the labels along
// the time steps, with blanks between them. The recurrence over time is unrolled, so the number of steps must be known.
#include <limits>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/term_builder.h"

namespace onnx_train {
namespace {

using enum OptionKind;

// Stands for the logarithm of 0: differences of infinities are NaN.
constexpr double kImpossible = -1e30;

// The lattice of a batch. Its states are blank, label, blank, label, ..., blank: 2 S + 1 for labels [samples, S].
class Lattice {
 public:
  Lattice(Var log_p, Var labels, Var lengths, Var steps, int64_t blank)
      : b_(log_p.builder()),
        lengths_(lengths),
        steps_(steps),
        blank_(b_.scalar(DType::kInt64, static_cast<double>(blank))) {
    const Var rows = dim(labels, 0), columns = dim(labels, 1);
    const Var places = range(columns), padding = places >= unsqueeze(lengths, {1});
    const Var written = where(padding, blank_, labels);
    const Var pairs = concat({unsqueeze(expand(blank_, shape(labels)), {2}), unsqueeze(written, {2})}, 2);
    const Var flat = reshape(pairs, concat({rows, columns * 2}, 0));
    states_ = concat({flat, expand(blank_, concat({rows, b_.ints({1})}, 0))}, 1);
    const Var is_blank = equal(states_, blank_), is_repeated = equal(states_, shifted(states_, 2, blank_));
    may_skip_ = logical_not(logical_or(is_blank, is_repeated));
    impossible_ = b_.scalar(log_p.dtype(), kImpossible);
    const Var of_step = unsqueeze(states_, {0});
    const Var index = expand(of_step, concat({dim(log_p, 0), shape(states_)}, 0));
    emissions_ = b_.op("GatherElements", {log_p, index}, {{"axis", 2}});
  }

  // log Σ of all ways, for each sample; kImpossible if there is none.
  Var log_likelihood(int64_t num_steps) {
    const Var is_start = range(dim(states_, 1)) < b_.scalar(DType::kInt64, 2);
    Var alpha = where(is_start, emission(0), impossible_);
    for (int64_t step = 1; step < num_steps; ++step) {
      const Var skipped = where(may_skip_, shifted(alpha, 2, impossible_), impossible_);
      const Var before = log_sum({alpha, shifted(alpha, 1, impossible_), skipped}), next = before + emission(step);
      alpha = where(unsqueeze(steps_, {1}) > b_.scalar(DType::kInt64, static_cast<double>(step)), next, alpha);
    }
    const Var zero = b_.scalar(DType::kInt64, 0), last = lengths_ * 2, none = equal(lengths_, zero);
    const Var on_label = where(none, impossible_, picked(alpha, max(last - 1.0, zero), 1));
    const Var total = log_sum({picked(alpha, last, 1), on_label});
    return where(steps_ > zero, total, impossible_);
  }

 private:
  Var range(Var size) {
    return b_.op("Range", {b_.scalar(DType::kInt64, 0), squeeze(size, {0}), b_.scalar(DType::kInt64, 1)});
  }
  Var emission(int64_t step) { return gather(emissions_, b_.scalar(DType::kInt64, static_cast<double>(step)), 0); }
  // x[n, s - by], `fill` for s < by.
  Var shifted(Var x, int64_t by, Var fill) {
    const Var front = expand(fill, concat({dim(states_, 0), b_.ints({by})}, 0));
    const Var longer = concat({front, x}, 1);
    return slice(longer, b_.ints({0}), dim(states_, 1), b_.ints({1}));
  }
  Var log_sum(const std::vector<Var>& logs) {
    std::vector<Var> rows;
    for (const Var& x : logs) rows.push_back(unsqueeze(x, {0}));
    return b_.op("ReduceLogSumExp", {concat(rows, 0), b_.ints({0})}, {{"keepdims", 0}});
  }

  Builder& b_;
  Var lengths_, steps_, blank_, states_, may_skip_, impossible_, emissions_;
};

// The lengths; one above `most`, an int64[1], is an index out of range.
Var checked(Var lengths, Var most) {
  Builder& b = lengths.builder();
  const Var all = b.op("Range", {b.scalar(DType::kInt64, 0), squeeze(most + 1.0, {0}), b.scalar(DType::kInt64, 1)});
  return gather(all, cast(lengths, DType::kInt64), 0);
}

LossResult ctc(TermBuilder& t) {
  const Var x = t.x();
  const int64_t time = t.integer("time");
  const Dim& steps = dims_of(x)[static_cast<size_t>(time)];
  if (!steps.known()) {
    fail("[Loss] ctc: the number of time steps, axis ", time, " of '", x.value()->name(), "' ", to_string(x.type()),
         ", is not known: --dim NAME=N gives it, time=", 1 - time, " names the other axis");
  }
  Var log_p = log_softmax(x, 2);
  if (time == 1) log_p = transpose(log_p, {1, 0, 2});
  const Var labels = cast(t.argument(1, x), DType::kInt64);
  const Var input_lengths = t.argument(2, x), num_steps = checked(input_lengths, dim(log_p, 0));
  const Var target_lengths = t.argument(3, x), lengths = checked(target_lengths, dim(labels, 1));
  const Var likelihood = Lattice(log_p, labels, lengths, num_steps, t.integer("blank")).log_likelihood(steps.value());
  const double infinity = t.flag("zero_infinity") ? 0 : std::numeric_limits<double>::infinity();
  const Var is_impossible = likelihood < kImpossible / 2;
  Var losses = where(is_impossible, t.b().scalar(x.dtype(), infinity), -likelihood);
  if (!t.is_sum()) losses = losses / cast_like(max(lengths, t.b().scalar(DType::kInt64, 1)), x);
  return t.reduced(x, {losses, "samples", {1 - time}});
}

}  // namespace

std::vector<LossRow> sequence_losses() {
  using enum ArgumentKind;
  using enum ArgumentShape;
  return {
      {"ctc",
       {{"logits", kPrediction, kOwn},
        {"labels", kIndices, kSequences},
        {"input_lengths", kIndices, kSamples},
        {"target_lengths", kIndices, kSamples}},
       {{"blank", kNumber, 0, kWholeNumber, "the class that writes nothing"},
        {"zero_infinity", kNumber, 0, kTrueOrFalse,
         "a sample with more labels than its steps can hold has the loss 0, not infinity"},
        {"time", kNumber, 0, kZeroOrOne,
         "the axis of the time steps: 0 for [steps, samples, classes], 1 for [samples, steps, classes]"}},
       ctc,
       "-log Σ Π_t p[t, π_t] over all paths π that write the labels once repetitions are merged and blanks left out, "
       "divided "
       "by the number of labels (not so with `reduction=sum`); p = softmax(logits), which leaves log-probabilities as "
       "they "
       "are. The labels are padded to int64 [samples, length]; what is beyond target_lengths is not read. The number "
       "of time "
       "steps must be known when the model is built (`--dim`)",
       "samples",
       "As `torch.nn.functional.ctc_loss`",
       3,
       3},
  };
}

}  // namespace onnx_train
