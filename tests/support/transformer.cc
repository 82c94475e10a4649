#include "tests/support/transformer.h"
#include "tests/support/empty_model.h"

#include <cmath>
#include <random>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"

namespace onnx_train {
namespace {

class Transformer {
 public:
  Transformer(Graph* graph, const TransformerSizes& sizes) : b_(graph), sizes_(sizes) {}

  void run() {
    Graph& graph = b_.graph();
    const TransformerSizes& s = sizes_;
    const Var tokens = b_.var(graph.add_input("tokens", {DType::kInt64, Dims{"batch", s.tokens}}));
    Var x = gather(weight("embedding", {s.vocabulary, s.width}), tokens, 0) + weight("positions", {s.tokens, s.width});
    x = dropout(x);
    for (int i = 0; i < s.blocks; ++i) x = block(x, onnx_train::concat("block", i, "."));
    b_.set_name("logits");
    graph.add_output(matmul(norm(x, "last."), weight("head", {s.width, s.vocabulary})).value());
  }

 private:
  Var weight(const std::string& name, const Shape& shape, double mean = 0) {
    Tensor tensor(DType::kFloat, shape);
    std::normal_distribution<float> normal(static_cast<float>(mean), 0.1f);
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.data<float>()[i] = normal(random_);
    return b_.var(b_.graph().add_initializer(name, tensor));
  }

  Var norm(Var x, const std::string& name) {
    return b_.op("LayerNormalization",
                 {x, weight(name + "scale", {sizes_.width}, 1), weight(name + "bias", {sizes_.width})}, {{"axis", -1}});
  }

  Var linear(Var x, const std::string& name, int64_t in, int64_t out) {
    return matmul(x, weight(name, {in, out})) + weight(name + ".bias", {out});
  }

  Var dropout(Var x) {
    return sizes_.dropout > 0 ? b_.op("Dropout", {x, b_.scalar(DType::kFloat, sizes_.dropout)}) : x;
  }

  Var heads(Var x, const std::vector<int64_t>& permutation) {
    return transpose(reshape(x, {0, 0, sizes_.heads, sizes_.width / sizes_.heads}), permutation);
  }

  Var attention(Var x, const std::string& name) {
    const int64_t width = sizes_.width, tokens = sizes_.tokens;
    const Var q = heads(linear(x, name + "q", width, width), {0, 2, 1, 3});
    const Var k = heads(linear(x, name + "k", width, width), {0, 2, 3, 1});
    const Var v = heads(linear(x, name + "v", width, width), {0, 2, 1, 3});
    Tensor mask(DType::kFloat, {tokens, tokens});
    // A learned bias of the scores, an initializer: constants are not trained, nor are masks of larger numbers.
    for (int64_t i = 0; i < mask.size(); ++i) mask.data<float>()[i] = i % tokens > i / tokens ? -30.0f : 0.0f;
    const Var scores = matmul(q, k) * (1 / std::sqrt(static_cast<double>(width / sizes_.heads))) +
                       b_.var(b_.graph().add_initializer(name + "mask", mask));
    const Var mixed = matmul(b_.op("Softmax", {scores}, {{"axis", -1}}), v);
    return linear(reshape(transpose(mixed, {0, 2, 1, 3}), {0, 0, width}), name + "out", width, width);
  }

  Var block(Var x, const std::string& name) {
    b_.set_name(name + "v");
    x = x + dropout(attention(norm(x, name + "norm1."), name + "attention."));
    const Var hidden = b_.op("Gelu", {linear(norm(x, name + "norm2."), name + "up", sizes_.width, 4 * sizes_.width)});
    return x + dropout(linear(hidden, name + "down", 4 * sizes_.width, sizes_.width));
  }

  Builder b_;
  const TransformerSizes sizes_;
  std::mt19937 random_{1};
};

}  // namespace

Model make_transformer(const TransformerSizes& sizes) {
  Model model = empty_model();
  Transformer(model.graph.get(), sizes).run();
  return model;
}

Model make_training_transformer(const TransformerSizes& sizes) {
  Model model = make_transformer(sizes);
  BuildOptions options;
  options.loss = "cross_entropy";
  options.optimizer = "adamw";
  build_training_model(&model, options);
  return model;
}

}  // namespace onnx_train
