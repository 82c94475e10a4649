// Serves predictions from one session while another one trains, and exchanges their weights after each round. The test
// is in the program: each prediction is that of one version of the weights.
//   swap MODEL.onnx
#include <onnx_train/onnx_train.hpp>

#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>

using namespace onnx_train;

namespace {

const std::vector<float> kX = {0.5f, -1, 2, 0.25f, 1, 1, -1, 0};
const std::vector<int64_t> kLabels = {1, 2};

std::vector<float> predict(Session* session) {
  const Outputs outputs = session->run("predict", {{"x", {2, 4}, kX}});
  const float* logits = static_cast<const float*>(outputs.begin()->data);
  return std::vector<float>(logits, logits + 6);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return std::fprintf(stderr, "usage: %s MODEL.onnx\n", argv[0]), 2;
  const Model model = Model::load(argv[1]).build({{"loss", "cross_entropy"}, {"optimizer", "adamw"}});
  Session training(model, {{"threads", "1"}}), serving(model, {{"threads", "1"}});
  std::mutex exchange;  // held by a prediction, and while weights are exchanged
  std::map<std::vector<float>, int> versions = {{predict(&serving), 0}};
  std::vector<std::vector<float>> served;
  std::atomic<bool> done{false};

  std::thread server([&] {
    do {
      const std::lock_guard<std::mutex> lock(exchange);
      served.push_back(predict(&serving));
    } while (!done || served.size() < 100);
  });
  for (int version = 1; version <= 50; ++version) {
    for (int i = 0; i < 5; ++i) {
      training.run("step", {{"x", {2, 4}, kX}, {"labels", {2}, kLabels}, {"learning_rate", 1e-2f}});
    }
    versions.emplace(predict(&training), version);
    {
      const std::lock_guard<std::mutex> lock(exchange);
      for (const std::string& name : training.states()) training.swap(name, serving);
    }
    // Training goes on from the newest weights, which it copies: reading is a use of the serving session, too.
    const std::lock_guard<std::mutex> lock(exchange);
    training = Session(serving.model(), {{"threads", "1"}});
  }
  done = true;
  server.join();

  for (const std::vector<float>& prediction : served) {
    if (versions.count(prediction) == 0) return std::fprintf(stderr, "a prediction is of no version\n"), 1;
  }
  if (predict(&serving) != predict(&training)) return std::fprintf(stderr, "the last version is not served\n"), 1;
  std::printf("%zu predictions, each of one of %zu versions\n", served.size(), versions.size());
} catch (const std::exception& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
