#include "kernels/lowering/layout/views.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "kernels/lowering/memory/pieces.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/roles.h"
#include "runtime/plan/executable.h"
#include "tests/support/empty_model.h"

namespace onnx_train::views_test {
namespace {

using Strings = std::vector<std::string>;

// A graph of the input x and, where a test asks for one, the state s.
struct Network {
  Model model = empty_model();
  Builder b;

  Network() : b(model.graph.get()) {}
  Var input(const std::string& name, const Shape& shape) {
    return b.var(model.graph->add_input(name, {DType::kFloat, Dims(shape.begin(), shape.end())}));
  }
  std::vector<Var> split(Var x, const std::vector<int64_t>& sizes, int64_t axis) {
    return b.ops("Split", static_cast<int>(sizes.size()), {x, b.ints(sizes)}, {{"axis", axis}});
  }
  void output(const std::string& name, Var value) {
    model.graph->rename(value.value(), name);
    model.graph->add_output(value.value());
    if (name.starts_with("next/")) value.value()->set_role({roles::kNext, name.substr(5)});
  }
  const Node& last() const { return *model.graph->last(); }
};

Tensor ramp(const Shape& shape, double first) {
  Tensor tensor(DType::kFloat, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, first + 0.25 * static_cast<double>(i));
  return tensor;
}

// Runs a plan twice from memory that holds NaN where nothing was written.
struct Execution {
  std::vector<std::string> results;  // bytes of the outputs, then of the states
  Strings ops;                       // of the nodes that ran
  size_t arena = 0;
  bool in_place = false;  // some state

  Execution(const Model& model, const Strings& without) {
    PlanOptions options;
    options.lowering.without = without;
    const std::unique_ptr<Stream> stream = Device::cpu().make_stream();
    Fault fault, found;
    Executable executable(
        std::make_unique<Plan>(clone(model), Strings{"s"}, std::map<std::string, Shape>(), Device::cpu(), options),
        Device::cpu(), *stream, &fault);
    const Plan& plan = executable.plan();
    arena = plan.arena_bytes();
    for (const PlanStep& step : plan.steps()) ops.push_back(step.node->op());
    Tensor memory =
        Tensor::full(DType::kFloat, {static_cast<int64_t>(arena / 4 + 16)}, std::numeric_limits<double>::quiet_NaN());
    void* begin = memory.data();
    size_t room = memory.bytes();
    executable.bind_arena(std::align(64, arena, begin, room));
    std::vector<Tensor> tensors, states;
    for (const Port& port : plan.inputs()) tensors.push_back(ramp(port.shape, -3));
    for (const StatePort& port : plan.states()) states.push_back(ramp(port.shape, 5));
    for (size_t i = 0; i < states.size(); ++i) {
      in_place = in_place || plan.states()[i].in_place;
      executable.bind_state(i, states[i].data());
    }
    std::vector<Tensor> outputs;
    for (const Port& port : plan.outputs()) outputs.emplace_back(port.dtype, port.shape);
    for (int run = 0; run < 2; ++run) {
      for (size_t i = 0; i < tensors.size(); ++i) executable.set_input(i, tensors[i]);
      executable.run(outputs, &found);
    }
    outputs.insert(outputs.end(), states.begin(), states.end());
    for (const Tensor& t : outputs) results.emplace_back(static_cast<const char*>(t.data()), t.bytes());
  }

