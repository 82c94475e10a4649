// Trains a classifier with a C++ program and nothing else: a forward model in, a trained one out.
//   train MODEL.onnx TRAINED.onnx
#include <onnx_train/onnx_train.hpp>

#include <algorithm>
#include <cstdio>
#include <random>

int main(int argc, char** argv) try {
  if (argc != 3) return std::fprintf(stderr, "usage: %s MODEL.onnx TRAINED.onnx\n", argv[0]), 2;
  using namespace onnx_train;
  const Model training = Model::load(argv[1]).build({{"loss", "cross_entropy"}, {"optimizer", "adamw"}});
  Session session(training, {{"threads", "2"}});

  // Four numbers; the class is the largest of the first three.
  constexpr int64_t kBatch = 32;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> x(kBatch * 4);
  std::vector<int64_t> labels(kBatch);
  float loss = 0;
  for (int step = 1; step <= 300; ++step) {
    for (float& value : x) value = uniform(random);
    for (int64_t i = 0; i < kBatch; ++i) {
      const float* row = &x[static_cast<size_t>(i * 4)];
      labels[static_cast<size_t>(i)] = std::max_element(row, row + 3) - row;
    }
    loss = session.run("step", {{"x", {kBatch, 4}, x}, {"labels", {kBatch}, labels}, {"learning_rate", 1e-2f}})
               .scalar("loss");
    if (step % 100 == 0) std::printf("step %d: loss %.4f\n", step, loss);
  }

  // Another session, with the weights exchanged: it serves what this one has learnt.
  Session serving(training);
  for (const std::string& name : session.states()) session.swap(name, serving);
  serving.model().export_inference().save(argv[2]);
  return loss < 0.5f ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
