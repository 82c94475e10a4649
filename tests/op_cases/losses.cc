#include <limits>

#include "tests/op_cases/op_case.h"

namespace onnx_train {
namespace {

Attrs attributes(int axis, const char* reduction = "mean", double smoothing = 0, int ignore_index = -100) {
  return {{"axis", axis},
          {"ignore_index", ignore_index},
          {"label_smoothing", Tensor::scalar(smoothing)},
          {"reduction", reduction}};
}

OpInput labels(Shape shape, int64_t classes, DType dtype = DType::kInt64) {
  return {.shape = std::move(shape), .low = 0, .high = static_cast<double>(classes), .dtype = dtype};
}

OpCase loss(OpInput logits, OpInput label, Attrs attrs, OpInput weight = {.absent = true}) {
  return {"SoftmaxCrossEntropy",
          {std::move(logits), std::move(label), std::move(weight)},
          std::move(attrs),
          2,
          "onnx_train"};
}

// The gradient reads whatever log_sum_exp it is given, so a drawn one will do.
OpCase grad(OpInput logits, OpInput label, Attrs attrs, OpInput weight = {.absent = true}) {
  const OpInput dloss = {{}},
                log_sum_exp = {.shape = label.value.empty() ? label.shape : label.value.shape(), .low = 2};
  OpCase row{"SoftmaxCrossEntropyGrad",
             {dloss, std::move(logits), std::move(label), log_sum_exp, std::move(weight)},
             std::move(attrs),
             1,
             "onnx_train"};
  row.gradient = false;
  return row;
}

// ---- A product and the loss of its result

struct Linear {
  int64_t classes = 5, width = 3;
  bool transposed = false, biased = false, trains = true;
  double scale = 1, cap = 0;
  int64_t rows = 0;  // of a chunk
  OpInput weight = {.absent = true};
  Attrs attrs = attributes(-1);
};

OpCase linear(OpInput label, const Linear& l) {
  Shape h = label.value.empty() ? label.shape : label.value.shape();
  h.push_back(l.width);
  const Shape w = l.transposed ? Shape{l.classes, l.width} : Shape{l.width, l.classes};
  const OpInput none = {.absent = true}, bias = l.biased ? OpInput{{l.classes}} : none;
  OpCase row{.op = "LinearCrossEntropy",
             .inputs = {{h}, {w}, std::move(label), bias, l.weight, l.trains ? OpInput{{}, 0.5, 2} : none},
             .attrs = l.attrs,
             .num_outputs = l.trains ? l.biased ? 7 : 6 : 4,
             .domain = "onnx_train",
             .gradient = false};
  row.attrs.insert(row.attrs.end(), {{"transposed", l.transposed},
                                     {"scale", Tensor::scalar(l.scale)},
                                     {"cap", Tensor::scalar(l.cap)},
                                     {"rounding", 0},
                                     {"narrow", 0},
                                     {"rows", l.rows}});
  return row;
}

// One chunk, two, and three, with parts that fill the smaller form of a chunk or not.
void linear_losses(std::vector<OpCase>* cases) {
  const auto ignored = [](int64_t count, int64_t classes, auto is_ignored) {
    Tensor label(DType::kInt64, {count});
    for (int64_t i = 0; i < count; ++i) label.set(i, is_ignored(i) ? -100 : static_cast<double>(i * 7 % classes));
    return OpInput{.value = label};
  };
  const auto none = [](int64_t) { return false; };
  const OpInput weight = {.shape = {5}, .low = 0.1, .high = 2};
  for (const bool transposed : {false, true}) {
    for (const bool trains : {false, true}) {
      const Linear plain{.transposed = transposed, .trains = trains};
      const auto with = [&](auto change) {
        Linear changed = plain;
        change(changed);
        return changed;
      };
      const auto biased = with([](Linear& l) { l.biased = true; });
      const auto full = with([&](Linear& l) {
        l.biased = true, l.scale = 0.5, l.cap = 0.7, l.weight = weight, l.attrs = attributes(-1, "mean", 0.1);
      });
      cases->insert(
          cases->end(),
          {linear(labels({6}, 5), plain), linear(labels({1}, 5, DType::kInt32), biased),
           linear(labels({2, 3}, 5), full), linear(labels({0}, 5), biased),
           linear(labels({7}, 5), with([](Linear& l) { l.scale = 2, l.attrs = attributes(-1, "sum", 0, 3); })),
           linear(labels({7}, 5), with([](Linear& l) { l.cap = 1.5; })), linear(ignored(1100, 5, none), biased),
           linear(ignored(349, 5, none), full), linear(ignored(600, 5, [](int64_t i) { return i % 4 == 1; }), full),
           linear(ignored(700, 5, [](int64_t i) { return i > 3 && i != 650; }), biased),
           linear(ignored(300, 5, [](int64_t) { return true; }), full),
           linear(ignored(150, 5, [](int64_t i) { return i % 9 == 2; }),
                  with([&](Linear& l) { l = full, l.rows = 64; })),
           linear(ignored(128, 5, none), with([](Linear& l) { l.biased = true, l.rows = 64; })),
           linear(ignored(600, 5, [](int64_t i) { return i >= 300; }),
                  with([](Linear& l) { l.attrs = attributes(-1, "sum"); })),
           linear(ignored(40, 2500, none), with([](Linear& l) { l.classes = 2500, l.biased = true; }))});
    }
  }
}

// Logits that are equal, and those of ignored labels.
void label_scores(std::vector<OpCase>* cases) {
  const auto scores = [](OpInput logits, OpInput label, int axis, int ignore_index = -100) {
    return OpCase{.op = "LabelScores",
                  .inputs = {std::move(logits), std::move(label)},
                  .attrs = {{"axis", axis}, {"ignore_index", ignore_index}},
                  .num_outputs = 2,
                  .domain = "onnx_train",
                  .gradient = false};
  };
  const OpInput equal = {.value = Tensor::of<float>({3, 4}, {1, 2, 2, 0, 3, 3, 3, 3, 0, -1, 0, 2})};
  cases->insert(cases->end(), {scores({{7, 5}}, labels({7}, 5), 1), scores({{2, 3, 600}}, labels({2, 3}, 600), -1, 7),
                               scores({{2, 5, 3, 70}}, labels({2, 3, 70}, 5, DType::kInt32), 1, 2),
                               scores(equal, {.value = Tensor::of<int64_t>({3}, {2, 3, 0})}, 1, 0),
                               scores({{0, 4}}, labels({0}, 4), 1)});
}

// ONNX's own losses: differentiated and run through the bodies that the standard gives them.
void standard_losses(std::vector<OpCase>* cases) {
  const OpInput weight = {.shape = {4}, .low = 0.1, .high = 2};
  const OpInput some_ignored = {.value = Tensor::of<int64_t>({5}, {3, 1, 2, 0, 1})};
  for (const char* op : {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) {
    cases->insert(cases->end(), {
                                    {op, {{{5, 4}}, labels({5}, 4)}},
                                    {op, {{{5, 4}}, labels({5}, 4)}, {{"reduction", "sum"}}},
                                    {op, {{{5, 4}}, labels({5}, 4)}, {{"reduction", "none"}}},
                                    {op, {{{5, 4}}, labels({5}, 4, DType::kInt32), weight}},
                                    {op, {{{5, 4}}, some_ignored, weight}, {{"ignore_index", 1}}},
                                    {op, {{{2, 4, 3, 5}}, labels({2, 3, 5}, 4)}, {{"ignore_index", 2}}},
                                });
  }
  cases->push_back({"SoftmaxCrossEntropyLoss", {{{5, 4}}, labels({5}, 4)}, {}, 2});
}

}  // namespace

std::vector<OpCase> loss_cases() {
  const OpInput some_ignored = {.value = Tensor::of<int64_t>({5}, {3, 1, -100, 0, -100})};
  const OpInput all_ignored = {.value = Tensor::of<int64_t>({2, 3}, {-100, -100, -100, -100, -100, -100})};
  const OpInput weight = {.shape = {4}, .low = 0.1, .high = 2};
  const OpInput weightless = {.shape = {4}, .low = 0, .high = 0};
  std::vector<OpCase> cases;
  for (const auto& row : {loss, grad}) {
    cases.insert(
        cases.end(),
        {
            row({{6, 10}, -5, 5}, labels({6}, 10), attributes(1), {.absent = true}),
            row({{6, 10}, -5, 5}, labels({6}, 10, DType::kInt32), attributes(-1, "sum"), {.absent = true}),
            row({{1, 1}}, labels({1}, 1), attributes(1), {.absent = true}),
            row({{0, 3}}, labels({0}, 3), attributes(1, "sum"), {.absent = true}),
            row({{5, 4}}, some_ignored, attributes(1), {.absent = true}),
            row({{5, 4}}, some_ignored, attributes(1, "mean", 0.1), weight),
            row({{5, 4}}, labels({5}, 4), attributes(1, "sum", 0.3, 1), {.absent = true}),
            row({{2, 3, 7}}, labels({2, 3}, 7), attributes(2, "mean", 0.1), {.absent = true}),
            row({{2, 4, 3, 70}}, labels({2, 3, 70}, 4), attributes(1, "mean", 0.2), weight),
            row({{4, 9}, -90, 90}, labels({9}, 4), attributes(0, "mean", 0, 2), weight),
            row({{0, 3}}, labels({0}, 3), attributes(1), {.absent = true}),
            row({{2, 3, 4}}, all_ignored, attributes(2), {.absent = true}),
            row({{2, 4, 3}}, all_ignored, attributes(1, "mean", 0.1), weight),
            row({{3, 1000}, -3, 3}, labels({3}, 1000), attributes(1, "sum"), {.absent = true}),
            // Several blocks add the labels and losses of so many positions, and the weights of so many classes.
            row({{4500, 3}}, labels({4500}, 3), attributes(1), {.shape = {3}, .low = 0.1, .high = 2}),
            row({{2, 4500}, -3, 3}, labels({2}, 4500), attributes(1, "mean", 0.1),
                {.shape = {4500}, .low = 0.1, .high = 2}),
            row({{5, 517}, -3, 3}, labels({5}, 517), attributes(1, "mean", 0.1), {.absent = true}),
        });
  }
  // Classes that a mask excludes; in front of the others, too.
  const double none = -std::numeric_limits<double>::infinity();
  for (const int64_t classes : {4, 20}) {
    Tensor masked = Tensor::full(DType::kFloat, {2, classes}, 0.5);
    for (int64_t c = 0; c < classes - 2; ++c) masked.set(c, none);
    masked.set(2 * classes - 1, none);
    const OpInput last = {.value = Tensor::of<int64_t>({2}, {classes - 1, 0})};
    cases.push_back(loss({.value = masked}, last, attributes(1)));
    cases.back().no_derivative = "a difference of infinite logits has none";
    cases.push_back(grad({.value = masked}, last, attributes(1)));
  }
  // No label has a weight: the loss is 0, and has a jump there.
  cases.push_back(loss({{5, 4}}, labels({5}, 4), attributes(1, "mean", 0.1), weightless));
  cases.back().no_derivative = "the loss jumps where the sum of weights becomes 0";
  cases.push_back(grad({{5, 4}}, labels({5}, 4), attributes(1, "mean", 0.1), weightless));
  cases.push_back({"StopGradient", {{{2, 3}}}, {}, 1, "onnx_train"});
  cases.back().gradient = false;
  cases.back().no_derivative = "it is 0 by definition";
  standard_losses(&cases);
  linear_losses(&cases);
  label_scores(&cases);
  return cases;
}

}  // namespace onnx_train
