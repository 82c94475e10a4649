// Trains on batches that the program makes, with the loop of `onnx-train fit`: schedule, evaluations, checkpoints.
//   loop MODEL.onnx FOLDER
#include <onnx_train/onnx_train.hpp>

#include <algorithm>
#include <cstdio>
#include <random>

// Four numbers; the class is the largest of the first three. `batches` batches an epoch, the last one smaller.
class Samples : public onnx_train::DataSource {
 public:
  Samples(unsigned seed, int64_t batches) : seed_(seed), batches_(batches) {}
  int64_t batches() const override { return batches_; }
  void begin(int64_t epoch) override {
    random_.seed(seed_ + static_cast<unsigned>(epoch));
    made_ = 0;
  }
  std::vector<onnx_train::Input> next() override {
    if (made_ == batches_) return {};
    const int64_t n = ++made_ == batches_ ? 7 : 32;
    std::uniform_real_distribution<float> uniform(-1, 1);
    x_.resize(static_cast<size_t>(n * 4));
    labels_.clear();
    for (float& value : x_) value = uniform(random_);
    for (const float* row = x_.data(); row < x_.data() + n * 4; row += 4) {
      labels_.push_back(std::max_element(row, row + 3) - row);
    }
    return {{"x", {n, 4}, x_}, {"labels", {n}, labels_}};
  }

 private:
  unsigned seed_;
  int64_t batches_, made_ = 0;
  std::mt19937 random_;
  std::vector<float> x_;
  std::vector<int64_t> labels_;
};

struct Printer : onnx_train::Observer {
  onnx_train_next on_evaluation(const onnx_train_evaluation& e) override {
    for (size_t i = 0; i < e.num_metrics; ++i) std::printf("%s %.3f  ", e.metrics[i].name, e.metrics[i].value);
    std::printf("after epoch %d\n", static_cast<int>(e.epoch));
    return ONNX_TRAIN_CONTINUE;
  }
};

int main(int argc, char** argv) try {
  if (argc != 3) return std::fprintf(stderr, "usage: %s MODEL.onnx FOLDER\n", argv[0]), 2;
  using namespace onnx_train;
  Session session(Model::load(argv[1]).build({{"loss", "cross_entropy"}, {"optimizer", "adamw"}}));
  Samples training(1, 40), test(100, 5);
  Printer printer;
  train(session, training, {{"epochs", "5"}, {"lr", "0.02"}, {"schedule", "cosine"}, {"out", argv[2]}}, &test,
        &printer);
} catch (const std::exception& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