  int count(const std::string& op) const { return static_cast<int>(std::count(ops.begin(), ops.end(), op)); }
};

// The plan of the network with views; it computes what one without them does, and in no more memory.
Execution run(const Network& network, Strings without = {"fuse_elementwise"}) {
  Execution views(network.model, without);
  without.insert(without.end(), {kViews, kWriteInPlace, kUpdateInPlace});
  const Execution copies(network.model, without);
  EXPECT_EQ(views.results, copies.results);
  EXPECT_LE(views.arena, copies.arena);
  return views;
}

TEST(Pieces, AreStretchesOfTheWhole) {
  Network n;
  const Var x = n.input("x", {1, 6, 4});
  n.split(x, {1, 0, 5}, 1);
  EXPECT_EQ(piece_offsets(n.last()), (std::vector<size_t>{0, 16, 16}));
  n.split(x, {3, 1}, -1);
  EXPECT_TRUE(piece_offsets(n.last()).empty()) << "six stretches each";
  n.split(x, {4}, 2);
  EXPECT_EQ(piece_offsets(n.last()), (std::vector<size_t>{0})) << "all of it";
  slice(x, 2, 5, 1);
  EXPECT_EQ(piece_offsets(n.last()), (std::vector<size_t>{32}));
  slice(x, -2, 1000, -2);
  EXPECT_EQ(piece_offsets(n.last()), (std::vector<size_t>{64}));
  slice(x, 4, 4, 2);
  EXPECT_EQ(piece_offsets(n.last()), (std::vector<size_t>{0})) << "nothing lies anywhere";
  slice(x, 1, 3, 2);
  EXPECT_TRUE(piece_offsets(n.last()).empty());
  slice(x, n.b.ints({3, 1}), n.b.ints({4, 3}), n.b.ints({1, 2}));
  EXPECT_EQ(piece_offsets(n.last()), (std::vector<size_t>{52})) << "of one row";
  slice(x, n.b.ints({5}), n.b.ints({0}), n.b.ints({1}), n.b.ints({-1}));
  EXPECT_TRUE(piece_offsets(n.last()).empty()) << "backwards";
  n.b.op("Slice", {x, n.b.ints({0, 3}), n.b.ints({1, 6})});
  EXPECT_EQ(piece_offsets(n.last()), (std::vector<size_t>{48})) << "axes left out";
  concat({x, slice(x, 0, 2, 1), x}, 1);
  EXPECT_EQ(piece_offsets(n.last()), (std::vector<size_t>{0, 96, 128}));
  concat({x, x}, 0);
  EXPECT_EQ(piece_offsets(n.last()), (std::vector<size_t>{0, 96}));
  concat({x, x}, 2);
  EXPECT_TRUE(piece_offsets(n.last()).empty());
}

TEST(Pieces, ArePlacedOnlyWhereTheirStartsAreKnown) {
  Network n;
  const Var x = n.input("x", {6, 4});
  Value* start = n.model.graph->add_input("start", {DType::kInt64, Dims{1}});
  slice(x, n.b.var(start), n.b.ints({5}), n.b.ints({0}));
  EXPECT_TRUE(piece_offsets(n.last()).empty());
  n.model.graph->set_initializer(start, Tensor::ints({1}));
  EXPECT_TRUE(piece_offsets(n.last()).empty()) << "a default, not a constant";
}

TEST(Views, ASplitOfRowsCostsNothing) {
  Network n;
  const Var x = n.input("x", {6, 4});
  const std::vector<Var> parts = n.split(exp(x), {1, 0, 2, 3}, 0);
  n.output("a", abs(parts[0]));
  n.output("b", exp(parts[1]));
  n.output("c", matmul(parts[2], transpose_last(parts[3])));
  EXPECT_EQ(run(n).count("Split"), 0);
}

TEST(Views, WhatAConcatPutsTogetherIsWrittenThere) {
  Network n;
  const Var x = n.input("x", {3, 4});
  const Var whole = concat({exp(x), reshape(abs(x), {3, 4}), exp(slice(x, 1, 1, 0)), x, sin(x)}, 0);
  n.output("y", cos(whole));
  Network all;
  const Var z = all.input("x", {3, 4});
  all.output("y", cos(concat({exp(z), sin(z)}, 0)));
  EXPECT_EQ(run(n).count("Concat"), 1) << "of an input there must be a copy";
  EXPECT_EQ(run(all).count("Concat"), 0);
  all.output("z", concat({exp(z), sin(z)}, 0));
  EXPECT_EQ(run(all).count("Concat"), 0) << "straight into the output";
}

TEST(Views, AValueHasOnePlaceAmongConcats) {
  Network n;
  const Var x = n.input("x", {3, 4}), y = exp(x);
  n.output("twice", cos(concat({y, y}, 0)));
  n.output("again", sin(concat({cos(x), y}, 0)));
  n.output("alone", concat({y}, 0));
  n.output("itself", y);
  run(n);
  Network shared;
  const Var z = exp(shared.input("x", {3, 4}));
  shared.output("a", cos(concat({z, sin(z)}, 0)));
  shared.output("b", cos(concat({z, z, abs(z)}, 0)));
  EXPECT_EQ(run(shared).count("Concat"), 2) << "each copies once";
}

TEST(Views, ConcatsAndSplitsGoIntoEachOther) {
  Network n;
  const Var x = n.input("x", {3, 4});
  const Var inner = concat({exp(x), sin(x)}, 0);
  const Var outer = concat({cos(x), inner, abs(x)}, 0);
  const std::vector<Var> parts = n.split(outer, {2, 5, 5}, 0);
  n.output("a", exp(concat({parts[2], sin(slice(parts[1], 1, 3, 0))}, 0)));
  n.output("b", reduce_sum(parts[1], {0}));
  n.output("c", abs(inner));
  const Execution done = run(n);
  EXPECT_EQ(done.count("Concat"), 1);
  EXPECT_EQ(done.count("Split") + done.count("Slice"), 0);
}

TEST(Views, AnOutputOfTheGraphIsWrittenWhereTheCallerWantsIt) {
  Network n;
  const Var x = n.input("x", {6, 4}), y = exp(x);
  const std::vector<Var> parts = n.split(y, {2, 2, 2}, 0);
  n.output("piece", parts[1]);
  n.output("reshaped", reshape(slice(y, 4, 6, 0), {8}));
  n.output("of_input", slice(x, 1, 3, 0));
  n.output("whole", reshape(y, {24}));
  n.output("other", concat({sin(parts[0]), parts[1]}, 0));
  run(n);
}

// Who reads a piece with the whole, or another piece, must not find the result there.
TEST(Views, NothingIsWrittenOverAPieceThatIsStillRead) {
  Network n;
  const Var x = n.input("x", {6, 4}), y = exp(x);
  n.output("row", y + slice(y, 2, 3, 0));
  const Var z = sin(x);
  const Var late = slice(z, 0, 2, 0);
  const Var over = abs(z);
  n.output("late", late + slice(over, 1, 3, 0));
  const std::vector<Var> halves = n.split(cos(x), {3, 3}, 0);
  const Var sum = halves[0] + halves[1];
  n.output("sum", sum - halves[0]);
  run(n);
}

TEST(Views, AStateThatIsReadInPiecesIsUpdatedInPlace) {
  Network n;
  const Var x = n.input("x", {2, 4}), s = n.input("s", {6, 4});
  const std::vector<Var> parts = n.split(s, {2, 4}, 0);
  n.output("y", matmul(x, transpose_last(parts[0])));
  n.output("z", reduce_sum(parts[1], {0}));
  n.output("next/s", s * 0.5);
  const Execution done = run(n);
  EXPECT_EQ(done.count("Split"), 0);
  EXPECT_TRUE(done.in_place);
}

TEST(Views, APieceOfAStateIsKeptFromItsUpdate) {
  Network n;
  const Var x = n.input("x", {2, 4}), s = n.input("s", {6, 4});
  const Var piece = slice(s, 1, 3, 0);
  n.output("next/s", s * 0.5 + piece.builder().op("Pad", {x, n.b.ints({4, 0, 0, 0})}));
  n.output("late", sin(piece));
  run(n);
  run(n, {});
  Network rows;
  const Var t = rows.input("s", {6, 4});
  rows.output("next/s", t - slice(t, 5, 6, 0));
  run(rows);
  run(rows, {});
  Network shifted;  // the last rows of the old state, then a new one
  const Var row = shifted.input("x", {1, 4}), u = shifted.input("s", {6, 4});
  shifted.output("next/s", concat({slice(u, 1, 6, 0), exp(row)}, 0));
  run(shifted);
}

// Views never need more memory: a small piece of something large is copied if the large one would live longer.
TEST(Views, APieceDoesNotKeepALargeWholeAlive) {
  Network n;
  const Var x = n.input("x", {64, 64});
  std::vector<Var> pieces;
  for (int i = 0; i < 8; ++i) pieces.push_back(slice(sin(x * (i + 1.0)), i, i + 1, 0));
  Var sum = exp(pieces[0]);
  for (const Var& piece : pieces) sum = sum + piece;
  n.output("y", sum);
  EXPECT_LE(run(n).arena, size_t{4} * 64 * 64 * sizeof(float));
}

// A random graph over a state and an input, of everything that moves and a little arithmetic.
class RandomNetwork {
 public:
  explicit RandomNetwork(unsigned seed) : random_(seed) {
    pool_.push_back(n_.input("x", {4, 6}));
    pool_.push_back(n_.input("s", {4, 6}));
    for (int i = 0; i < 30; ++i) grow();
    for (int i = 0; i < 6; ++i) add_output(i);
    const Var s = pool_[1];
    n_.output("next/s", s * 0.5 + reduce_mean(reshape(any(), {1, -1}), {1}));
  }

  const Network& network() const { return n_; }

 private:
  static int64_t size(Var x, size_t axis) { return x.type().shape()[axis]; }
  int64_t draw(int64_t below) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(below)); }
  Var any() { return pool_[static_cast<size_t>(draw(static_cast<int64_t>(pool_.size())))]; }
  void keep(Var x) {
    if (num_elements(x.type().shape()) <= 512 && size(x, 0) > 0 && size(x, 1) > 0) pool_.push_back(x);
  }

  void grow() {
    const Var x = any();
    const auto axis = static_cast<size_t>(draw(3) == 0);  // mostly rows
    switch (draw(7)) {
      case 0: keep(reshape(x, draw(2) ? Shape{size(x, 1), size(x, 0)} : Shape{1, -1})); break;
      case 1: keep(abs(x)); break;
      case 2: keep(x - slice(x, 0, 1, 0)); break;
      case 3: {
        const int64_t start = draw(size(x, axis));
        keep(slice(x, start, start + 1 + draw(size(x, axis) - start), static_cast<int64_t>(axis)));
        break;
      }
      case 4: {
        const int64_t first = draw(size(x, axis) + 1), second = draw(size(x, axis) - first + 1);
        const std::vector<int64_t> sizes = {first, second, size(x, axis) - first - second};
        for (const Var& part : n_.split(x, sizes, static_cast<int64_t>(axis))) keep(part);
        break;
      }
      default: join(x, axis);
    }
  }

  void join(Var x, size_t axis) {
    std::vector<Var> parts = {x};
    for (int i = 0; i < 6; ++i) {
      const Var other = any();
      if (size(other, 1 - axis) == size(x, 1 - axis)) parts.push_back(draw(2) ? abs(other) : other);
    }
    std::shuffle(parts.begin(), parts.end(), random_);
    keep(concat(parts, static_cast<int64_t>(axis)));
  }

  void add_output(int i) {
    const Var x = any();
    const bool taken = !x.value()->producer() || n_.model.graph->is_output(x.value());
    n_.output("y" + std::to_string(i), taken ? abs(x) : x);
  }

  Network n_;
  std::mt19937 random_;
  std::vector<Var> pool_;
};

TEST(Views, RandomGraphsComputeTheSame) {
  int moves = 0, copies = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const RandomNetwork random(seed);
    const Model& model = random.network().model;
    const Strings plain = {"fuse_elementwise", kViews, kWriteInPlace, kUpdateInPlace, "order_nodes"};
    const Execution expected(model, plain);
    const std::vector<Strings> choices = {{"fuse_elementwise"}, {"fuse_elementwise", kWriteInPlace}, {}};
    for (const Strings& without : choices) EXPECT_EQ(Execution(model, without).results, expected.results);
    const Execution views(model, choices[0]);
    for (const char* op : {"Split", "Slice", "Concat"}) {
      moves += expected.count(op);
      copies += views.count(op);
    }
  }
  EXPECT_LT(4 * copies, 3 * moves) << "many join what has a place already";
}

}  // namespace
}  // namespace onnx_train::views_test
